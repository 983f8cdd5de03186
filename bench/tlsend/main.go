// Command tlsend is the far end of the credential gateway's measurement: an API over TLS
// that answers small, or streams so many bytes.
package main

import (
	"flag"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"

	"patchbay/bench/tlsrelay/pair"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:7300", "listen here")
	cert := flag.String("cert", "", "write the certificate here")
	flag.Parse()
	leaf, err := pair.Own("127.0.0.1")
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(*cert, leaf.PEM, 0o644); err != nil {
		log.Fatal(err)
	}
	small := []byte(`{"id":4711,"state":"open","title":"an invoice like many","amount":1200,"currency":"EUR"}`)
	chunk := make([]byte, 256<<10)
	for i := range chunk {
		chunk[i] = "0123456789abcdefghijklmnopqrstuvwxyz\n"[i%37]
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/small", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Write(small)
	})
	mux.HandleFunc("/post", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.Write(small)
	})
	mux.HandleFunc("/big", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.ParseInt(r.URL.Query().Get("n"), 10, 64)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
		for n > 0 {
			part := chunk[:min(n, int64(len(chunk)))]
			if _, err := w.Write(part); err != nil {
				return
			}
			n -= int64(len(part))
		}
	})
	s := &http.Server{Addr: *addr, Handler: mux, TLSConfig: leaf.Server()}
	s.ErrorLog = log.New(io.Discard, "", 0) // a port that is only tried
	log.Fatal(s.ListenAndServeTLS("", ""))
}
