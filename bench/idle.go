package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// settling is the time until the work of a start and of earlier figures has ended.
const settling = 45 * time.Second

// idle measures memory and processor time of the idle server with five running workspaces,
// without its embedded database.
func (b *bench) idle(ctx context.Context) error {
	for i := range 5 {
		if _, err := b.api.create(ctx, fmt.Sprintf("bench-idle-%d", i), b.small); err != nil {
			return err
		}
	}
	const watching = 5 * time.Minute
	rss, percent, err := idleUsage(ctx, b.server.Pid(), watching)
	if err != nil {
		return err
	}
	fmt.Printf("idle for %s: %.0f MB resident (under 100), %.2f %% of a core (under 0.5): %s\n",
		watching, float64(rss)/1e6, percent, verdict(rss < 100e6 && percent < 0.5))
	return nil
}

// full measures the same with many archived workspaces, for which Docker has no resources, and
// without workspaces.
func (b *bench) full(ctx context.Context) error {
	empty, _, err := idleUsage(ctx, b.server.Pid(), time.Minute)
	if err != nil {
		return err
	}
	conn, err := b.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if err := (population{archived: many}).insert(ctx, conn); err != nil {
		return err
	}
	rss, percent, err := idleUsage(ctx, b.server.Pid(), time.Minute)
	if err != nil {
		return err
	}
	fmt.Printf("full: an idle server with %d archived workspaces has %.0f MB resident, %.0f MB more than without workspaces, and uses %.1f %% of a core\n",
		many, float64(rss)/1e6, float64(rss-empty)/1e6, percent)
	return nil
}

// idleUsage waits until a process is idle and then measures it for that long.
func idleUsage(ctx context.Context, pid int, watching time.Duration) (rss int64, percent float64, err error) {
	var used [2]time.Duration
	for i, wait := range []time.Duration{settling, watching} {
		if err := pause(ctx, wait); err != nil {
			return 0, 0, err
		}
		if used[i], err = cpuTime(pid); err != nil {
			return 0, 0, err
		}
	}
	rss, err = memoryOf(pid, "VmRSS:")
	return rss, 100 * float64(used[1]-used[0]) / float64(watching), err
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

// memoryOf returns a size from /proc/PID/status in bytes.
func memoryOf(pid int, field string) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, field); ok {
			kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("no %s", field) // a process that has ended has no sizes
}
