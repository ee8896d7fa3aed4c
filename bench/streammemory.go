package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"
)

const (
	streamKB    = 25   // limit for an idle stream
	streamUsers = 5000 // one stream each
	// gcPeriod is longer than the time after which the Go runtime collects the
	// garbage of an idle process.
	gcPeriod = 130 * time.Second
)

// streamMemory measures the memory of the server for an idle event stream of one user
// with one workspace, over HTTP/1: the resident memory with 5,000 streams minus that
// before, each after it has settled.
func streamMemory(ctx context.Context, _ int) error {
	binary, err := filepath.Abs(env("CODEHUB_TEST_BINARY", "bin/codehub"))
	if err != nil {
		return err
	}
	for _, path := range []string{"/api/v1/events", "/dashboard/events"} {
		if err := streamMemoryOf(ctx, binary, path); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

func streamMemoryOf(ctx context.Context, binary, path string) (err error) {
	if err := descriptors(streamUsers); err != nil {
		return err
	}
	db, err := openDatabase(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.close()) }()
	all, err := db.createUsers(ctx, streamUsers)
	if err != nil {
		return err
	}
	server, err := db.serve(ctx, binary)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopServer(ctx, server)) }()
	// The server has loaded its code for streams before it is measured.
	first, err := openStreams(ctx, server.URL, path, all[:streamUsers/50])
	if err != nil {
		return fmt.Errorf("%w\n%s", err, lastLines(server.Log(), 30))
	}
	first.close()
	before, err := settled(ctx, server.Pid())
	if err != nil {
		return err
	}
	streams, err := openStreams(ctx, server.URL, path, all)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, lastLines(server.Log(), 30))
	}
	defer streams.close()
	opened, err := resident(server.Pid())
	if err != nil {
		return err
	}
	after, err := settled(ctx, server.Pid())
	if err != nil {
		return err
	}
	each := float64(after-before) / 1e3 / streamUsers
	fmt.Printf("streams: %s: %.1f kB per idle stream (at most %d): %s; %.0f MB resident with %d streams, %.0f MB when they had just opened, %.0f MB before\n",
		path, each, streamKB, verdict(each <= streamKB), float64(after)/1e6, streamUsers, float64(opened)/1e6, float64(before)/1e6)
	return nil
}

// settled waits until the resident memory of a process has not decreased during a
// whole gcPeriod, and returns it.
func settled(ctx context.Context, pid int) (int64, error) {
	poll := time.NewTicker(time.Second)
	defer poll.Stop()
	least, since := int64(0), time.Now()
	for {
		rss, err := resident(pid)
		if err != nil {
			return 0, err
		}
		if least == 0 || rss < least-least/100 {
			least, since = rss, time.Now()
		}
		if time.Since(since) >= gcPeriod {
			return rss, nil
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-poll.C:
		}
	}
}
