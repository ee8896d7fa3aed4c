// Package lease elects the leader among the servers of a database. The leader holds
// a session-level PostgreSQL advisory lock, on a connection that is not in a pool.
//
// The leader writes through that session. On another connection, so that long
// statements do not delay it, it sends heartbeats to the table leader, which
// succeed only while its session holds the lock. A term ends 6 s after the last
// successful heartbeat. A follower terminates the session of a leader without a
// heartbeat for 8 s. See docs/adr/0009-heartbeat-and-fence-of-the-leader.md.
package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"codehub/internal/base/health"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	retryInterval = time.Second // between two attempts of a follower to get the lock

	connectTimeout = 10 * time.Second
	queryTimeout   = 5 * time.Second // for one query
)

// Term runs while this process leads. It writes through s, the session that holds
// the lock, so a leader that loses the lock cannot write. Before any other change
// it must check Session.Alive. ctx ends with the session, and Term must return soon
// after that.
type Term func(ctx context.Context, s *Session) error

// Config holds the settings of an election.
type Config struct {
	// Conn connects to the migrated database, directly or through a pooler in
	// session mode.
	Conn *pgx.ConnConfig
	// Replica is this process's UUID; empty: a random one.
	Replica string
	Log     *slog.Logger
	// Conditions lists that this server cannot lead; nil: it is only logged.
	Conditions *health.Monitor
	// Standby is called when Run finds that another server leads; nil: it is not.
	Standby func()
	Term    Term
	// Linger is how long Run waits for Term to return after the term has ended; 0:
	// 30 s. After that it abandons Term, which can no longer write.
	Linger time.Duration
}

// Run competes for the lock until ctx ends, and runs Term whenever this process
// leads. Errors are logged and end the term, not Run.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Replica == "" {
		cfg.Replica = uuid.NewString()
	}
	if cfg.Linger <= 0 {
		cfg.Linger = 30 * time.Second
	}
	c := candidate{Config: cfg,
		candidacy: cfg.Conditions.New(health.Config{
			Name: "leadership", Failing: "this server cannot lead; retrying", Resolved: "this server can lead again", Level: slog.LevelError, Log: cfg.Log,
		}),
		heartbeat: cfg.Conditions.New(health.Config{
			Name: "leadership", Failing: "leader heartbeat failed; retrying", Resolved: "leader heartbeat recovered", Level: slog.LevelWarn, Log: cfg.Log,
		}),
	}
	for {
		err := c.runOnce(ctx)
		if ctx.Err() != nil {
			return nil
		}
		c.candidacy.Set(cmp.Or(err, errTermEnded))
		if pause(ctx, retryInterval) != nil {
			return nil
		}
	}
}

// Hold takes the leader's lock until conn closes, for a command that must not run
// while a server leads. It returns false if a server leads. No heartbeats are sent, and
// followers do not terminate the session.
func Hold(ctx context.Context, conn *pgx.Conn) (held bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	if err = conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, key).Scan(&held); err != nil {
		return false, fmt.Errorf("try the leader's lock: %w", err)
	}
	return held, nil
}

// errTermEnded: the term returned without an error.
var errTermEnded = errors.New("the term ended")

type candidate struct {
	Config
	candidacy, heartbeat *health.Condition
}

// runOnce opens a session, waits for the lock on it, leads, and releases the lock.
func (c *candidate) runOnce(ctx context.Context) error {
	conn, self, err := c.connect(ctx)
	if err != nil {
		return fmt.Errorf("connect for leadership: %w", err)
	}
	s, err := c.await(ctx, conn, self)
	if err != nil {
		closeConn(ctx, conn)
		return err
	}
	c.Log.Info("leading", "replica", c.Replica)
	err = c.lead(ctx, s)
	s.close(ctx) // releases the lock
	return err
}

// await tries to get the lock, and terminates the session of a leader that hangs.
func (c *candidate) await(ctx context.Context, conn *pgx.Conn, self backend) (*Session, error) {
	var w watch
	for waiting := false; ; waiting = true {
		sent := now()
		got, other, err := try(ctx, conn, c.Replica, self)
		if err != nil {
			return nil, fmt.Errorf("try the leader's lock: %w", err)
		}
		c.candidacy.Set(nil)
		if got {
			return newSession(ctx, conn, self, sent, other), nil
		}
		if !waiting {
			c.Log.Info("another server leads; standing by")
			if c.Standby != nil {
				c.Standby()
			}
		}
		again := retryInterval
		if left := hungTimeout - other.heartbeatAge; left > 0 {
			again = min(again, left)
		}
		if w.hung(now(), other) {
			ended, err := end(ctx, conn, other)
			if err != nil {
				return nil, fmt.Errorf("terminate the session of the hanging leader: %w", err)
			}
			if ended {
				c.Log.Warn("hanging leader's session terminated", "replica", other.replica, "silent_for", other.heartbeatAge)
				again = retryInterval / 10
			}
		}
		if err := pause(ctx, again); err != nil {
			return nil, err
		}
	}
}

// lead runs a term on s.
func (c *candidate) lead(ctx context.Context, s *Session) error {
	term, endTerm := context.WithCancel(s.ctx)
	defer endTerm()
	defer context.AfterFunc(ctx, endTerm)()
	beats := make(chan struct{})
	go func() {
		defer close(beats)
		c.sendHeartbeats(s)
	}()
	ended := make(chan error, 1)
	go func() { ended <- c.Term(term, s) }()

	err := c.outcome(term, ended)
	if cause := context.Cause(s.ctx); cause != nil {
		err = cause // the term's own error is a consequence of it
	}
	s.end(errors.New("the term has ended"))
	<-beats
	if err != nil {
		return fmt.Errorf("the term ended: %w", err)
	}
	return nil
}

// outcome waits for Term and returns its error. Heartbeats continue meanwhile, so
// that no successor begins before the last executor has ended.
func (c *candidate) outcome(term context.Context, ended <-chan error) error {
	select {
	case err := <-ended:
		return err
	case <-term.Done():
	}
	patience := time.NewTimer(c.Linger)
	defer patience.Stop()
	select {
	case err := <-ended:
		return err
	case <-patience.C:
		return fmt.Errorf("the term did not return within %s and was abandoned", c.Linger)
	}
}

func (c *candidate) connect(ctx context.Context) (*pgx.Conn, backend, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, c.Conn)
	if err != nil {
		return nil, backend{}, err
	}
	self, err := identify(ctx, conn)
	if err != nil {
		closeConn(ctx, conn)
		return nil, backend{}, err
	}
	return conn, self, nil
}

// closeConn closes a connection that may be broken.
func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // the session ends with the connection in any case
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
