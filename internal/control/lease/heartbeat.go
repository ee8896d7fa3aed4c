package lease

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	heartbeatInterval = time.Second
	heartbeatTimeout  = 3 * time.Second // a second attempt fits into termTimeout
	heartbeatRetry    = 500 * time.Millisecond
	aliveInterval     = 250 * time.Millisecond // between two checks whether the term is over
)

// sendHeartbeats sends heartbeats for s until it ends, and ends it if a heartbeat
// shows that the lock is lost.
func (c *candidate) sendHeartbeats(s *Session) {
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		for s.Alive() == nil && pause(s.ctx, aliveInterval) == nil {
		}
	}()
	defer func() { <-watching }()
	p := heartbeat{cfg: c.Conn, replica: c.Replica, session: s}
	defer p.close()
	defer c.heartbeat.Reset()
	next := s.remaining() - termTimeout + heartbeatInterval
	for pause(s.ctx, next) == nil {
		sent := now()
		err := p.send()
		switch {
		case err == nil:
			c.heartbeat.Set(nil)
			s.recordHeartbeat(sent)
			next = max(heartbeatInterval-(now()-sent), 0)
		case errors.Is(err, errLost):
			s.end(err)
			return
		case s.ctx.Err() == nil:
			c.heartbeat.Set(err, "left", s.remaining())
			next = heartbeatRetry
		}
	}
}

// heartbeat is the separate connection on which heartbeats are sent.
type heartbeat struct {
	cfg     *pgx.ConnConfig
	replica string
	session *Session
	conn    *pgx.Conn
}

func (p *heartbeat) send() error {
	ctx, cancel := context.WithTimeout(p.session.ctx, heartbeatTimeout)
	defer cancel()
	if p.conn == nil {
		if err := p.connect(ctx); err != nil {
			return p.sendOnSession(err)
		}
	}
	err := recordHeartbeat(ctx, p.conn, p.replica, p.session.self)
	if err != nil && !errors.Is(err, errLost) {
		p.close()
	}
	return err
}

func (p *heartbeat) connect(ctx context.Context) error {
	conn, err := pgx.ConnectConfig(ctx, p.cfg)
	if err != nil {
		return err
	}
	// A heartbeat need not survive a crash of the database, and must not wait for
	// its disk.
	if _, err := conn.Exec(ctx, `SET synchronous_commit = off`); err != nil {
		closeConn(ctx, conn)
		return err
	}
	p.conn = conn
	return nil
}

// sendOnSession sends a heartbeat on the session itself if it is not in use, so
// that a database without free connections does not end the term.
func (p *heartbeat) sendOnSession(otherwise error) error {
	s := p.session
	select {
	case s.lock <- struct{}{}:
	default:
		return otherwise
	}
	defer func() { <-s.lock }()
	ctx, cancel := context.WithTimeout(s.ctx, max(s.remaining(), 0))
	defer cancel()
	if err := recordHeartbeat(ctx, s.conn, p.replica, s.self); err != nil {
		return errors.Join(otherwise, err)
	}
	return nil
}

func (p *heartbeat) close() {
	if p.conn != nil {
		closeConn(p.session.ctx, p.conn)
	}
	p.conn = nil
}
