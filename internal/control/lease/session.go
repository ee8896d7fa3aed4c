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
	// termTimeout is how long a term lasts after the last heartbeat. It is shorter
	// than hungTimeout by more than the clocks can drift apart and the term needs to
	// end, so that a term ends before the next leader's begins.
	termTimeout = 6 * time.Second
	// statementTimeout limits one use of the session.
	statementTimeout = time.Minute
)

// ErrOver is returned by every use of a session and by Alive after the term has
// ended.
var ErrOver = errors.New("this server is no longer the leader")

// Session is the database session that holds the leader's lock during one term. It
// is safe for concurrent use.
type Session struct {
	conn     *pgx.Conn
	self     backend
	previous leader        // the leader before this term
	raw      rawConn       // to check the connection without using it
	lock     chan struct{} // holds an element while conn is in use

	ctx    context.Context // ends with the session; its cause is the reason
	cancel context.CancelCauseFunc

	mu            sync.Mutex
	lastHeartbeat time.Duration // when the last successful heartbeat was sent; see now
	ended         error
}

func newSession(ctx context.Context, conn *pgx.Conn, self backend, sent time.Duration, last leader) *Session {
	s := &Session{conn: conn, self: self, previous: last, raw: rawConnOf(conn.PgConn().Conn()), lock: make(chan struct{}, 1), lastHeartbeat: sent}
	s.ctx, s.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	return s
}

// Gap returns for how long there was no heartbeat when this term began, by the
// database's clock: negative if that clock was set back. led is false if there was
// no leader before.
func (s *Session) Gap() (gap time.Duration, led bool) {
	return s.previous.heartbeatAge, s.previous.replica != ""
}

// Do runs f with exclusive use of the session. If ctx ends before f begins, Do
// returns; afterwards f is not interrupted, because cancelling a statement closes
// the connection and ends the term. f's context ends with the term, and after a
// minute.
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
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statementTimeout)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	err := f(ctx, s.conn)
	if s.conn.IsClosed() {
		s.end(fmt.Errorf("the session was closed: %w", err))
	}
	return err
}

// Alive returns why this process does not lead any more, or nil. It makes no
// request: it checks the time since the last heartbeat, and whether the database
// has closed the connection. So a process that was stopped detects here that its
// term has ended. A term that has ended does not resume.
func (s *Session) Alive() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return s.ended
	}
	if silent := now() - s.lastHeartbeat; silent >= termTimeout {
		s.endLocked(fmt.Errorf("no heartbeat for %s", silent.Round(time.Millisecond)))
	} else if s.hungUp() {
		s.endLocked(errors.New("the database closed the session"))
	}
	return s.ended
}

func (s *Session) hungUp() bool {
	select {
	case s.lock <- struct{}{}:
		defer func() { <-s.lock }()
		return s.raw.hungUp(true)
	default:
		return s.raw.hungUp(false)
	}
}

// recordHeartbeat records a successful heartbeat.
func (s *Session) recordHeartbeat(sent time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now()-s.lastHeartbeat < termTimeout {
		s.lastHeartbeat = max(s.lastHeartbeat, sent)
	}
}

// remaining returns how long the term lasts without another heartbeat.
func (s *Session) remaining() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lastHeartbeat + termTimeout - now()
}

func (s *Session) end(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended == nil {
		s.endLocked(why)
	}
}

func (s *Session) endLocked(why error) {
	s.ended = fmt.Errorf("%w: %w", ErrOver, why)
	s.cancel(s.ended)
}

// close closes the session, which releases the lock. If another goroutine is using
// the connection, it is closed under it.
func (s *Session) close(ctx context.Context) {
	wait := time.NewTimer(time.Second)
	defer wait.Stop()
	select {
	case s.lock <- struct{}{}: // never released
		closeConn(ctx, s.conn)
	case <-wait.C:
		s.raw.close()
	}
}
