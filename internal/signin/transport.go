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
)

const (
	// requestTimeout bounds a request to a provider.
	requestTimeout = 10 * time.Second
	// maxAnswer bounds what a provider may answer.
	maxAnswer = 1 << 20
	// keysInterval is how often the keys of a provider may be fetched. A token with an
	// unknown key, which anyone can send to the logout address, causes a fetch.
	keysInterval = 5 * time.Second
)

// newClient returns the client for one provider. It follows no redirects: they could carry
// the client's secret elsewhere.
func newClient(caFile string) (*http.Client, error) {
	t := http.DefaultTransport.(*http.Transport).Clone()
	if caFile != "" {
		pem, err := readBounded(caFile)
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

// transport bounds answers, and answers repeated requests for the keys itself.
type transport struct {
	next http.RoundTripper

	mu   sync.Mutex
	keys string // address of the keys; empty: not known yet
	at   time.Time
	body []byte
	head http.Header
}

// keysAt sets the address of the keys.
func (t *transport) keysAt(address string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.keys = address
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	t.mu.Lock()
	if t.keys == "" || r.Method != http.MethodGet || r.URL.String() != t.keys {
		t.mu.Unlock()
		return t.bounded(r)
	}
	defer t.mu.Unlock() // fetches of the keys take turns
	if t.body != nil && time.Since(t.at) < keysInterval {
		return &http.Response{
			Status: "200 OK", StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header: t.head.Clone(), Body: io.NopCloser(bytes.NewReader(t.body)), ContentLength: int64(len(t.body)), Request: r,
		}, nil
	}
	resp, err := t.bounded(r)
	if err != nil || resp.StatusCode != http.StatusOK {
		return resp, err
	}
	b, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil {
		return nil, err
	}
	t.body, t.head, t.at = b, resp.Header.Clone(), time.Now()
	resp.Body = io.NopCloser(bytes.NewReader(b))
	return resp, nil
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
