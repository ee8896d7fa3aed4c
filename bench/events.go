package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/moby/moby/client"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"codehub/internal/e2e/proc"
)

const (
	eventsP50, eventsP99 = 5 * time.Millisecond, 50 * time.Millisecond
	// spreadOver is the duration of the commits in the spread measurement.
	spreadOver = 10 * time.Second
	// writerCount is the number of connections that change workspaces.
	writerCount = 8
)

// events measures the time from the commit of a change to the event in its
// owner's stream over HTTP, with one subscriber and one change for each user.
// PostgreSQL records the time of the commit (track_commit_timestamp) before it
// syncs the commit record, and after the wait for other commits.
func events(ctx context.Context, _ int) error {
	binary, err := filepath.Abs(env("CODEHUB_TEST_BINARY", "bin/codehub"))
	if err != nil {
		return err
	}
	for _, users := range []int{1000, 5000} {
		if err := eventsOf(ctx, binary, users); err != nil {
			return fmt.Errorf("%d users: %w", users, err)
		}
	}
	return nil
}

func eventsOf(ctx context.Context, binary string, users int) (err error) {
	if err := descriptors(users); err != nil {
		return err
	}
	db, err := openDatabaseWith(ctx, map[string]string{"track_commit_timestamp": "on"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.close()) }()
	all, err := db.createUsers(ctx, users)
	if err != nil {
		return err
	}
	server, err := db.serve(ctx, binary)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopServer(ctx, server)) }()
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, lastLines(server.Log(), 30))
		}
	}()
	streams, err := openStreams(ctx, server.URL, "/api/v1/events", all)
	if err != nil {
		return err
	}
	defer streams.close()
	c, err := db.openWriters(ctx)
	if err != nil {
		return err
	}
	defer c.close()

	cpu, err := cpuTime(server.Pid())
	if err != nil {
		return err
	}
	measure := func(commit func(tag string) error) ([]time.Duration, error) {
		received, err := streams.round(ctx, commit)
		if err != nil {
			return nil, err
		}
		return c.since(ctx, all, received)
	}
	spread, err := measure(func(tag string) error { return c.spread(ctx, all, tag, spreadOver) })
	if err != nil {
		return err
	}
	commits := c.took
	burst, err := measure(func(tag string) error { return c.spread(ctx, all, tag, 0) })
	if err != nil {
		return err
	}
	single, err := measure(func(tag string) error { return c.atOnce(ctx, tag) })
	if err != nil {
		return err
	}
	used, err := cpuTime(server.Pid())
	if err != nil {
		return err
	}
	rss, err := resident(server.Pid())
	if err != nil {
		return err
	}
	for _, f := range []struct {
		distribution string
		bounded      bool
		took         []time.Duration
	}{
		{"spread over " + spreadOver.String(), users <= 1000, spread},
		{fmt.Sprintf("as fast as %d connections commit", writerCount), users <= 1000, burst},
		{"all of one transaction", false, single},
	} {
		p50, p99 := percentile(f.took, 50), percentile(f.took, 99)
		limit := ""
		if f.bounded {
			limit = fmt.Sprintf(" (at most %s and %s): %s", eventsP50, eventsP99, verdict(p50 <= eventsP50 && p99 <= eventsP99))
		}
		fmt.Printf("events to %d users, %s: p50 %s, p99 %s, the last %s%s\n", users, f.distribution, ms1(p50), ms1(p99), ms1(slices.Max(f.took)), limit)
	}
	fmt.Printf("events to %d users: COMMIT of the spread changes p50 %s, p99 %s; %.2f ms of the server's processor time per event; %.0f MB resident, %.1f kB per stream\n",
		users, ms1(percentile(commits, 50)), ms1(percentile(commits, 99)), float64(used-cpu)/1e6/float64(3*users), float64(rss)/1e6, float64(rss)/1e3/float64(users))
	return c.compare(ctx, all)
}

func percentile(d []time.Duration, p int) time.Duration {
	s := slices.Sorted(slices.Values(d))
	return s[min(len(s)-1, (len(s)*p+99)/100-1)]
}

// descriptors raises the limit of file descriptors for the streams.
func descriptors(users int) error {
	need := uint64(users + 500)
	limit, err := raiseDescriptors(need)
	if err == nil && limit < need {
		err = fmt.Errorf("%d file descriptors are needed and %d are allowed: raise the limit (ulimit -Hn)", need, limit)
	}
	return err
}

// raiseDescriptors raises the limit of file descriptors to n, or as far as the system allows,
// for this process and those that it starts, and returns the limit. Root may raise the hard
// limit as well.
func raiseDescriptors(n uint64) (uint64, error) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0, err
	}
	if l.Cur >= n {
		return l.Cur, nil
	}
	if l.Max < n && unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: n}) == nil {
		return n, nil
	}
	l.Cur = min(n, l.Max)
	return l.Cur, unix.Setrlimit(unix.RLIMIT_NOFILE, &l)
}

// serve starts a server on the database.
func (d *database) serve(ctx context.Context, binary string) (*proc.Server, error) {
	s, err := proc.New(proc.Options{Binary: binary, DataDir: filepath.Join(d.dir, "server"), Env: []string{
		"CODEHUB_DATABASE_URL=" + d.pg.URL(), "CODEHUB_LOG_LEVEL=info", "CODEHUB_ALLOW_NO_WALL=true"}})
	if err != nil {
		return nil, err
	}
	sctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := s.Start(sctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// stopServer stops a server and removes its resources from Docker.
func stopServer(ctx context.Context, s *proc.Server) error {
	s.Close()
	api, err := client.New(client.FromEnv)
	if err != nil {
		return err
	}
	defer api.Close()
	return proc.Sweep(context.WithoutCancel(ctx), api, s.Installation())
}

// writers are connections that change workspaces.
type writers struct {
	conns []*pgx.Conn
	took  []time.Duration // of each COMMIT
}

func (d *database) openWriters(ctx context.Context) (*writers, error) {
	c := &writers{}
	for range writerCount {
		conn, err := pgx.Connect(ctx, d.pg.URL())
		if err != nil {
			c.close()
			return nil, err
		}
		c.conns = append(c.conns, conn)
	}
	return c, nil
}

func (c *writers) close() {
	for _, conn := range c.conns {
		_ = conn.Close(context.Background())
	}
}

const edit = `UPDATE workspaces SET memo = $2 WHERE id = $1`

// spread commits one change for each user, at even intervals over a duration.
func (c *writers) spread(ctx context.Context, users []benchUser, tag string, over time.Duration) error {
	start := time.Now()
	took := make([]time.Duration, len(users))
	var g errgroup.Group
	for n, conn := range c.conns {
		g.Go(func() error {
			for i := n; i < len(users); i += len(c.conns) {
				time.Sleep(time.Until(start.Add(over * time.Duration(i) / time.Duration(len(users)))))
				tx, err := conn.Begin(ctx)
				if err != nil {
					return err
				}
				if _, err := tx.Exec(ctx, edit, users[i].workspace, tag); err != nil {
					return err
				}
				commit := time.Now()
				if err := tx.Commit(ctx); err != nil {
					return err
				}
				took[i] = time.Since(commit)
			}
			return nil
		})
	}
	c.took = took
	return g.Wait()
}

// atOnce commits a change for all users in one transaction.
func (c *writers) atOnce(ctx context.Context, tag string) error {
	_, err := c.conns[0].Exec(ctx, `UPDATE workspaces SET memo = $1`, tag)
	return err
}

// since returns the time from the commit of each change to its event.
func (c *writers) since(ctx context.Context, users []benchUser, received []time.Time) ([]time.Duration, error) {
	rows, err := c.conns[0].Query(ctx, `SELECT id::text, pg_xact_commit_timestamp(xmin) FROM workspaces`)
	if err != nil {
		return nil, err
	}
	committed := map[string]time.Time{}
	var id string
	var at time.Time
	if _, err := pgx.ForEachRow(rows, []any{&id, &at}, func() error { committed[id] = at; return nil }); err != nil {
		return nil, err
	}
	took := make([]time.Duration, len(received))
	for i, p := range users {
		if took[i] = received[i].Sub(committed[p.workspace]); took[i] <= 0 || took[i] > time.Minute {
			return nil, fmt.Errorf("an event arrived %s after its commit: the workspace was changed again", took[i])
		}
	}
	return took, nil
}

// compare prints the rate of commits with and without notifications.
func (c *writers) compare(ctx context.Context, users []benchUser) error {
	rate := func(tag string) (float64, error) {
		begun := time.Now()
		err := c.spread(ctx, users, tag, 0)
		return float64(len(users)) / time.Since(begun).Seconds(), err
	}
	with, err := rate("with")
	if err != nil {
		return err
	}
	if _, err := c.conns[0].Exec(ctx, `ALTER TABLE workspaces DISABLE TRIGGER USER`); err != nil {
		return err
	}
	without, err := rate("without")
	if err != nil {
		return err
	}
	fmt.Printf("events to %d users: %.0f commits/s by %d connections with notifications, %.0f without\n", len(users), with, writerCount, without)
	return nil
}
