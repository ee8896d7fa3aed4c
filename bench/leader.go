package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/testing/e2e/proc"
)

// leaderFailover measures how long two servers on one PostgreSQL take to change
// the leader after it was killed, suspended, or cut off from the database.
// Docker is not involved.
func leaderFailover(ctx context.Context, o options) error {
	rounds := min(o.n, 3)
	d, err := openDatabase(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = d.close() }()
	db, err := postgres.Open(ctx, d.pg.URL(), postgres.Options{})
	if err != nil {
		return err
	}
	defer db.Close()
	p := &pair{db: db}
	defer p.close()
	for i := range p.servers {
		if p.servers[i], err = newBenchServer(d, o.binary, i); err != nil {
			return err
		}
		if err := p.servers[i].start(ctx); err != nil {
			return err
		}
	}
	for _, f := range []struct {
		name       string
		within     time.Duration
		begin, end func(context.Context, *benchServer) error
	}{
		{"killed", 5 * time.Second, func(_ context.Context, c *benchServer) error { c.Kill(); return nil }, func(ctx context.Context, c *benchServer) error { return c.start(ctx) }},
		{"suspended", 10 * time.Second, sendSignal(syscall.SIGSTOP), sendSignal(syscall.SIGCONT)},
		{"cut off", 10 * time.Second,
			func(_ context.Context, c *benchServer) error { c.wire.Cut(); return nil },
			func(_ context.Context, c *benchServer) error { c.wire.Mend(); return nil }},
	} {
		var took []time.Duration
		for range rounds {
			t, err := p.round(ctx, f.begin, f.end)
			if err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
			took = append(took, t)
		}
		worst := slices.Max(took)
		fmt.Printf("new leader after the old one was %s: median %.1f s, worst of %d %.1f s (at most %s): %s\n",
			f.name, median(took).Seconds(), rounds, worst.Seconds(), f.within, verdict(worst <= f.within))
	}
	return nil
}

// benchServer is a server with its wire to the database.
type benchServer struct {
	*proc.Server
	wire *proc.Wire
}

func newBenchServer(d *database, binary string, n int) (*benchServer, error) {
	wire, err := proc.NewWire(d.pg.URL())
	if err != nil {
		return nil, err
	}
	server, err := proc.New(proc.Options{Binary: binary, DataDir: filepath.Join(d.dir, fmt.Sprint("server", n)), Env: []string{
		"CODEHUB_DATABASE_URL=" + wire.URL, "CODEHUB_ARCHIVE_URL=file://" + filepath.Join(d.dir, "archives"),
		"DOCKER_HOST=unix://" + filepath.Join(d.dir, "no-docker"), "CODEHUB_LOG_LEVEL=info"}})
	if err != nil {
		wire.Close()
		return nil, err
	}
	return &benchServer{server, wire}, nil
}

func (c *benchServer) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return c.Start(ctx)
}

func sendSignal(sig syscall.Signal) func(context.Context, *benchServer) error {
	return func(_ context.Context, c *benchServer) error { return syscall.Kill(c.Pid(), sig) }
}

var joined = regexp.MustCompile(`server registered.* replica=([0-9a-f-]{36})`)

// replica returns the id of the running process.
func (c *benchServer) replica() string {
	if all := joined.FindAllStringSubmatch(c.Log(), -1); len(all) > 0 {
		return all[len(all)-1][1]
	}
	return ""
}

// pair are two servers on one database.
type pair struct {
	db      *postgres.DB
	servers [2]*benchServer
}

func (p *pair) close() {
	for _, c := range p.servers {
		if c != nil {
			_ = syscall.Kill(c.Pid(), syscall.SIGCONT)
			c.wire.Mend()
			c.Close()
			c.wire.Close()
		}
	}
}

// round makes the leader fail at a random time between two heartbeats, and
// measures the time until the other server leads.
func (p *pair) round(ctx context.Context, lose, mend func(context.Context, *benchServer) error) (time.Duration, error) {
	leader, err := p.awaitLeader(ctx, nil)
	if err != nil {
		return 0, err
	}
	// The servers have seen each other, and the heartbeats are at a random
	// phase.
	if err := pause(ctx, 4*time.Second+rand.N(3*time.Second)); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := lose(ctx, leader); err != nil {
		return 0, err
	}
	if _, err := p.awaitLeader(ctx, leader); err != nil {
		return 0, err
	}
	took := time.Since(began)
	if err := mend(ctx, leader); err != nil {
		return 0, err
	}
	bounded, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return took, leader.AwaitReady(bounded)
}

// awaitLeader waits until a server other than not leads.
func (p *pair) awaitLeader(ctx context.Context, not *benchServer) (*benchServer, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		list, err := p.db.Replicas(ctx)
		if err != nil {
			return nil, err
		}
		for _, r := range list {
			for _, c := range p.servers {
				if r.Leads && c != not && c.replica() == r.ID {
					return c, nil
				}
			}
		}
		select {
		case <-ctx.Done():
			return nil, errors.New("no server became the leader")
		case <-poll.C:
		}
	}
}
