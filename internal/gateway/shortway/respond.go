package shortway

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Respond writes a response to a user's request. It returns false if that ended early. large
// counts the large buffers of the user.
func Respond(w http.ResponseWriter, res *http.Response, large *atomic.Int32) bool {
	h := w.Header()
	for name, values := range res.Header {
		if h[name] == nil {
			h[name] = values
			continue
		}
		h[name] = append(h[name], values...)
	}
	announced := len(res.Trailer)
	if announced > 0 {
		h["Trailer"] = append(h["Trailer"], strings.Join(slices.Collect(maps.Keys(res.Trailer)), ", "))
	}
	w.WriteHeader(res.StatusCode)
	if err := copyBody(w, res.Body, large); err != nil {
		return false
	}
	if len(res.Trailer) == 0 {
		return true
	}
	// Without this net/http could give a short body a length instead of trailers.
	_ = http.NewResponseController(w).Flush()
	prefix := http.TrailerPrefix
	if len(res.Trailer) == announced {
		prefix = ""
	}
	for name, values := range res.Trailer {
		h[prefix+name] = append(h[prefix+name], values...)
	}
	return true
}

// copyBody copies a body to a user's client, and flushes whenever the container has to be
// waited for.
func copyBody(w http.ResponseWriter, body io.Reader, taken *atomic.Int32) error {
	source, _ := body.(interface{ Waits() bool })
	b := Buffers.Get()
	defer Buffers.Put(b)
	var large []byte
	defer func() { largeBuffers.put(large, taken) }()
	into := b
	for copied := 0; ; {
		if source == nil || source.Waits() {
			if err := http.NewResponseController(w).Flush(); err != nil {
				return err
			}
		}
		n, err := body.Read(into)
		// In small parts, because a client that needs too long for one is disconnected.
		for part := range slices.Chunk(into[:n], bufferSize) {
			if _, err := w.Write(part); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if copied += n; large == nil && copied >= largeBody && n == len(into) {
			if large = largeBuffers.get(taken); large != nil {
				into = large
			}
		}
	}
}

// After largeBody bytes, a body is read into a larger buffer if the container sends faster
// than the proxy reads. Fewer, larger reads need about 40 % less processor time. A body for
// which none of the buffers is free, or whose user has maxLargePerUser of them, continues
// with a small one.
const (
	largeBody       = 1 << 20
	largeBufferSize = 512 << 10
	maxLargeBuffers = 32
	maxLargePerUser = 8
)

var largeBuffers = &limitedPool{taken: make(chan struct{}, maxLargeBuffers), pool: sync.Pool{New: func() any { return new([largeBufferSize]byte) }}}

// limitedPool reuses a limited number of large buffers.
type limitedPool struct {
	taken chan struct{}
	pool  sync.Pool
}

// get returns a buffer, or nil if all are taken, or those of the user.
func (l *limitedPool) get(user *atomic.Int32) []byte {
	if user.Add(1) <= maxLargePerUser {
		select {
		case l.taken <- struct{}{}:
			return l.pool.Get().(*[largeBufferSize]byte)[:]
		default:
		}
	}
	user.Add(-1)
	return nil
}

// put takes back what get has returned for the user.
func (l *limitedPool) put(b []byte, user *atomic.Int32) {
	if b != nil {
		l.pool.Put((*[largeBufferSize]byte)(b))
		<-l.taken
		user.Add(-1)
	}
}

const bufferSize = 32 << 10

// Buffers are for copying; also an httputil.BufferPool.
var Buffers = &bufferPool{sync.Pool{New: func() any { return new([bufferSize]byte) }}}

// bufferPool reuses copy buffers.
type bufferPool struct{ pool sync.Pool }

func (b *bufferPool) Get() []byte  { return b.pool.Get().(*[bufferSize]byte)[:] }
func (b *bufferPool) Put(p []byte) { b.pool.Put((*[bufferSize]byte)(p)) }
