package lease

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	beatEvery  = 3 * time.Second
	beatWithin = 4 * time.Second // of which two fit into lasts, and a pause
	beatAgain  = 500 * time.Millisecond
	glance     = 250 * time.Millisecond // between two looks at whether the term is over
)

// beat beats for s until it is over, and ends it when the beats do not get
// through.
func (c *candidate) beat(s *Session) {
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		for s.Alive() == nil && pause(s.ctx, glance) == nil {
		}
	}()
	defer func() { <-watching }()
	p := pulse{cfg: c.Conn, replica: c.Replica, session: s}
	defer p.close()
	next, failing := s.left()-lasts+beatEvery, false
	for pause(s.ctx, next) == nil {
		sent := now()
		err := p.beat()
		switch {
		case err == nil:
			s.beaten(sent)
			next = max(beatEvery-(now()-sent), 0)
		case errors.Is(err, errLost):
			s.end(err)
			return
		case s.ctx.Err() == nil:
			if !failing {
				c.Log.Warn("a beat of the leader did not get through; it is tried again", "err", err, "left", s.left())
			}
			next = beatAgain
		}
		failing = err != nil
	}
}

// pulse is the connection that is beaten on, beside the session.
type pulse struct {
	cfg     *pgx.ConnConfig
	replica string
	session *Session
	conn    *pgx.Conn
}

func (p *pulse) beat() error {
	ctx, cancel := context.WithTimeout(p.session.ctx, beatWithin)
	defer cancel()
	if p.conn == nil {
		if err := p.connect(ctx); err != nil {
			return p.onSession(err)
		}
	}
	err := beat(ctx, p.conn, p.replica, p.session.self)
	if err != nil && !errors.Is(err, errLost) {
		p.close()
	}
	return err
}

func (p *pulse) connect(ctx context.Context) error {
	conn, err := pgx.ConnectConfig(ctx, p.cfg)
	if err != nil {
		return err
	}
	// A beat need not outlive a crash of the database, and must not wait for
	// its disk.
	if _, err := conn.Exec(ctx, `SET synchronous_commit = off`); err != nil {
		goodbye(ctx, conn)
		return err
	}
	p.conn = conn
	return nil
}

// onSession beats on the session itself, if nobody uses it: where the database
// takes no more connections that does not end a term.
func (p *pulse) onSession(otherwise error) error {
	s := p.session
	select {
	case s.lock <- struct{}{}:
	default:
		return otherwise
	}
	defer func() { <-s.lock }()
	ctx, cancel := context.WithTimeout(s.ctx, max(s.left(), 0))
	defer cancel()
	if err := beat(ctx, s.conn, p.replica, s.self); err != nil {
		return errors.Join(otherwise, err)
	}
	return nil
}

func (p *pulse) close() {
	if p.conn != nil {
		goodbye(p.session.ctx, p.conn)
	}
	p.conn = nil
}
