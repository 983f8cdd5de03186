package mcp

import (
	"io"
	"net/http"
	"strconv"
	"sync"
)

// Pipe is the in-memory half of a pair: a transport that hands requests to h in
// this process, with streaming bodies and no socket. Give it to a Client as its
// Transport, and a Server as h.
func Pipe(h http.Handler) http.RoundTripper { return pipe{h} }

type pipe struct{ h http.Handler }

// RoundTrip serves one request; the response begins when the handler writes.
func (p pipe) RoundTrip(req *http.Request) (*http.Response, error) {
	in := req.Clone(req.Context())
	in.RequestURI = req.URL.RequestURI()
	in.RemoteAddr = "pipe"
	if in.Body == nil {
		in.Body = http.NoBody
	}
	r, w := io.Pipe()
	pw := &pipeWriter{head: http.Header{}, body: w, begun: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer w.Close()
		defer pw.WriteHeader(http.StatusOK)
		p.h.ServeHTTP(pw, in)
	}()
	select {
	case <-pw.begun:
	case <-req.Context().Done():
		r.CloseWithError(req.Context().Err())
		return nil, req.Context().Err()
	}
	resp := &http.Response{StatusCode: pw.status, Status: strconv.Itoa(pw.status) + " " + http.StatusText(pw.status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: pw.sent, Body: &pipeBody{PipeReader: r}, ContentLength: -1, Request: req}
	stop := make(chan struct{})
	resp.Body.(*pipeBody).stop = stop
	go func() {
		select {
		case <-req.Context().Done():
			r.CloseWithError(req.Context().Err())
		case <-done:
		case <-stop:
		}
	}()
	return resp, nil
}

type pipeBody struct {
	*io.PipeReader
	once sync.Once
	stop chan struct{}
}

func (b *pipeBody) Close() error {
	b.once.Do(func() { close(b.stop) })
	return b.PipeReader.Close()
}

type pipeWriter struct {
	head, sent http.Header
	status     int
	body       io.Writer
	once       sync.Once
	begun      chan struct{}
}

func (w *pipeWriter) Header() http.Header { return w.head }

func (w *pipeWriter) WriteHeader(status int) {
	w.once.Do(func() {
		w.status, w.sent = status, w.head.Clone()
		close(w.begun)
	})
}

func (w *pipeWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

// Flush does nothing: a pipe holds nothing back.
func (w *pipeWriter) Flush() {}
