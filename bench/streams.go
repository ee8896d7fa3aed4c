package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// benchUser is a user with a session and a workspace that needs no operation.
type benchUser struct{ user, session, workspace string }

// createUsers creates users by SQL, because hashing passwords is slow.
func (d *database) createUsers(ctx context.Context, n int) ([]benchUser, error) {
	conn, err := pgx.Connect(ctx, d.pg.URL())
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, `
		WITH u AS (
			INSERT INTO users (id, username, username_key, password_hash)
			SELECT gen_random_uuid(), 'user' || n, 'user' || n, 'none' FROM generate_series(1, $1) n RETURNING id
		)
		INSERT INTO workspaces (id, owner_user_id, name, description, memo, image_ref, storage_backend,
			desired_state, phase, error_reason, error_message)
		SELECT gen_random_uuid(), id, 'project', repeat('a description. ', 10), '', 'codehub/workspace:latest', 'docker-volume',
			'STANDBY', 'ERROR', 'Timeout', 'The operation timed out.' FROM u RETURNING owner_user_id::text, id::text`, n)
	if err != nil {
		return nil, err
	}
	users, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p benchUser, err error) {
		return p, row.Scan(&p.user, &p.workspace)
	})
	if err != nil {
		return nil, fmt.Errorf("create users: %w", err)
	}
	var batch pgx.Batch
	for i := range users {
		p := &users[i]
		p.session = fmt.Sprintf("session-of-%s", p.user)
		hash := sha256.Sum256([]byte(p.session))
		batch.Queue(`INSERT INTO sessions (hash, user_id, expires_at) VALUES ($1, $2, now() + interval '1 day')`, hash[:], p.user)
	}
	if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, fmt.Errorf("create sessions: %w", err)
	}
	_, err = conn.Exec(ctx, `ANALYZE`)
	return users, err
}

// eventStreams are the event streams of all users.
type eventStreams struct {
	conns []net.Conn
	group sync.WaitGroup
	err   atomic.Pointer[error]

	ready sync.WaitGroup // waits until each stream has sent what there is

	current atomic.Pointer[round]
	rounds  int
}

// round is one event for each user.
type round struct {
	tag      []byte
	start    time.Time
	received []atomic.Int64 // by user, in nanoseconds since start
	left     atomic.Int64
	done     chan struct{} // closed when all events have arrived
}

// openStreams opens a stream of path for each user and waits until all have sent
// what there is.
func openStreams(ctx context.Context, server, path string, users []benchUser) (*eventStreams, error) {
	u, err := url.Parse(server)
	if err != nil {
		return nil, err
	}
	e := &eventStreams{conns: make([]net.Conn, len(users))}
	e.ready.Add(len(users))
	var g errgroup.Group
	g.SetLimit(16)
	for i, p := range users {
		g.Go(func() error { return e.open(i, p, "127.0.0.1:"+u.Port(), u.Host, path) })
	}
	if err := g.Wait(); err != nil {
		e.close()
		return nil, err
	}
	ready := make(chan struct{})
	go func() { e.ready.Wait(); close(ready) }()
	select {
	case <-ready:
	case <-time.After(time.Minute):
		err = errors.New("some streams have not sent what there is")
		if f := e.err.Load(); f != nil {
			err = *f
		}
		e.close()
		return nil, err
	case <-ctx.Done():
		e.close()
		return nil, ctx.Err()
	}
	time.Sleep(3 * time.Second) // the controller's first ticks send events as well
	return e, nil
}

func (e *eventStreams) open(i int, p benchUser, address, host, path string) error {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	e.conns[i] = c
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\nCookie: codehub_session=%s\r\n\r\n", path, host, p.session); err != nil {
		return err
	}
	in := bufio.NewReaderSize(c, 4096)
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the event stream answers %s", resp.Status)
	}
	e.group.Go(func() {
		if err := e.read(i, resp); err != nil {
			e.err.CompareAndSwap(nil, &err)
		}
	})
	return nil
}

// read reads a stream to its end.
func (e *eventStreams) read(i int, resp *http.Response) error {
	defer resp.Body.Close()
	lines := bufio.NewReaderSize(resp.Body, 4096)
	ready := sync.OnceFunc(e.ready.Done)
	for {
		line, err := lines.ReadSlice('\n')
		at := time.Now()
		if err != nil {
			return fmt.Errorf("stream %d: %w", i, err)
		}
		if bytes.Equal(line, []byte("event: heartbeat\n")) || bytes.Equal(line, []byte("event: update\n")) {
			ready()
		} else if bytes.HasPrefix(line, []byte("data: ")) {
			e.record(i, line, at)
		}
	}
}

func (e *eventStreams) record(i int, line []byte, at time.Time) {
	r := e.current.Load()
	if r == nil || !bytes.Contains(line, r.tag) {
		return
	}
	if r.received[i].CompareAndSwap(0, int64(at.Sub(r.start))) && r.left.Add(-1) == 0 {
		close(r.done)
	}
}

// round runs commit, which causes one event for each user, and returns the
// times at which they arrived.
func (e *eventStreams) round(ctx context.Context, commit func(tag string) error) ([]time.Time, error) {
	e.rounds++
	tag := fmt.Sprintf("round %d", e.rounds)
	r := &round{tag: fmt.Appendf(nil, `"memo":%q`, tag), start: time.Now(), done: make(chan struct{}), received: make([]atomic.Int64, len(e.conns))}
	r.left.Store(int64(len(e.conns)))
	e.current.Store(r)
	if err := commit(tag); err != nil {
		return nil, err
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(time.Minute):
		if f := e.err.Load(); f != nil {
			return nil, *f
		}
		return nil, fmt.Errorf("%d of %d events have not arrived", r.left.Load(), len(e.conns))
	}
	received := make([]time.Time, len(e.conns))
	for i := range received {
		received[i] = r.start.Add(time.Duration(r.received[i].Load()))
	}
	return received, nil
}

func (e *eventStreams) close() {
	for _, c := range e.conns {
		if c != nil {
			_ = c.Close()
		}
	}
	e.group.Wait()
}
