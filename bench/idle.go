package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// idleServer measures memory and processor time of the idle server with five
// running workspaces, without its embedded database.
func (b *bench) idleServer(ctx context.Context) error {
	pid := b.server.Pid()
	for i := range 5 {
		id, err := b.api.create(ctx, fmt.Sprintf("bench-idle-%d", i), b.small)
		if err != nil {
			return err
		}
		defer b.api.remove(id)
	}
	select { // until the work of earlier figures has ended
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(40 * time.Second):
	}
	before, err := cpuTime(pid)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(b.idle):
	}
	after, err := cpuTime(pid)
	if err != nil {
		return err
	}
	rss, err := resident(pid)
	if err != nil {
		return err
	}
	percent := 100 * float64(after-before) / float64(b.idle)
	fmt.Printf("idle for %s: %.0f MB resident (under 100), %.2f %% of a core (under 0.5): %s\n",
		b.idle, float64(rss)/1e6, percent, verdict(rss < 100e6 && percent < 0.5))
	return nil
}

// cpuTime returns the user and system time of a process.
func cpuTime(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	var ticks int64
	for _, f := range fields[11:13] { // utime, stime
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil // USER_HZ is 100 on Linux
}

// resident returns the resident memory of a process in bytes.
func resident(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	return statusField(string(b), "VmRSS:")
}
