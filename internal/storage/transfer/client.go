package transfer

import (
	"bytes"
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"time"
)

// Client moves objects by pre-signed URLs, without the bucket's credentials. It
// retries transient failures and resumes interrupted downloads.
type Client struct {
	http    *http.Client
	backoff time.Duration
}

const (
	tries          = 4
	defaultBackoff = 500 * time.Millisecond
	partTimeout    = 10 * time.Minute // for one part of an upload
)

// Options configure a Client. The zero value is a client that reaches the bucket directly.
type Options struct {
	Transport http.RoundTripper // default: NewTransport
	Backoff   time.Duration     // before the second try; it doubles with each further one; default 500 ms
	Stall     time.Duration     // without a byte, after which a response fails and a download reconnects; default 1 min
}

// New returns a client with connections of its own.
func New(o Options) *Client {
	if o.Transport == nil {
		o.Transport = NewTransport()
	}
	return &Client{
		http: &http.Client{
			Transport: FailStalled(o.Transport, o.Stall),
			// A redirect would send data to a bucket that was not configured.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		backoff: cmp.Or(o.Backoff, defaultBackoff),
	}
}

// Over returns a transport whose connections are made by dial and speak plain
// HTTP whatever the scheme of the URL: for a relay that forwards to the bucket.
// What the signatures cover, the host included, is unchanged.
func Over(dial func(ctx context.Context) (net.Conn, error)) http.RoundTripper {
	t := NewTransport()
	t.Proxy = nil
	t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }
	t.WriteBufferSize, t.ReadBufferSize = 64<<10, 64<<10
	return plain{t}
}

// plain sends every request over plain HTTP.
type plain struct{ next http.RoundTripper }

func (p plain) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.URL.Scheme = "http"
	return p.next.RoundTrip(req)
}

// NewTransport returns a transport for buckets, with deadlines for connections
// and response headers, but not for bodies: see FailStalled.
func NewTransport() *http.Transport {
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		ForceAttemptHTTP2:     true,
		MaxIdleConnsPerHost:   8,
		IdleConnTimeout:       time.Minute,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: time.Minute,
		DisableCompression:    true, // objects are stored as sent
	}
}

// answerError is an error response of a bucket.
type answerError struct {
	status  int
	Code    string `xml:"Code"`
	Message string `xml:"Message"`
}

func (e *answerError) Error() string {
	return fmt.Sprintf("bucket responded %d %s: %.200s", e.status, e.Code, e.Message)
}

// passing reports whether a retry may succeed.
func passing(err error) bool {
	var answer *answerError
	if !errors.As(err, &answer) {
		return true // no response, or an incomplete one
	}
	switch answer.status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	}
	return answer.status >= 500 || answer.status == http.StatusOK || answer.Code == "RequestTimeout"
}

// retry calls f until it succeeds or fails permanently, at most tries times.
func (c *Client) retry(ctx context.Context, f func() error) error {
	wait := c.backoff
	for try := 1; ; try++ {
		err := f()
		if err == nil || try == tries || !passing(err) || ctx.Err() != nil {
			return err
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
		wait *= 2
	}
}

// pause waits for about d.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d/2 + rand.N(d/2+1))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// do sends one request and returns a response with a 2xx status.
func (c *Client) do(ctx context.Context, method, url string, body []byte, headers map[string]string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("malformed URL of a bucket")
	}
	for k, v := range headers {
		req.Header.Set(k, v)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, withoutURL(err)
	}
	if res.StatusCode/100 == 2 {
		return res, nil
	}
	defer res.Body.Close()
	return nil, readAnswer(res)
}

// withoutURL removes the URL from an error that will be logged, since its
// signature grants access.
func withoutURL(err error) error {
	var u interface{ Unwrap() error }
	if errors.As(err, &u) && u.Unwrap() != nil {
		return u.Unwrap()
	}
	return err
}

func readAnswer(res *http.Response) error {
	e := &answerError{status: res.StatusCode}
	b, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	if err != nil {
		e.Message = err.Error()
	} else if xml.Unmarshal(b, e) != nil {
		e.Message = string(b)
	}
	return e
}

// classify returns ErrNotFound for a missing object, and otherwise
// ErrUnavailable.
func classify(ctx context.Context, doing string, err error) error {
	var answer *answerError
	if errors.As(err, &answer) && answer.status == http.StatusNotFound && answer.Code == "NoSuchKey" {
		return fmt.Errorf("%s: %w", doing, ErrNotFound)
	}
	return unavailable(ctx, doing, err)
}

// Put stores a small object, such as a .meta, at a URL that was signed for it.
func (c *Client) Put(ctx context.Context, url string, content []byte) error {
	err := c.retry(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, partTimeout)
		defer cancel()
		res, err := c.do(ctx, http.MethodPut, url, content, nil)
		if err != nil {
			return err
		}
		return res.Body.Close()
	})
	if err != nil {
		return classify(ctx, "put", err)
	}
	return nil
}

// Get reads an object from an offset, at a URL that was signed for it.
func (c *Client) Get(ctx context.Context, url string, offset int64) (io.ReadCloser, error) {
	return c.Download(ctx, "get", func(context.Context) (string, error) { return url, nil }, offset, -1)
}

// Download is Get with a function that is called for the URL of each connection,
// as signatures expire, and with a length; -1: to the end. Errors begin with doing.
func (c *Client) Download(ctx context.Context, doing string, url func(context.Context) (string, error), offset, length int64) (io.ReadCloser, error) {
	own, cancel := context.WithCancelCause(ctx)
	d := &download{c: c, ctx: own, cancel: cancel, doing: doing, url: url, at: offset, end: -1}
	if length >= 0 {
		d.end = offset + length
	}
	if err := c.retry(own, d.connect); err != nil {
		d.Close()
		return nil, classify(ctx, doing, err)
	}
	return d, nil
}

// download is the body of an object, read over one or more connections.
type download struct {
	c      *Client
	ctx    context.Context
	cancel context.CancelCauseFunc
	doing  string
	url    func(context.Context) (string, error)
	at     int64
	end    int64 // -1: that of the object
	etag   string
	body   io.ReadCloser // nil: nothing left
	failed int           // connections since the last byte
}

func (d *download) connect() error {
	if d.at == d.end {
		return nil // nothing left
	}
	url, err := d.url(d.ctx)
	if err != nil {
		return err
	}
	headers := map[string]string{}
	if d.at > 0 || d.end > 0 {
		headers["Range"] = "bytes=" + strconv.FormatInt(d.at, 10) + "-"
	}
	if d.end > 0 {
		headers["Range"] += strconv.FormatInt(d.end-1, 10)
	}
	if d.etag != "" {
		headers["If-Match"] = d.etag
	}
	res, err := d.c.do(d.ctx, http.MethodGet, url, nil, headers)
	if err != nil {
		var answer *answerError
		if errors.As(err, &answer) && answer.status == http.StatusRequestedRangeNotSatisfiable {
			return nil // the offset is at or past the end
		}
		return err
	}
	if headers["Range"] != "" && res.StatusCode != http.StatusPartialContent {
		res.Body.Close()
		return &answerError{status: res.StatusCode, Message: "the bucket ignored the range"}
	}
	d.etag = res.Header.Get("ETag")
	d.body = res.Body
	return nil
}

func (d *download) Read(p []byte) (int, error) {
	for {
		if err := d.ctx.Err(); err != nil {
			return 0, fmt.Errorf("%s: %w", d.doing, context.Cause(d.ctx))
		}
		if d.body == nil {
			return 0, io.EOF
		}
		n, err := d.body.Read(p)
		d.at += int64(n)
		if n > 0 {
			d.failed = 0
			return n, nil // the next Read returns an error again
		}
		if err == io.EOF {
			return 0, io.EOF
		}
		if err == nil {
			continue
		}
		d.body.Close()
		d.body = nil
		if d.failed++; d.failed == tries {
			return 0, unavailable(d.ctx, d.doing, err)
		}
		if err := pause(d.ctx, d.c.backoff<<(d.failed-1)); err != nil {
			return 0, fmt.Errorf("%s: %w", d.doing, err)
		}
		if err := d.c.retry(d.ctx, d.connect); err != nil {
			return 0, classify(d.ctx, d.doing, err)
		}
	}
}

func (d *download) Close() error {
	d.cancel(errors.New("the reader was closed"))
	if d.body == nil {
		return nil
	}
	return d.body.Close()
}
