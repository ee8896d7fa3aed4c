// Package eventstream sends server-sent events. Over HTTP/1 an open stream takes its
// connection over from net/http and continues after its handler (package shortway),
// because streams are idle most of the time. Over HTTP/2 it stays an ordinary response.
package eventstream

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"codehub/internal/gateway/inbound"
	"codehub/internal/gateway/shortway"
)

// maxSent is how much a client may send while it reads a stream.
const maxSent = 4 << 10

// sendAt is how much a step may write before it is sent.
const sendAt = 16 << 10

var (
	errClientSends = errors.New("the client sends data during a stream")
	errPanic       = errors.New("a step panicked")
)

// Step writes the next events, and returns the time of the next call.
type Step func() (next time.Time, err error)

// Stream is a response of server-sent events. Its steps use it one at a time; Wake may
// be called at any time.
type Stream struct {
	w      http.ResponseWriter // nil after it has taken over its connection
	r      *http.Request       // likewise
	within time.Duration       // for one write
	ctx    context.Context
	cancel context.CancelFunc
	detach func() bool   // from the context of r
	wakeup chan struct{} // capacity 1; for streams that have not taken over a connection

	step Step
	end  func(error)
	next time.Time // of the next step
	out  []byte    // not sent yet
	cut  bool      // a write failed, so the client can receive no more

	// Of a stream that has taken over its connection:
	done     shortway.Done
	sent     int64
	received int
	mu       sync.Mutex
	conn     net.Conn // nil before
	woken    bool
}

// New returns a stream that answers r. The client has to receive each write within that
// time. Until Run is called, the handler can respond in another way.
func New(w http.ResponseWriter, r *http.Request, within time.Duration) *Stream {
	s := &Stream{w: w, r: r, within: within, wakeup: make(chan struct{}, 1)}
	if c := shortway.Of(r); c != nil {
		s.ctx, s.cancel = context.WithCancel(c.Context())
	} else {
		s.ctx, s.cancel = context.WithCancel(r.Context())
	}
	s.detach = context.AfterFunc(r.Context(), s.cancel)
	return s
}

// Context ends when the client has disconnected or the server shuts down.
func (s *Stream) Context() context.Context { return s.ctx }

// Wake requests a step. It does not block.
func (s *Stream) Wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.conn == nil:
		select {
		case s.wakeup <- struct{}{}:
		default:
		}
	case !s.woken:
		s.woken = true
		_ = s.conn.SetReadDeadline(time.Unix(1, 0)) // interrupts wait
	}
}

// Write adds to what is sent at the end of the step.
func (s *Stream) Write(p []byte) (int, error) {
	if s.out = append(s.out, p...); len(s.out) >= sendAt {
		return len(p), s.send()
	}
	return len(p), nil
}

// Run sends the header, and calls step at once, after each Wake and at the time that the
// previous step returned, until step returns an error or Context ends. Then it calls end
// with the reason; end may still write. If the stream takes over the connection, Run
// returns at once, the handler must return without a further use of the response, and
// the stream continues after that.
func (s *Stream) Run(step Step, end func(error)) {
	s.step, s.end, s.next = step, end, time.Now()
	if s.takeOver() {
		return
	}
	defer s.cancel()
	defer inbound.Stream(s.w, s.r)()
	err := errPanic
	defer func() { s.finish(err) }()
	for {
		if err = s.once(); err != nil {
			return
		}
		timer := time.NewTimer(time.Until(s.next))
		select {
		case <-timer.C:
		case <-s.wakeup:
		case <-s.ctx.Done():
		}
		timer.Stop()
	}
}

// Close releases a stream that does not Run.
func (s *Stream) Close() { s.cancel() }

// takeOver takes the connection over from net/http, which sends the header.
func (s *Stream) takeOver() bool {
	c := shortway.Of(s.r)
	if c == nil {
		return false
	}
	rc := http.NewResponseController(s.w)
	// The response ends with the connection.
	s.w.Header().Set("Transfer-Encoding", "identity")
	s.w.WriteHeader(http.StatusOK)
	if rc.Flush() != nil {
		return false
	}
	c.Begin(s.run)
	conn, _, err := rc.Hijack()
	if err != nil {
		c.Abort()
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.detach()
	s.conn, s.w, s.r, s.detach, s.wakeup = conn, nil, nil, nil, nil
	context.AfterFunc(s.ctx, s.Wake)
	return true
}

// run continues a stream that has taken over its connection.
func (s *Stream) run(done shortway.Done) {
	s.done = done
	go s.turn()
}

// turn waits and makes the steps that are due, for a stream that has taken over its
// connection. The next turn has a goroutine of its own: stacks grow in steps and do not
// shrink soon, so the stack of a stream that waits is new, and small.
func (s *Stream) turn() {
	err := errPanic
	defer func() {
		if err == nil {
			go s.turn()
			return
		}
		s.done(s.sent, shortway.Recovered(recover()))
	}()
	defer func() {
		if err != nil {
			defer s.conn.Close()
			defer s.cancel()
			s.finish(err)
		}
	}()
	if gone := s.wait(); gone != nil {
		s.cancel()
	}
	for err = s.once(); err == nil && s.due(); {
		err = s.once()
	}
}

// due reports whether the next step is due, and forgets the wake that requested it.
func (s *Stream) due() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	due := s.woken || !time.Now().Before(s.next)
	s.woken = false
	return due
}

// once is one step.
func (s *Stream) once() error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	next, err := s.step()
	if err != nil {
		return err
	}
	s.next = next
	return s.send()
}

// finish calls end and sends what it writes.
func (s *Stream) finish(why error) {
	s.end(why)
	if !s.cut {
		_ = s.send()
	}
}

// wait waits until the next step is due. The client has disconnected if it returns an
// error.
func (s *Stream) wait() error {
	for !s.due() {
		s.mu.Lock()
		var err error
		if !s.woken {
			err = s.conn.SetReadDeadline(s.next)
		}
		s.mu.Unlock()
		if err != nil {
			return err
		}
		var data [16]byte // the request has no body, so a client sends nothing
		n, err := s.conn.Read(data[:])
		if s.received += n; s.received > maxSent {
			return errClientSends
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	return nil
}

// send sends what was written.
func (s *Stream) send() error {
	if len(s.out) == 0 {
		return nil
	}
	err := s.write(s.out)
	s.out, s.cut = nil, err != nil
	return err
}

func (s *Stream) write(b []byte) error {
	if s.conn != nil {
		_ = s.conn.SetWriteDeadline(time.Now().Add(s.within))
		n, err := s.conn.Write(b)
		s.sent += int64(n)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			s.cancel() // the client has disconnected
		}
		return err
	}
	rc := http.NewResponseController(s.w)
	// It fails only if the writer is not a network connection.
	_ = rc.SetWriteDeadline(time.Now().Add(s.within))
	if _, err := s.w.Write(b); err != nil {
		return err
	}
	if err := rc.Flush(); err != nil {
		return err
	}
	// HTTP/2 resets a stream at its deadline, even if nothing is being written.
	_ = rc.SetWriteDeadline(time.Time{})
	return nil
}
