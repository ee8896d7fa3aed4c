package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/client"
)

// usage is the resource usage of a process, as sampled.
type usage struct {
	peak int64         // memory, bytes
	cpu  time.Duration // user and system
}

// watchUsage samples the usage of a job until the returned function is called,
// which returns it.
func (s *storage) watchUsage(ctx context.Context, id string) func() usage {
	stop, done := make(chan struct{}), make(chan struct{})
	var seen usage
	go func() {
		defer close(done)
		c, err := s.api.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
		if err != nil || c.Container.State.Pid == 0 {
			return
		}
		if s.cgroup == "" {
			if s.cgroup, err = newCgroup(c.Container.State.Pid); err != nil {
				fmt.Fprintln(os.Stderr, "bench: the rival has a larger share of the processors than a job:", err)
			}
		}
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			if peak, err := peakMemory(c.Container.State.Pid); err == nil {
				seen.peak = max(seen.peak, peak)
			}
			if cpu, err := cpuTime(c.Container.State.Pid); err == nil {
				seen.cpu = max(seen.cpu, cpu)
			}
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
	}()
	return func() usage {
		close(stop)
		<-done
		return seen
	}
}

// peakMemory returns the maximum resident memory of a process in bytes, without
// mapped files, which are page cache.
func peakMemory(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	high, err := statusField(string(b), "VmHWM:")
	if err != nil {
		return 0, err
	}
	files, err := statusField(string(b), "RssFile:")
	return high - files, err
}

// statusField returns a size from /proc/PID/status in bytes.
func statusField(status, name string) (int64, error) {
	for line := range strings.Lines(status) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("no %s", name) // a process that has ended has no sizes
}
