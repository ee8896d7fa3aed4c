package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// lasts is how long a term goes on without a good beat. It is less than
	// hungAfter, by more than two clocks drift apart meanwhile: the term of one
	// leader has ended before the next begins.
	lasts = 10 * time.Second
	// statement bounds what is done with the session at once.
	statement = time.Minute
)

// ErrOver is what every use of a session says, and Alive, once the term that
// it was given for is over.
var ErrOver = errors.New("this server does not lead any more")

// Session is the database session that holds the leader's lock, for the time
// of one term. It is safe for concurrent use.
type Session struct {
	conn *pgx.Conn
	self backend
	last leader        // who led before this term
	line line          // to the database, to look at without using it
	lock chan struct{} // holds an element while somebody uses conn

	ctx    context.Context // ends with the session, with the reason as its cause
	cancel context.CancelCauseFunc

	mu   sync.Mutex
	good time.Duration // when the last good beat was sent, see now
	over error
}

func newSession(ctx context.Context, conn *pgx.Conn, self backend, sent time.Duration, last leader) *Session {
	s := &Session{conn: conn, self: self, last: last, line: lineOf(conn.PgConn().Conn()), lock: make(chan struct{}, 1), good: sent}
	s.ctx, s.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	return s
}

// Gap is for how long no leader had beaten when this term began, by the
// database's clock: negative if that clock was set back. led is false if no
// server ever led.
func (s *Session) Gap() (gap time.Duration, led bool) { return s.last.age, s.last.replica != "" }

// Do runs f with the session while nobody else uses it. The end of ctx keeps f
// from being begun and does not break it off: a statement that is broken off
// costs the connection, and with it the leadership. What f gets as its context
// ends with the term, and after a minute.
func (s *Session) Do(ctx context.Context, f func(ctx context.Context, conn *pgx.Conn) error) error {
	select {
	case s.lock <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-s.ctx.Done():
		return s.Alive()
	}
	defer func() { <-s.lock }()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.Alive(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statement)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	err := f(ctx, s.conn)
	if s.conn.IsClosed() {
		s.end(fmt.Errorf("its session is gone: %w", err))
	}
	return err
}

// Alive says why this process does not lead any more, or nil. It asks nobody:
// it looks at the time since the last good beat, and whether the database has
// hung up. A process that stood still and goes on finds out right here. What has
// once ended does not begin again.
func (s *Session) Alive() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over != nil {
		return s.over
	}
	if silent := now() - s.good; silent >= lasts {
		s.endLocked(fmt.Errorf("no beat has reached the database for %s", silent.Round(time.Millisecond)))
	} else if s.hungUp() {
		s.endLocked(errors.New("the database has ended its session"))
	}
	return s.over
}

func (s *Session) hungUp() bool {
	select {
	case s.lock <- struct{}{}:
		defer func() { <-s.lock }()
		return s.line.hungUp(true)
	default:
		return s.line.hungUp(false)
	}
}

// beaten counts a good beat that was sent then.
func (s *Session) beaten(sent time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now()-s.good < lasts {
		s.good = max(s.good, sent)
	}
}

// left is how much of the term is left without another beat.
func (s *Session) left() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.good + lasts - now()
}

func (s *Session) end(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over == nil {
		s.endLocked(why)
	}
}

func (s *Session) endLocked(why error) {
	s.over = fmt.Errorf("%w: %w", ErrOver, why)
	s.cancel(s.over)
}

// close ends the session in the database, and with it the lock. Somebody who
// hangs with the connection loses it under their hands.
func (s *Session) close(ctx context.Context) {
	wait := time.NewTimer(time.Second)
	defer wait.Stop()
	select {
	case s.lock <- struct{}{}: // and never given back
		goodbye(ctx, s.conn)
	case <-wait.C:
		s.line.cut()
	}
}
