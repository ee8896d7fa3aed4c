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

	"codehub/internal/e2e/proc"
	"codehub/internal/postgres"
)

// succession: two servers on one PostgreSQL, each with a line of its own to it.
// The one that leads is killed, stopped, or cut off from the database; how long
// until the other one leads. Docker has no part in it.
func succession(ctx context.Context, _ int) error {
	rounds, err := envInt("CODEHUB_BENCH_LEADER_ROUNDS", 3)
	if err != nil {
		return err
	}
	d, err := openOwn(ctx)
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
		if p.servers[i], err = newContender(d, i); err != nil {
			return err
		}
		if err := p.servers[i].start(ctx); err != nil {
			return err
		}
	}
	for _, f := range []struct {
		name       string
		within     time.Duration
		lose, mend func(context.Context, *contender) error
	}{
		{"killed", 5 * time.Second, func(_ context.Context, c *contender) error { c.Kill(); return nil }, func(ctx context.Context, c *contender) error { return c.start(ctx) }},
		{"stopped", 20 * time.Second, signalled(syscall.SIGSTOP), signalled(syscall.SIGCONT)},
		{"cut off", 20 * time.Second,
			func(_ context.Context, c *contender) error { c.wire.Cut(); return nil },
			func(_ context.Context, c *contender) error { c.wire.Mend(); return nil }},
	} {
		var took []time.Duration
		for range rounds {
			t, err := p.round(ctx, f.lose, f.mend)
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

// contender is a server that may lead, and its line to the database.
type contender struct {
	*proc.Server
	wire *proc.Wire
}

func newContender(d *ownDatabase, n int) (*contender, error) {
	binary, err := filepath.Abs(env("CODEHUB_TEST_BINARY", "bin/codehub"))
	if err != nil {
		return nil, err
	}
	wire, err := proc.NewWire(d.pg.URL())
	if err != nil {
		return nil, err
	}
	server, err := proc.New(proc.Options{Binary: binary, DataDir: filepath.Join(d.dir, fmt.Sprint("server", n)), Env: []string{
		"CODEHUB_DATABASE_URL=" + wire.URL, "CODEHUB_ARCHIVE_URL=file://" + filepath.Join(d.dir, "archives"),
		"DOCKER_HOST=unix://" + filepath.Join(d.dir, "no-engine"), "CODEHUB_LOG_LEVEL=info"}})
	if err != nil {
		wire.Close()
		return nil, err
	}
	return &contender{server, wire}, nil
}

func (c *contender) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return c.Start(ctx)
}

func signalled(sig syscall.Signal) func(context.Context, *contender) error {
	return func(_ context.Context, c *contender) error { return syscall.Kill(c.Pid(), sig) }
}

var joined = regexp.MustCompile(`joined the servers of this database.* replica=([0-9a-f-]{36})`)

// replica is the id of the process that runs.
func (c *contender) replica() string {
	if all := joined.FindAllStringSubmatch(c.Log(), -1); len(all) > 0 {
		return all[len(all)-1][1]
	}
	return ""
}

// pair is two servers on one database.
type pair struct {
	db      *postgres.DB
	servers [2]*contender
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

// round loses the leader, at any time between two of its beats, and measures
// how long until the other one leads.
func (p *pair) round(ctx context.Context, lose, mend func(context.Context, *contender) error) (time.Duration, error) {
	leader, err := p.leads(ctx, nil)
	if err != nil {
		return 0, err
	}
	// Both have seen each other for a while, and beats come at any time.
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(4*time.Second + rand.N(3*time.Second)):
	}
	began := time.Now()
	if err := lose(ctx, leader); err != nil {
		return 0, err
	}
	if _, err := p.leads(ctx, leader); err != nil {
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

// leads waits until a server leads that is not the given one.
func (p *pair) leads(ctx context.Context, not *contender) (*contender, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
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
			return nil, errors.New("nobody leads")
		case <-look.C:
		}
	}
}
