package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/activity"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// statementLimit is the maximum time of one statement of the leader: its
// heartbeat, every 3 s, waits for the statement, and 10 s without one end its
// term.
const statementLimit = time.Second

// ttlStatements measures the statements that stop and archive unused workspaces
// in a database of many workspaces, with none due and with more due than one
// batch. It also measures the writing of accesses, which makes the next tick
// read those rows again.
func ttlStatements(ctx context.Context, n int) (err error) {
	db, err := openDatabase(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.close()) }()
	if _, err := db.populate(ctx, typicalPopulation(many)); err != nil {
		return err
	}
	s := &session{}
	conn, err := db.connect(ctx, s)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, `UPDATE activity_clock SET watched_until = now()`); err != nil {
		return err
	}
	shared := postgres.NewSession(conn)
	idle, clock := postgres.NewIdleness(shared), postgres.NewActivityClock(shared)
	const never, batch = 1000 * time.Hour, 500
	count := func(end func(context.Context, time.Duration, int) ([]workspace.ID, error), after time.Duration, want int) func() error {
		return func() error {
			ids, err := end(ctx, after, batch)
			if err == nil && len(ids) != want {
				err = fmt.Errorf("%d workspaces are due, want %d", len(ids), want)
			}
			return err
		}
	}
	endIdle := func(ctx context.Context, after time.Duration, limit int) ([]workspace.ID, error) {
		return idle.EndIdle(ctx, after, limit)
	}
	for _, f := range []struct {
		what string
		n    int
		do   func() error
	}{
		{"stop idle workspaces, none due", n, count(endIdle, never, 0)},
		{"archive unused workspaces, none due", n, count(idle.EndUnused, never, 0)},
		{"prune the activity clock", n, func() error {
			_, err := clock.Prune(ctx, workspace.TTL{Standby: never, Archive: never})
			return err
		}},
		{fmt.Sprintf("stop %d of several thousand", batch), min(n, 5), count(endIdle, 5*time.Hour, batch)},
		{fmt.Sprintf("archive %d of several thousand", batch), min(n, 5), count(idle.EndUnused, 5*time.Hour, batch)},
	} {
		var took []time.Duration
		s.reset()
		for range f.n {
			start := time.Now()
			if err := f.do(); err != nil {
				return fmt.Errorf("%s: %w", f.what, err)
			}
			took = append(took, time.Since(start))
		}
		_, longest := s.totals()
		plan, err := s.planOfLongest(ctx, conn)
		if err != nil {
			return err
		}
		fmt.Printf("ttl over %d workspaces: %s: %s, the longest statement %s (at most %s), by %s: %s\n",
			many, f.what, ms1(median(took)), ms1(longest), statementLimit, plan, verdict(longest <= statementLimit))
	}
	return accesses(ctx, n)
}

// accesses measures writing the last access of all running workspaces, and the
// tick after it.
func accesses(ctx context.Context, n int) (err error) {
	db, err := openDatabase(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.close()) }()
	backend, err := db.populate(ctx, typicalPopulation(many))
	if err != nil {
		return err
	}
	store, err := postgres.Open(ctx, db.pg.URL(), postgres.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer store.Close()
	l, err := db.newLeader(ctx, backend)
	if err != nil {
		return err
	}
	defer l.stop()
	if _, err := l.tick(ctx); err != nil {
		return err
	}
	var writes []time.Duration
	var ticks []tickCost
	for range min(n, 5) {
		var seen []activity.Access
		for _, c := range backend.containers {
			seen = append(seen, activity.Access{ID: c.Workspace, At: time.Now(), Kind: activity.Typing})
		}
		start := time.Now()
		if err := store.SaveAccesses(ctx, seen); err != nil {
			return err
		}
		writes = append(writes, time.Since(start))
		one, err := l.tick(ctx)
		if err != nil {
			return err
		}
		ticks = append(ticks, one)
	}
	tick := medianOf(ticks)
	fmt.Printf("ttl: %d accesses written in %s; the next tick over %d workspaces takes %s, %d statements, the longest %s\n",
		len(backend.containers), ms1(median(writes)), many, ms1(tick.took), tick.statements, ms1(tick.longest))
	return nil
}

// planOfLongest returns the scan of workspaces in the plan of the longest
// statement.
func (s *session) planOfLongest(ctx context.Context, conn *pgx.Conn) (string, error) {
	s.mu.Lock()
	sql, args := s.longestSQL, s.longestArgs
	s.mu.Unlock()
	rows, err := conn.Query(ctx, "EXPLAIN "+sql, args...)
	if err != nil {
		return "", err
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return "", err
	}
	for _, line := range lines {
		name, _, _ := strings.Cut(strings.TrimLeft(line, " ->"), "  (cost")
		if strings.Contains(name, "Scan") && strings.Contains(name, " workspaces") && !strings.Contains(name, "workspaces_pkey") {
			return strings.TrimSpace(name), nil
		}
	}
	return "another plan", nil
}
