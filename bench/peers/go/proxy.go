// The peer: net/http's server, httputil.ReverseProxy and net/http's HTTP/2 transport with PING, as a Go programmer
// would write it. Bodies up to 16 MiB are kept, so that the transport can send again what a GOAWAY refused.
package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"sync"
	"time"
)

const keptBytes = 16 << 20

type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte       { return *b.pool.Get().(*[]byte) }
func (b *buffers) Put(buffer []byte) { b.pool.Put(&buffer) }

func proxy(args []string) error {
	flags := flag.NewFlagSet("proxy", flag.ExitOnError)
	listen := flags.String("listen", "127.0.0.1:0", "address to listen on")
	upstream := flags.String("upstream", "", "https URL to forward to")
	authority := flags.String("ca-file", "", "PEM file of the authority to trust")
	pingInterval := flags.Duration("ping-interval", time.Minute, "PING after this much silence")
	pingTimeout := flags.Duration("ping-timeout", 15*time.Second, "a connection without an answer for this long is dead")
	flags.Parse(args)

	target, err := url.Parse(*upstream)
	if err != nil {
		return err
	}
	pem, err := os.ReadFile(*authority)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return errors.New("no certificate in -ca-file")
	}
	transport := &http.Transport{
		TLSClientConfig:    &tls.Config{RootCAs: roots},
		ForceAttemptHTTP2:  true,
		DisableCompression: true,
		HTTP2:              &http.HTTP2Config{SendPingTimeout: *pingInterval, PingTimeout: *pingTimeout},
	}
	handler := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
		},
		Transport:  transport,
		BufferPool: &buffers{sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}},
		ErrorLog:   log.New(io.Discard, "", 0),
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	return http.Serve(listener, kept(handler))
}

// kept reads a body that is small enough before it is sent on, and lets the transport read it again.
func kept(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if 0 < r.ContentLength && r.ContentLength <= keptBytes {
			body := make([]byte, r.ContentLength)
			if _, err := io.ReadFull(r.Body, body); err != nil {
				http.Error(w, "body", http.StatusBadRequest)
				return
			}
			r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
			r.Body, _ = r.GetBody()
		}
		next.ServeHTTP(w, r)
	})
}
