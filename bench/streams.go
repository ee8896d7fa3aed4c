package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
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

// person is a user with a session and a workspace with which there is nothing
// to do.
type person struct{ user, session, workspace string }

// people makes users by SQL: passwords take their time to check.
func (d *ownDatabase) people(ctx context.Context, n int) ([]person, error) {
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
		SELECT gen_random_uuid(), id, 'project', repeat('what it is for ', 10), '', 'codehub/workspace:latest', 'docker-volume',
			'STANDBY', 'ERROR', 'Timeout', 'It did not end in time.' FROM u RETURNING owner_user_id::text, id::text`, n)
	if err != nil {
		return nil, err
	}
	everybody, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p person, err error) {
		return p, row.Scan(&p.user, &p.workspace)
	})
	if err != nil {
		return nil, fmt.Errorf("make users: %w", err)
	}
	var batch pgx.Batch
	for i := range everybody {
		p := &everybody[i]
		p.session = fmt.Sprintf("session-of-%s", p.user)
		hash := sha256.Sum256([]byte(p.session))
		batch.Queue(`INSERT INTO sessions (hash, user_id, expires_at) VALUES ($1, $2, now() + interval '1 day')`, hash[:], p.user)
	}
	if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, fmt.Errorf("make sessions: %w", err)
	}
	_, err = conn.Exec(ctx, `ANALYZE`)
	return everybody, err
}

// ears are everybody's event streams.
type ears struct {
	conns []net.Conn
	group sync.WaitGroup
	fail  atomic.Pointer[error]

	ready sync.WaitGroup // for the first heartbeat of each

	now atomic.Pointer[round]
	n   int
}

// round is one event for everybody.
type round struct {
	tag   []byte
	start time.Time
	heard []atomic.Int64 // by person, in nanoseconds since start
	left  atomic.Int64
	all   chan struct{} // closed when everybody has heard of it
}

// listenAll opens a stream for everybody and waits until all have had what
// there is.
func listenAll(ctx context.Context, server string, everybody []person) (*ears, error) {
	u, err := url.Parse(server)
	if err != nil {
		return nil, err
	}
	e := &ears{conns: make([]net.Conn, len(everybody))}
	e.ready.Add(len(everybody))
	var g errgroup.Group
	g.SetLimit(16)
	for i, p := range everybody {
		g.Go(func() error { return e.open(i, p, "127.0.0.1:"+u.Port(), u.Host) })
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
		err = fmt.Errorf("not everybody has what there is")
		if f := e.fail.Load(); f != nil {
			err = *f
		}
		e.close()
		return nil, err
	case <-ctx.Done():
		e.close()
		return nil, ctx.Err()
	}
	time.Sleep(3 * time.Second) // the controller's first looks are news, too
	return e, nil
}

func (e *ears) open(i int, p person, address, host string) error {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	e.conns[i] = c
	if _, err := fmt.Fprintf(c, "GET /api/v1/events HTTP/1.1\r\nHost: %s\r\nCookie: codehub_session=%s\r\n\r\n", host, p.session); err != nil {
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
		if err := e.hear(i, resp); err != nil {
			e.fail.CompareAndSwap(nil, &err)
		}
	})
	return nil
}

// hear reads a stream to its end.
func (e *ears) hear(i int, resp *http.Response) error {
	defer resp.Body.Close()
	lines := bufio.NewReaderSize(resp.Body, 4096)
	ready := sync.OnceFunc(e.ready.Done)
	for {
		line, err := lines.ReadSlice('\n')
		at := time.Now()
		if err != nil {
			return fmt.Errorf("stream %d: %w", i, err)
		}
		if bytes.Equal(line, []byte("event: heartbeat\n")) {
			ready()
		} else if bytes.HasPrefix(line, []byte("data: ")) {
			e.heard(i, line, at)
		}
	}
}

func (e *ears) heard(i int, line []byte, at time.Time) {
	r := e.now.Load()
	if r == nil || !bytes.Contains(line, r.tag) {
		return
	}
	if r.heard[i].CompareAndSwap(0, int64(at.Sub(r.start))) && r.left.Add(-1) == 0 {
		close(r.all)
	}
}

// round has one event come for everybody, which commit brings about, and
// returns when each was heard.
func (e *ears) round(ctx context.Context, commit func(tag string) error) ([]time.Time, error) {
	e.n++
	tag := fmt.Sprintf("round %d", e.n)
	r := &round{tag: fmt.Appendf(nil, `"memo":%q`, tag), start: time.Now(), all: make(chan struct{}), heard: make([]atomic.Int64, len(e.conns))}
	r.left.Store(int64(len(e.conns)))
	e.now.Store(r)
	if err := commit(tag); err != nil {
		return nil, err
	}
	select {
	case <-r.all:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(time.Minute):
		if f := e.fail.Load(); f != nil {
			return nil, *f
		}
		return nil, fmt.Errorf("%d of %d have heard nothing", r.left.Load(), len(e.conns))
	}
	heard := make([]time.Time, len(e.conns))
	for i := range heard {
		heard[i] = r.start.Add(time.Duration(r.heard[i].Load()))
	}
	return heard, nil
}

func (e *ears) close() {
	for _, c := range e.conns {
		if c != nil {
			_ = c.Close()
		}
	}
	e.group.Wait()
}
