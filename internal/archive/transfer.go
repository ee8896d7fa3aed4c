package archive

import (
	"bytes"
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

// Transfer moves objects by URLs that were signed for just that: what a storage
// job has, which gets none of the bucket's credentials (design §11). It tries
// again what failed in passing, and goes on where a download broke off.
type Transfer struct {
	client  *http.Client
	backoff time.Duration // before the second try; doubles
	stall   time.Duration // without a byte, after which a connection is given up
	// partLimit is how long one part of an upload may take.
	partLimit time.Duration
}

const tries = 4

// NewTransfer makes a Transfer with connections of its own.
func NewTransfer() *Transfer { return newTransfer(NewTransport(), transferBackoff) }

const transferBackoff = 500 * time.Millisecond

// NewTransferOver makes a Transfer whose requests all go over connections that
// dial makes, in plain HTTP whatever the scheme of the URLs: to a relay that
// speaks to the bucket on its behalf. What the URLs' signatures cover, the host
// among it, stays. backoff is about how long it waits before a second try; each
// further wait is twice as long.
func NewTransferOver(dial func(ctx context.Context) (net.Conn, error), backoff time.Duration) *Transfer {
	t := NewTransport()
	t.Proxy = nil
	t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }
	t.WriteBufferSize, t.ReadBufferSize = 64<<10, 64<<10
	return newTransfer(plain{t}, backoff)
}

// plain sends all requests in plain HTTP.
type plain struct{ next http.RoundTripper }

func (p plain) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.URL.Scheme = "http"
	return p.next.RoundTrip(req)
}

func newTransfer(transport http.RoundTripper, backoff time.Duration) *Transfer {
	return &Transfer{
		client: &http.Client{
			Transport: transport,
			// A bucket that sends us elsewhere is not the one that was meant.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		backoff:   backoff,
		stall:     time.Minute,
		partLimit: 10 * time.Minute,
	}
}

// NewTransport makes what speaks to buckets: it waits for no answer for ever.
func NewTransport() *http.Transport {
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		ForceAttemptHTTP2:     true,
		MaxIdleConnsPerHost:   8,
		IdleConnTimeout:       time.Minute,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: time.Minute,
		DisableCompression:    true, // what is sent is what is stored
	}
}

// answerError is an answer of a bucket that is not the one wished for.
type answerError struct {
	status  int
	Code    string `xml:"Code"`
	Message string `xml:"Message"`
}

func (e *answerError) Error() string {
	return fmt.Sprintf("bucket answered %d %s: %.200s", e.status, e.Code, e.Message)
}

// passing tells whether another try may go better.
func passing(err error) bool {
	var answer *answerError
	if !errors.As(err, &answer) {
		return true // no answer, or half of one
	}
	switch answer.status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	}
	return answer.status >= 500 || answer.status == http.StatusOK || answer.Code == "RequestTimeout"
}

// retry calls f until it succeeds, fails for good or was called often enough.
func (t *Transfer) retry(ctx context.Context, f func() error) error {
	wait := t.backoff
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

// do sends one request; the answer is one of 2xx.
func (t *Transfer) do(ctx context.Context, method, url string, body []byte, headers map[string]string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("malformed URL of a bucket")
	}
	for k, v := range headers {
		req.Header.Set(k, v)
	}
	res, err := t.client.Do(req)
	if err != nil {
		return nil, withoutURL(err)
	}
	if res.StatusCode/100 == 2 {
		return res, nil
	}
	defer res.Body.Close()
	return nil, readAnswer(res)
}

// withoutURL strips the URL, whose signature is as good as a password for a
// while, from an error that will be logged.
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
	if err == nil && xml.Unmarshal(b, e) != nil {
		e.Message = string(b)
	}
	return e
}

// classify gives an error of a request its kind.
func classify(ctx context.Context, doing string, err error) error {
	var answer *answerError
	if errors.As(err, &answer) && answer.status == http.StatusNotFound && answer.Code == "NoSuchKey" {
		return fmt.Errorf("%s: %w", doing, ErrNotFound)
	}
	return unavailable(ctx, doing, err)
}

// Put stores a small object, say a .meta, at a URL that Presigner.PresignPut made.
func (t *Transfer) Put(ctx context.Context, url string, content []byte) error {
	err := t.retry(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, t.partLimit)
		defer cancel()
		res, err := t.do(ctx, http.MethodPut, url, content, nil)
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

// Get reads an object from an offset, at a URL that Presigner.PresignGet made.
func (t *Transfer) Get(ctx context.Context, url string, offset int64) (io.ReadCloser, error) {
	return t.get(ctx, "get", func(context.Context) (string, error) { return url, nil }, offset)
}

// get asks for a URL anew for each connection: signatures expire.
func (t *Transfer) get(ctx context.Context, doing string, url func(context.Context) (string, error), offset int64) (io.ReadCloser, error) {
	own, cancel := context.WithCancelCause(ctx)
	d := &download{t: t, ctx: own, cancel: cancel, doing: doing, url: url, at: offset}
	if err := t.retry(own, d.connect); err != nil {
		d.Close()
		return nil, classify(ctx, doing, err)
	}
	return d, nil
}

// download is the body of an object, over as many connections as it takes.
type download struct {
	t      *Transfer
	ctx    context.Context
	cancel context.CancelCauseFunc
	doing  string
	url    func(context.Context) (string, error)
	at     int64
	etag   string
	body   io.ReadCloser // nil: there is nothing (left)
	quiet  *time.Timer   // ends the connection
	failed int           // connections since the last byte
}

func (d *download) connect() error {
	url, err := d.url(d.ctx)
	if err != nil {
		return err
	}
	headers := map[string]string{}
	if d.at > 0 {
		headers["Range"] = "bytes=" + strconv.FormatInt(d.at, 10) + "-"
	}
	if d.etag != "" {
		headers["If-Match"] = d.etag
	}
	ctx, cancel := context.WithCancel(d.ctx)
	res, err := d.t.do(ctx, http.MethodGet, url, nil, headers)
	if err != nil {
		cancel()
		var answer *answerError
		if errors.As(err, &answer) && answer.status == http.StatusRequestedRangeNotSatisfiable {
			return nil // the offset is the end, or past it
		}
		return err
	}
	if d.at > 0 && res.StatusCode != http.StatusPartialContent {
		cancel()
		res.Body.Close()
		return &answerError{status: res.StatusCode, Message: "a part was asked for, and the whole came"}
	}
	d.etag = res.Header.Get("ETag")
	d.quiet = time.AfterFunc(d.t.stall, cancel)
	d.body = &closing{res.Body, cancel}
	return nil
}

// closing ends the request with its body.
type closing struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (c *closing) Close() error {
	c.cancel()
	return c.ReadCloser.Close()
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
		d.quiet.Reset(d.t.stall)
		d.at += int64(n)
		if n > 0 {
			d.failed = 0
			return n, nil // an error comes again
		}
		if err == io.EOF {
			return 0, io.EOF
		}
		if err == nil {
			continue
		}
		d.quiet.Stop()
		d.body.Close()
		d.body = nil
		if d.failed++; d.failed == tries {
			return 0, unavailable(d.ctx, d.doing, err)
		}
		if err := pause(d.ctx, d.t.backoff<<(d.failed-1)); err != nil {
			return 0, fmt.Errorf("%s: %w", d.doing, err)
		}
		if err := d.t.retry(d.ctx, d.connect); err != nil {
			return 0, classify(d.ctx, d.doing, err)
		}
	}
}

func (d *download) Close() error {
	d.cancel(errors.New("reading was given up"))
	if d.body == nil {
		return nil
	}
	d.quiet.Stop()
	return d.body.Close()
}
