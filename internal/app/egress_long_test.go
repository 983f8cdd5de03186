//go:build long

package app_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

const (
	tenGB = 10 << 30
	// heapRoom is what both ends and the gateway may hold of a transfer, in bytes: this
	// process is all three.
	heapRoom = 48 << 20
)

// endless answers a GET with n bytes and counts what it could write; of a body it tells
// the length.
type endless struct {
	n       int64
	written atomic.Int64
	ended   atomic.Int64
}

func (e *endless) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer e.ended.Add(1)
	if r.Method == http.MethodPost {
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		fmt.Fprint(w, n)
		return
	}
	chunk := bytes.Repeat([]byte("abcdefgh"), 8<<10)
	for left := e.n; left > 0; left -= int64(len(chunk)) {
		if _, err := w.Write(chunk); err != nil {
			return
		}
		e.written.Add(int64(len(chunk)))
	}
}

// zeros is a body that is made as it is read.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// heapPeak is the greatest heap in use until it is stopped.
func heapPeak() (stop func() uint64) {
	done, peak := make(chan struct{}), make(chan uint64)
	go func() {
		var most uint64
		var m runtime.MemStats
		for tick := time.NewTicker(50 * time.Millisecond); ; {
			select {
			case <-tick.C:
				runtime.ReadMemStats(&m)
				most = max(most, m.HeapInuse)
			case <-done:
				tick.Stop()
				peak <- most
				return
			}
		}
	}()
	return func() uint64 { close(done); return <-peak }
}

// TestMuchGoesThrough: 10 GB each way, searched for the secret, held nowhere.
func TestMuchGoesThrough(t *testing.T) {
	o := newOutward(t, "{kind: bearer}", "")
	o.far.Config.Handler = (&endless{n: tenGB})
	c := o.client(t, false)
	c.Timeout = 0
	moves := func(method string, body io.Reader, want func(resp *http.Response) string) {
		t.Helper()
		runtime.GC()
		var before runtime.MemStats
		runtime.ReadMemStats(&before)
		stop, begun := heapPeak(), time.Now()
		resp, err := c.Do(o.asks(t, method, "/much", body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		wrong := want(resp)
		grown := int64(stop()) - int64(before.HeapInuse)
		t.Logf("%s of 10 GB: %s, the heap grew %d MB at most", method, time.Since(begun).Round(time.Second), grown>>20)
		if wrong != "" || resp.StatusCode != http.StatusOK || grown > heapRoom {
			t.Errorf("%s: %d %s; the heap grew %d MB and may %d", method, resp.StatusCode, wrong, grown>>20, heapRoom>>20)
		}
	}
	moves(http.MethodGet, nil, func(resp *http.Response) string {
		if n, err := io.Copy(io.Discard, resp.Body); n != tenGB || err != nil {
			return fmt.Sprint(n, " bytes came: ", err)
		}
		return ""
	})
	moves(http.MethodPost, io.LimitReader(zeros{}, tenGB), func(resp *http.Response) string {
		if b, err := io.ReadAll(resp.Body); string(b) != fmt.Sprint(int64(tenGB)) || err != nil {
			return fmt.Sprintf("the far end counted %s: %v", b, err)
		}
		return ""
	})
}

// TestAClientThatNeverReads: what it does not read is not taken from the far end either,
// and a minute later its request ends at both ends.
func TestAClientThatNeverReads(t *testing.T) {
	o := newOutward(t, "{kind: bearer}", "")
	e := &endless{n: tenGB}
	o.far.Config.Handler = e
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	stop := heapPeak()
	for _, h2 := range []bool{false, true} {
		c := o.client(t, h2)
		c.Timeout = 0
		resp, err := c.Do(o.asks(t, http.MethodGet, "/much", nil))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if (resp.ProtoMajor == 2) != h2 {
			t.Fatalf("asked for HTTP/2: %v, and it is %s", h2, resp.Proto)
		}
	}
	held := int64(-1)
	within(t, 20*time.Second, "the far end to be held up", func() bool {
		was := held
		held = e.written.Load()
		time.Sleep(300 * time.Millisecond)
		return held > 0 && held == was
	})
	if grown := int64(stop()) - int64(before.HeapInuse); held > heapRoom || grown > heapRoom {
		t.Errorf("%d bytes were taken for clients that read none, the heap grew %d MB", held, grown>>20)
	}
	if e.ended.Load() != 0 {
		t.Error("a client that is slow was cut at once")
	}
	within(t, 90*time.Second, "the far end's requests to end", func() bool { return e.ended.Load() == 2 })
	within(t, 5*time.Second, "the record", func() bool {
		rows := o.log(t, 2)
		return len(rows) == 2 && rows[0].State == "failed" && rows[1].State == "failed"
	})
}

// asks is a request with the placeholder as its bearer.
func (o *outward) asks(t *testing.T, method, path string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequest(method, "https://"+o.host+path, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+o.placeholder)
	return req
}
