package transfer

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

const defaultStall = time.Minute

// FailStalled returns a transport whose response bodies fail when one Read
// waits longer than stall for data; 0: 1 min. The request is then cancelled, so
// that its connection is not used again. The time between two Reads does not
// count.
func FailStalled(next http.RoundTripper, stall time.Duration) http.RoundTripper {
	return &stallTransport{next: next, stall: cmp.Or(stall, defaultStall)}
}

type stallTransport struct {
	next  http.RoundTripper
	stall time.Duration
}

func (t *stallTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	res, err := t.next.RoundTrip(req.WithContext(ctx))
	if err != nil {
		cancel(nil)
		return nil, err
	}
	res.Body = &stallBody{ReadCloser: res.Body, ctx: ctx, cancel: cancel, stall: t.stall}
	return res, nil
}

type stallBody struct {
	io.ReadCloser
	ctx    context.Context
	cancel context.CancelCauseFunc
	stall  time.Duration
}

// stallError is the error of a response body that sent no data for this long.
type stallError time.Duration

func (e stallError) Error() string {
	return fmt.Sprintf("the bucket sent no data for %s", time.Duration(e))
}

func (b *stallBody) Read(p []byte) (int, error) {
	timer := time.AfterFunc(b.stall, func() { b.cancel(stallError(b.stall)) })
	n, err := b.ReadCloser.Read(p)
	timer.Stop()
	if err != nil && err != io.EOF {
		if stalled, ok := context.Cause(b.ctx).(stallError); ok {
			err = stalled // the transport may return only that the request was cancelled
		}
	}
	return n, err
}

// Close cancels the request first, so that it does not wait for the bucket.
func (b *stallBody) Close() error {
	b.cancel(nil)
	return b.ReadCloser.Close()
}
