package inbound

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// drainTime is how long Body.End waits for the rest of a body. The end of a chunked
// response waits as long.
const drainTime = 100 * time.Millisecond

// Body is the body of an HTTP/1 request whose handler may respond before it has read the
// whole body. net/http uses the connection of such a request again although bytes of the
// body may follow, which it then takes for a request. End and Abort prevent that. The
// methods of a nil Body do nothing.
type Body struct {
	io.ReadCloser
	w   http.ResponseWriter
	eof atomic.Bool

	mu    sync.Mutex // held by Read
	ended bool       // nothing more is read
}

// FullDuplex lets a handler respond before it has read the request's body. It returns the
// request with a body for which the handler calls End or Abort before it returns, or nil
// if there is no body or the protocol is HTTP/2, which allows that anyway.
func FullDuplex(w http.ResponseWriter, r *http.Request) (*http.Request, *Body) {
	if r.ProtoMajor != 1 || r.ContentLength == 0 || r.Body == nil {
		return r, nil
	}
	// It fails only if the writer is not a network connection.
	_ = http.NewResponseController(w).EnableFullDuplex()
	b := &Body{ReadCloser: r.Body, w: w}
	duplex := *r
	duplex.Body = b
	return &duplex, b
}

func (b *Body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.eof.Store(true)
	}
	return n, err
}

// End ends a request that was answered. A short rest of the body is read, so that the
// connection can be used again; if the body does not end, the connection ends after the
// response. It changes the deadline for reading.
func (b *Body) End() {
	if b == nil || b.eof.Load() {
		return
	}
	b.interrupt(time.Now().Add(drainTime))
	if b.eof.Load() {
		return
	}
	if _, err := io.CopyN(io.Discard, b.ReadCloser, maxUnread); err != io.EOF {
		CloseAfter(b.w)
	}
}

// Abort ends a request whose connection is closed without a whole response. It changes
// the deadline for reading.
func (b *Body) Abort() {
	if b != nil && !b.eof.Load() {
		b.interrupt(time.Unix(1, 0))
	}
}

// interrupt makes reads fail. One that waits for the client ends at this time: net/http
// would end it by removing the deadline, and then wait for the rest without one.
func (b *Body) interrupt(at time.Time) {
	_ = http.NewResponseController(b.w).SetReadDeadline(at)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
}

// CloseAfter closes the connection of an HTTP/1 request that net/http serves after its
// response, also if the response's header was sent.
func CloseAfter(w http.ResponseWriter) {
	for {
		outer, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			break
		}
		w = outer.Unwrap()
	}
	// Only a body that exceeds its limit makes net/http do so once the header was sent.
	_, _ = http.MaxBytesReader(w, io.NopCloser(strings.NewReader("x")), 0).Read(make([]byte, 1))
}
