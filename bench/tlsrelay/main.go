// Command tlsrelay is the yardstick of the credential gateway: the barest proxy that looks
// into a tunnel. It ends the client's TLS, reads each request, sends it on over TLS of its
// own, and hands the answer back unread. It knows no agent, no policy and no secret, and
// keeps no record.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"flag"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"sync"
	"time"

	"patchbay/bench/tlsrelay/pair"
)

type pool struct{ p sync.Pool }

func (b *pool) Get() []byte  { return *b.p.Get().(*[]byte) }
func (b *pool) Put(s []byte) { b.p.Put(&s) }

// inbox hands tunnels to the server of what is inside.
type inbox chan net.Conn

func (c inbox) Accept() (net.Conn, error) { return <-c, nil }
func (inbox) Close() error                { return nil }
func (inbox) Addr() net.Addr              { return &net.TCPAddr{} }

func main() {
	addr := flag.String("addr", "127.0.0.1:7301", "listen here")
	far := flag.String("far", "127.0.0.1:7300", "send everything here")
	trust := flag.String("trust", "", "the far end's certificate")
	cert := flag.String("cert", "", "write the relay's own certificate here")
	flag.Parse()
	host, _, err := net.SplitHostPort(*far)
	if err != nil {
		log.Fatal(err)
	}
	leaf, err := pair.Own(host)
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(*cert, leaf.PEM, 0o644); err != nil {
		log.Fatal(err)
	}
	known, err := os.ReadFile(*trust)
	if err != nil {
		log.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(known)
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "https", *far },
		Transport: &http.Transport{MaxIdleConns: 4096, MaxIdleConnsPerHost: 4096, IdleConnTimeout: 90 * time.Second, DisableCompression: true,
			TLSClientConfig: &tls.Config{RootCAs: roots}},
		FlushInterval: -1,
		BufferPool:    &pool{sync.Pool{New: func() any { s := make([]byte, 32<<10); return &s }}},
	}
	tunnels := make(inbox)
	go (&http.Server{Handler: proxy}).Serve(tunnels)
	log.Fatal(http.ListenAndServe(*addr, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		if _, err := io.WriteString(raw, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
			raw.Close()
			return
		}
		tunnels <- tls.Server(raw, leaf.Server())
	})))
}
