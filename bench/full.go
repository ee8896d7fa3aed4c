package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/e2e/proc"
	"codehub/internal/postgres/embedded"
)

// fullServer measures memory and processor time of an idle server, without its
// database: without workspaces, and with many archived ones, for which Docker
// has no resources.
func fullServer(ctx context.Context, binary string) (err error) {
	dir, err := os.MkdirTemp("", "codehub-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o755); err != nil { // the database runs as a different user
		return err
	}
	data := filepath.Join(dir, "data")
	server, err := proc.New(proc.Options{Binary: binary, DataDir: data, Env: []string{"CODEHUB_LOG_LEVEL=info"}})
	if err != nil {
		return err
	}
	defer server.Close()
	sctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := server.Start(sctx); err != nil {
		return err
	}
	empty, _, err := idleUsage(ctx, server.Pid())
	if err != nil {
		return err
	}
	address, err := embedded.Find(ctx, data)
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if err := (population{archived: many}).insert(ctx, conn); err != nil {
		return err
	}
	rss, percent, err := idleUsage(ctx, server.Pid())
	if err != nil {
		return err
	}
	fmt.Printf("full: an idle server with %d archived workspaces has %.0f MB resident, %.0f MB more than without workspaces, and uses %.1f %% of a core\n",
		many, float64(rss)/1e6, float64(rss-empty)/1e6, percent)
	return nil
}

// idleUsage waits until the server is idle and then measures it for a minute.
func idleUsage(ctx context.Context, pid int) (rss int64, percent float64, err error) {
	const settling, watching = 45 * time.Second, time.Minute
	var used [2]time.Duration
	for i, wait := range []time.Duration{settling, watching} {
		select {
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		case <-time.After(wait):
		}
		if used[i], err = cpuTime(pid); err != nil {
			return 0, 0, err
		}
	}
	rss, err = resident(pid)
	return rss, 100 * float64(used[1]-used[0]) / float64(watching), err
}
