// Package lease elects the one server process that runs the coordinator
// (design §4): whoever holds a session-level PostgreSQL advisory lock, on a
// connection of its own that no pool can recycle.
//
// The leader writes through that session, and beats into the table leader, on
// another connection so that a long statement costs it nothing: a beat is good
// if the database says that the leader's session holds the lock. A term ends 10 s
// after the last good beat. A follower ends the session of a leader that has not
// beaten for 15 s. See docs/adr/0009-the-leaders-beat-and-fence.md.
package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	every = time.Second // between two tries of a follower

	connectWithin = 10 * time.Second
	ask           = 5 * time.Second // for an answer
)

// Term is a time of leadership. What it runs writes through s, the session
// that holds the lock: a leader that lost the lock lost the means to write. ctx
// ends with the session, and Session.Alive tells right before an act on anything
// else whether this process still leads. Term returns soon after ctx has ended.
type Term func(ctx context.Context, s *Session) error

// Config is what is stood for election with.
type Config struct {
	// Conn leads to the database, migrated; no pooler that gives each
	// transaction another session may be in between.
	Conn *pgx.ConnConfig
	// Replica is this process's id, a UUID; empty: one is made up.
	Replica string
	Log     *slog.Logger
	Term    Term
	// Linger is how long a term that is over may take to end; 0: 30 s. What
	// still hangs then can do nothing any more, and is left behind.
	Linger time.Duration
}

// Run stands for election until ctx ends, and runs the term each time this
// process leads. Errors are logged; they end the term, never Run.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Replica == "" {
		cfg.Replica = uuid.NewString()
	}
	if cfg.Linger <= 0 {
		cfg.Linger = 30 * time.Second
	}
	c := candidate{Config: cfg}
	for {
		err := c.stand(ctx)
		if ctx.Err() != nil {
			return nil
		}
		c.report(err)
		if pause(ctx, every) != nil {
			return nil
		}
	}
}

// Hold takes the leader's lock for as long as conn lives, for a command that
// must not run beside a server. It is false if a server leads. It has no beat,
// and nobody ends it.
func Hold(ctx context.Context, conn *pgx.Conn) (held bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, ask)
	defer cancel()
	if err = conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, key).Scan(&held); err != nil {
		return false, fmt.Errorf("try the leader's lock: %w", err)
	}
	return held, nil
}

type candidate struct {
	Config
	said string // the last error, so that an outage is reported once
}

func (c *candidate) report(err error) {
	said := "the term ended by itself"
	if err != nil {
		said = err.Error()
	}
	if said != c.said {
		c.Log.Error("this server does not lead; it tries again", "err", said)
	}
	c.said = said
}

// stand takes one session through one candidacy: it waits on it for the lock,
// leads with it, and gives it up.
func (c *candidate) stand(ctx context.Context) error {
	conn, self, err := c.connect(ctx)
	if err != nil {
		return fmt.Errorf("connect for leadership: %w", err)
	}
	s, err := c.await(ctx, conn, self)
	if err != nil {
		goodbye(ctx, conn)
		return err
	}
	c.said = ""
	c.Log.Info("leading", "replica", c.Replica)
	err = c.lead(ctx, s)
	s.close(ctx) // releases the lock
	return err
}

// await tries until it has the lock, and sees that a leader which hangs does
// not stand in the way.
func (c *candidate) await(ctx context.Context, conn *pgx.Conn, self backend) (*Session, error) {
	var w watch
	for waiting := false; ; waiting = true {
		sent := now()
		got, other, err := try(ctx, conn, c.Replica, self)
		if err != nil {
			return nil, fmt.Errorf("try the leader's lock: %w", err)
		}
		if got {
			return newSession(ctx, conn, self, sent, other), nil
		}
		if !waiting {
			c.Log.Info("another server leads; standing by")
		}
		again := every
		if w.hung(now(), other) {
			ended, err := end(ctx, conn, other)
			if err != nil {
				return nil, fmt.Errorf("end the session of a leader that hangs: %w", err)
			}
			if ended {
				c.Log.Warn("the leader hangs: its session was ended", "replica", other.replica, "silent_for", other.age)
				again = every / 10
			}
		}
		if err := pause(ctx, again); err != nil {
			return nil, err
		}
	}
}

// lead runs a term on s, from its first beat to its end.
func (c *candidate) lead(ctx context.Context, s *Session) error {
	term, endTerm := context.WithCancel(s.ctx)
	defer endTerm()
	defer context.AfterFunc(ctx, endTerm)()
	beats := make(chan struct{})
	go func() {
		defer close(beats)
		c.beat(s)
	}()
	ended := make(chan error, 1)
	go func() { ended <- c.Term(term, s) }()

	err := c.outcome(term, ended)
	if cause := context.Cause(s.ctx); cause != nil {
		err = cause // what the term says follows from it
	}
	s.end(errors.New("the term is over"))
	<-beats
	if err != nil {
		return fmt.Errorf("the term ended: %w", err)
	}
	return nil
}

// outcome is what the term has ended with. The beat goes on while it winds
// down, so that nobody begins before the last of its executors has ended.
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
		return fmt.Errorf("something of it still hangs after %s and is left behind, unable to do anything", c.Linger)
	}
}

func (c *candidate) connect(ctx context.Context) (*pgx.Conn, backend, error) {
	ctx, cancel := context.WithTimeout(ctx, connectWithin)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, c.Conn)
	if err != nil {
		return nil, backend{}, err
	}
	self, err := identify(ctx, conn)
	if err != nil {
		goodbye(ctx, conn)
		return nil, backend{}, err
	}
	return conn, self, nil
}

// goodbye closes a connection that may be broken.
func goodbye(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // the session ends with the connection, said goodbye to or not
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
