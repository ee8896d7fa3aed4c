package bucket

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"codehub/internal/storage/transfer"
)

// Relay listens on the socket that storage jobs of an S3 bucket have mounted,
// and forwards their requests to the bucket until ctx ends. It forwards only
// signed requests for this installation's archives and backups of homes. Any number of servers may
// share the socket's folder: one listens, and another takes over when it ends.
// Without such a socket it only waits for ctx.
func (b *Bucket) Relay(ctx context.Context) error {
	if b.SocketDir == "" {
		<-ctx.Done()
		return nil
	}
	// Without transfer.FailStalled: jobs give up a stalled response themselves,
	// which ends its request here.
	transport := transfer.NewTransport()
	transport.WriteBufferSize, transport.ReadBufferSize = 64<<10, 64<<10
	transport.MaxIdleConnsPerHost = 64
	defer transport.CloseIdleConnections()
	server := &http.Server{
		Handler:           b.relayHandler(transport),
		ReadHeaderTimeout: 30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          log.New(discard{}, "", 0), // jobs that were stopped cause errors here
	}
	// Jobs retry requests that are cut off here.
	defer server.Close()
	return b.listen(ctx, server)
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

func (b *Bucket) relayHandler(transport http.RoundTripper) http.Handler {
	proxy := &httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1,
		BufferPool:    newBuffers(),
		Rewrite: func(r *httputil.ProxyRequest) {
			e := r.In.Context().Value(endpointKey{}).(*endpoint)
			r.Out.URL.Scheme, r.Out.URL.Host = e.scheme, e.host
			r.Out.Host = e.host // the signature covers it
			header := http.Header{}
			for _, name := range passed {
				if v := r.In.Header.Values(name); len(v) > 0 {
					header[name] = v
				}
			}
			r.Out.Header = header
		},
		ErrorLog: log.New(discard{}, "", 0),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() == nil {
				b.Log.Warn("forward a storage job's request failed", "method", r.Method, "path", r.URL.Path, "err", err)
			}
			http.Error(w, "the bucket is not responding: "+err.Error(), http.StatusBadGateway)
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e, err := b.endpoint(r.Context())
		if err != nil {
			http.Error(w, "the bucket is not responding: "+err.Error(), http.StatusBadGateway)
			return
		}
		if err := e.permits(r); err != nil {
			b.Log.Warn("request on the bucket's socket refused", "method", r.Method, "host", r.Host, "path", r.URL.Path, "err", err)
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), endpointKey{}, e)))
	})
}

// passed lists the forwarded headers. Others that a signature does not cover,
// such as x-amz-copy-source, could change what the request does.
var passed = []string{"Content-Type", "Range", "If-Match", "User-Agent"}

// endpoint is the common part of the presigned URLs for this installation's
// keys.
type endpoint struct {
	scheme, host string
	path         string // before {workspace}/…
	installation string
}

type endpointKey struct{}

// endpoint signs a URL to find out, which may ask the bucket for its region.
func (b *Bucket) endpoint(ctx context.Context) (*endpoint, error) {
	b.mu.Lock()
	e := b.allowed
	b.mu.Unlock()
	if e != nil {
		return e, nil
	}
	signed, err := b.presigner.PresignGet(ctx, b.marker(), time.Minute)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(signed)
	if err != nil {
		return nil, errors.New("the bucket's URLs are malformed")
	}
	path, ok := strings.CutSuffix(u.Path, markerName)
	if !ok {
		return nil, fmt.Errorf("the bucket's URLs do not match %s", u.Path)
	}
	e = &endpoint{scheme: u.Scheme, host: u.Host, path: path, installation: b.Installation}
	b.mu.Lock()
	b.allowed = e
	b.mu.Unlock()
	return e, nil
}

// relayed reports whether jobs read or write objects of this kind.
func (k Kind) relayed() bool { return k == Home || k == Meta || k == Manifest || k == Pack }

// permits returns why a request must not be forwarded.
func (e *endpoint) permits(r *http.Request) error {
	if r.Host != e.host {
		return fmt.Errorf("host %.100q is not the bucket's", r.Host)
	}
	rest, ok := strings.CutPrefix(r.URL.Path, e.path)
	k := ParseKey(e.installation + "/" + rest)
	if !ok || r.URL.RawPath != "" || !k.Kind.relayed() {
		return fmt.Errorf("path %.300q is not an archive or backup of this installation", r.URL.Path)
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return errors.New("malformed query")
	}
	for _, name := range []string{"X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Signature"} {
		if len(query[name]) != 1 || query.Get(name) == "" {
			return errors.New("the URL is not signed")
		}
	}
	return nil
}
