package signin

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"codehub/internal/base/setting"
)

const (
	// requestTimeout bounds a request to a provider.
	requestTimeout = 10 * time.Second
	// maxAnswer bounds what a provider may answer.
	maxAnswer = 1 << 20
	// keysInterval is how often the keys of a provider may be fetched, also if that fails. A token with an
	// unknown key, which anyone can send to the logout address, causes a fetch.
	keysInterval = 5 * time.Second
)

// newClient returns the client for one provider. It follows no redirects: they could carry
// the client's secret elsewhere.
func newClient(caFile string) (*http.Client, error) {
	t := http.DefaultTransport.(*http.Transport).Clone()
	if caFile != "" {
		pem, err := setting.ReadFile(caFile)
		if err != nil {
			return nil, fmt.Errorf("read ca_file: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, errors.New("ca_file has no certificate in PEM")
		}
		t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return &http.Client{
		Timeout:       requestTimeout,
		Transport:     &transport{next: t},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// errKeys: the provider did not send its keys, so that no token can be verified.
var errKeys = errors.New("the provider's keys could not be fetched")

// transport bounds answers, and answers repeated requests for the keys itself.
type transport struct {
	next http.RoundTripper

	mu   sync.Mutex
	keys string // address of the keys; empty: not known yet
	last *fetch // of the keys; nil: none yet
}

// fetch is a request for the keys, which all that want them meanwhile share.
type fetch struct {
	done chan struct{} // is closed at the end; what follows is written before
	at   time.Time
	body []byte
	head http.Header
	err  error // wraps errKeys
}

// fresh reports whether the fetch is running, or ended a moment ago.
func (f *fetch) fresh() bool {
	select {
	case <-f.done:
		return time.Since(f.at) < keysInterval
	default:
		return true
	}
}

// keysAt sets the address of the keys.
func (t *transport) keysAt(address string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.keys = address
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	f, begin := t.fetchOf(r)
	switch {
	case f == nil:
		return t.bounded(r)
	case begin:
		f.head, f.body, f.err = t.fetchKeys(r)
		f.at = time.Now()
		close(f.done)
	default:
		select {
		case <-f.done:
		case <-r.Context().Done():
			return nil, fmt.Errorf("%w: %w", errKeys, r.Context().Err())
		}
	}
	if f.err != nil {
		return nil, f.err
	}
	return &http.Response{
		Status: "200 OK", StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: f.head.Clone(), Body: io.NopCloser(bytes.NewReader(f.body)), ContentLength: int64(len(f.body)), Request: r,
	}, nil
}

// fetchOf returns the fetch that answers a request, and whether the caller has to do it; nil
// for a request that is not one for the keys.
func (t *transport) fetchOf(r *http.Request) (f *fetch, begin bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.keys == "" || r.Method != http.MethodGet || r.URL.String() != t.keys {
		return nil, false
	}
	if t.last == nil || !t.last.fresh() {
		t.last, begin = &fetch{done: make(chan struct{})}, true
	}
	return t.last, begin
}

func (t *transport) fetchKeys(r *http.Request) (http.Header, []byte, error) {
	resp, err := t.bounded(r)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errKeys, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, nil, fmt.Errorf("%w: status %d", errKeys, resp.StatusCode)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errKeys, err)
	}
	return resp.Header.Clone(), b, nil
}

func (t *transport) bounded(r *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	resp.Body = &boundedBody{ReadCloser: resp.Body, left: maxAnswer}
	return resp, nil
}

type boundedBody struct {
	io.ReadCloser
	left int
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errors.New("the provider's answer is too large")
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
