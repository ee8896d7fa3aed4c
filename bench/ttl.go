package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// statementLimit is the maximum time of one statement of the leader: its
// heartbeat, every 3 s, waits for the statement, and 10 s without one end its
// term.
const statementLimit = time.Second

// ttlStatements measures the statements that stop and archive unused workspaces
// in a database of many workspaces, with none due and with more due than one
// batch.
func ttlStatements(ctx context.Context, o options) (err error) {
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
	idle := postgres.NewIdleness(postgres.NewSession(conn))
	endIdle := func(ctx context.Context, after time.Duration, limit int) ([]workspace.ID, error) {
		return idle.EndIdle(ctx, after, limit)
	}
	const never, batch = 1000 * time.Hour, 500
	for _, f := range []struct {
		what  string
		n     int
		end   func(context.Context, time.Duration, int) ([]workspace.ID, error)
		after time.Duration
		want  int
	}{
		{"stop idle workspaces, none due", o.n, endIdle, never, 0},
		{"archive unused workspaces, none due", o.n, idle.EndUnused, never, 0},
		{fmt.Sprintf("stop %d of several thousand", batch), min(o.n, 5), endIdle, 5 * time.Hour, batch},
		{fmt.Sprintf("archive %d of several thousand", batch), min(o.n, 5), idle.EndUnused, 5 * time.Hour, batch},
	} {
		var took []time.Duration
		s.reset()
		for range f.n {
			start := time.Now()
			ids, err := f.end(ctx, f.after, batch)
			if err == nil && len(ids) != f.want {
				err = fmt.Errorf("%d workspaces are due, want %d", len(ids), f.want)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", f.what, err)
			}
			took = append(took, time.Since(start))
		}
		_, longest := s.totals()
		fmt.Printf("ttl over %d workspaces: %s: %s, the longest statement %s (at most %s): %s\n",
			many, f.what, ms1(median(took)), ms1(longest), statementLimit, verdict(longest <= statementLimit))
	}
	return nil
}
