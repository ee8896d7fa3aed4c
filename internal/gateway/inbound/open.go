package inbound

import (
	"bytes"
	"container/list"
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// MaxOpenBody bounds the body of a request without a session, such as a login.
	MaxOpenBody = 16 << 10
	// maxOpenBodies is how many such bodies are read at a time: 8 MiB in all.
	maxOpenBodies = 512
	// floodBodies is how many of them are a flood; calmBodies is when it is over.
	floodBodies, calmBodies = 128, 64
	// floodGC is the garbage, in percent of the heap, at which it is collected in a flood.
	floodGC = 20
	// releaseEvery is how often memory is returned to the system in a flood.
	releaseEvery = time.Second
	// openStreams is how many requests an HTTP/2 connection can have at a time on which
	// no user has logged in. A login page needs half as many.
	openStreams = 16
)

// OpenBodies reads the bodies of requests without a session. The zero value is ready.
type OpenBodies struct {
	mu      sync.Mutex
	reading list.List // of *openBody, the oldest first

	flooded  bool
	percent  int // of garbage, without a flood
	released time.Time
}

// openBody is a body that is being read.
type openBody struct {
	rc      *http.ResponseController
	dropped bool
}

// errDropped is the error of a body that had to make room for another one.
var errDropped = errors.New("the body did not arrive before too many others")

// Read is ReadBody with the limit MaxOpenBody. While too many bodies are read, the one that
// has been read longest fails: a client that sends its whole body is done at once.
func (b *OpenBodies) Read(w http.ResponseWriter, r *http.Request, within time.Duration) ([]byte, error) {
	if r.ContentLength > MaxOpenBody {
		return nil, &http.MaxBytesError{Limit: MaxOpenBody}
	}
	if r.ContentLength == 0 || r.Body == nil {
		return nil, nil
	}
	this := &openBody{rc: http.NewResponseController(w)}
	b.mu.Lock()
	at := b.reading.PushBack(this)
	if b.reading.Len() > maxOpenBodies {
		oldest := b.reading.Remove(b.reading.Front()).(*openBody)
		oldest.dropped = true
		// Its Read cannot return meanwhile, so its request has not ended.
		_ = oldest.rc.SetReadDeadline(time.Unix(1, 0))
	}
	b.weigh()
	b.mu.Unlock()
	body, err := ReadBody(w, r, MaxOpenBody, within)
	b.mu.Lock()
	if this.dropped {
		b.mu.Unlock()
		return nil, errDropped
	}
	b.reading.Remove(at)
	b.weigh()
	release := err == nil && b.flooded && time.Since(b.released) >= releaseEvery
	if release {
		b.released = time.Now()
	}
	b.mu.Unlock()
	if release {
		// The request goes on, and a login takes 64 MiB: not on top of the flood's garbage.
		debug.FreeOSMemory()
	}
	return body, err
}

// weigh makes Go collect garbage earlier while many bodies are read: a flood of requests
// leaves far more garbage than its bodies take. The caller holds mu.
func (b *OpenBodies) weigh() {
	switch n := b.reading.Len(); {
	case !b.flooded && n >= floodBodies:
		b.flooded, b.percent = true, debug.SetGCPercent(floodGC)
	case b.flooded && n <= calmBodies:
		b.flooded = false
		debug.SetGCPercent(b.percent)
	}
}

// ReadBody reads a request's body, which has to arrive within a time. The error is an
// *http.MaxBytesError if the body is larger than limit; a declared length is checked before
// anything is read. After an error the connection of an HTTP/1 request ends with the response, which says so.
func ReadBody(w http.ResponseWriter, r *http.Request, limit int64, within time.Duration) (_ []byte, err error) {
	defer func() {
		if err != nil && r.ProtoMajor == 1 {
			w.Header().Set("Connection", "close") // a client would send its next request on it
		}
	}()
	if r.ContentLength > limit {
		return nil, &http.MaxBytesError{Limit: limit}
	}
	// It fails only if the writer is not a network connection.
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(within))
	size := r.ContentLength
	if size < 0 || size > MaxOpenBody {
		size = MaxOpenBody // a buffer that grows would leave more garbage than that
	}
	body := bytes.NewBuffer(make([]byte, 0, bytes.MinRead+size))
	if _, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, limit)); err != nil {
		return nil, err
	}
	// A deadline that passes later would look like a client that has disconnected.
	_ = rc.SetReadDeadline(time.Time{})
	return body.Bytes(), nil
}

// AnswerEarly lets h respond before it has read the request's body. Without it net/http
// waits for the body of an HTTP/1 request before it sends a response.
func AnswerEarly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet || r.Method == http.MethodHead { // it may continue, or hijack the connection
			h.ServeHTTP(w, r)
			return
		}
		r, body := FullDuplex(w, r)
		defer body.End()
		h.ServeHTTP(w, r)
	})
}

type streamsKey struct{}

// streams are the requests of an HTTP/2 connection.
type streams struct {
	open  atomic.Int32
	known atomic.Bool // a user has sent one of them
}

// CountStreams returns an http.Server's ConnContext for LimitStreams. Connections of exempt
// addresses have no limit: those of reverse proxies belong to many users.
func CountStreams(exempt func(netip.Addr) bool) func(context.Context, net.Conn) context.Context {
	return func(ctx context.Context, c net.Conn) context.Context {
		if tcp, ok := c.RemoteAddr().(*net.TCPAddr); ok && exempt(tcp.AddrPort().Addr().Unmap()) {
			return ctx
		}
		return context.WithValue(ctx, streamsKey{}, &streams{})
	}
}

// LimitStreams limits the requests to h of an HTTP/2 connection on which no user has logged
// in. It calls refuse for those above the limit, unless known reports that a user sends the
// request.
func LimitStreams(known func(*http.Request) bool, refuse http.HandlerFunc, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s, ok := r.Context().Value(streamsKey{}).(*streams)
		if !ok || r.ProtoMajor < 2 || s.known.Load() {
			h.ServeHTTP(w, r)
			return
		}
		defer s.open.Add(-1)
		if s.open.Add(1) > openStreams {
			if !known(r) {
				refuse(w, r)
				return
			}
			s.known.Store(true)
		}
		h.ServeHTTP(w, r)
	})
}
