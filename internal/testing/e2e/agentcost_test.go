package e2e

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/client"

	"codehub/internal/workspace"
)

// What docs/agent.md promises: the most memory of its own, and the largest part of a core
// at rest.
const (
	agentMemory = 15 << 20
	agentAtRest = 0.001
)

// agentUse is what the agent of a workspace has used.
type agentUse struct {
	at     time.Time
	time   time.Duration // of a processor, in steps of 10 ms
	memory int64         // RssAnon
}

func (s *server) agentUse(id string) agentUse {
	s.Helper()
	found, err := s.docker.ContainerInspect(s.Context(), workspace.ID(id).DockerName(), client.ContainerInspectOptions{})
	if err != nil {
		s.Fatal(err)
	}
	use := agentUse{at: time.Now()}
	if use.time, use.memory, err = processUse(found.Container.State.Pid); err != nil {
		s.Fatal(err)
	}
	return use
}

var rssAnon = regexp.MustCompile(`RssAnon:\s+(\d+) kB`)

func processUse(pid int) (used time.Duration, memory int64, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	_, after, _ := strings.Cut(string(stat), ") ") // the name may have spaces
	fields, found := strings.Fields(after), rssAnon.FindSubmatch(status)
	if len(fields) < 13 || found == nil {
		return 0, 0, fmt.Errorf("process %d: unknown format: %s, %s", pid, stat, status)
	}
	for _, ticks := range fields[11:13] { // utime, stime
		n, err := strconv.ParseInt(ticks, 10, 64)
		if err != nil {
			return 0, 0, err
		}
		used += time.Duration(n) * 10 * time.Millisecond
	}
	kB, err := strconv.ParseInt(string(found[1]), 10, 64)
	return used, kB << 10, err
}

// checkAgentCost compares what an agent has used since a moment in which nothing asked it
// for anything with what it may use.
func (s *server) checkAgentCost(id string, since agentUse) {
	s.Helper()
	now := s.agentUse(id)
	share := (now.time - since.time).Seconds() / now.at.Sub(since.at).Seconds()
	s.Logf("the agent has used %.3f %% of a core for %v, and has %d kB of memory", 100*share, now.at.Sub(since.at).Round(time.Second), now.memory>>10)
	if share >= agentAtRest {
		s.Errorf("the agent uses %.2f %% of a core at rest", 100*share)
	}
	if now.memory >= agentMemory {
		s.Errorf("the agent has %d kB of memory", now.memory>>10)
	}
}
