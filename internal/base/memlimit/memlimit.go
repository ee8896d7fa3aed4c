// Package memlimit sets the soft memory limit of the process, at which Go collects
// garbage more often instead of growing.
package memlimit

import (
	"bufio"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"

	"codehub/internal/base/setting"
)

// Settings is the setting of the limit, as codehub serve declares it.
type Settings struct {
	MemoryLimit string `name:"memory-limit" env:"CODEHUB_MEMORY_LIMIT" help:"Soft memory limit of the server, such as 2g, or 0 for none (default: three quarters of its cgroup's limit, or half of the machine's memory)."`

	Bytes int64 `kong:"-"` // of MemoryLimit; 0: none
}

// least is the smallest limit: a server at rest needs about 50 MB.
const least = 64 << 20

// Resolve checks the setting. An invalid one is a *setting.Problem.
func (s *Settings) Resolve() error {
	if s.MemoryLimit == "" {
		return nil
	}
	v, err := setting.Bytes(s.MemoryLimit)
	if err != nil || v != 0 && v < least {
		return setting.Invalid("CODEHUB_MEMORY_LIMIT", fmt.Sprintf("%q is not a size of 64m or more", s.MemoryLimit), "give a size like 512m or 2g, or 0 for no limit")
	}
	s.Bytes = v
	return nil
}

// Apply sets the limit of the process: that of the setting, or else that of GOMEMLIMIT,
// or else one that follows from the memory of the cgroup or the machine. The caller keeps
// floor until the process ends.
//
// Go collects garbage when the heap has doubled. That of a small server doubles many
// times a second under load. floor counts as heap, but it is never written to, so it
// takes no memory: garbage is collected when twice its size was allocated.
func (s Settings) Apply(log *slog.Logger) (floor []byte) {
	limit := s.set(log)
	return make([]byte, min(maxFloor, limit/floorShare))
}

// Limit returns the memory limit of the process in bytes; math.MaxInt64: there is none.
func Limit() int64 { return debug.SetMemoryLimit(-1) }

// maxFloor bounds floor, and floorShare its share of the memory limit.
const (
	maxFloor   = 64 << 20
	floorShare = 16
)

// set sets the limit and returns it; math.MaxInt64: there is none.
func (s Settings) set(log *slog.Logger) int64 {
	limit := s.Bytes
	switch {
	case s.MemoryLimit != "" && limit == 0:
		limit = math.MaxInt64
	case s.MemoryLimit != "":
	case os.Getenv("GOMEMLIMIT") != "":
		return Limit() // the Go runtime has set it
	default:
		if limit = automatic(os.DirFS("/")); limit == 0 {
			log.Warn("memory limit not set because the memory of the machine is unknown")
			return math.MaxInt64
		}
	}
	debug.SetMemoryLimit(limit)
	if limit != math.MaxInt64 {
		log.Info("memory limit set", "bytes", limit)
	}
	return limit
}

// automatic returns the limit for the process's cgroup or machine, 0 if neither is
// known.
func automatic(root fs.FS) int64 {
	machine := machineMemory(root)
	limit := machine / 2
	if group := groupLimit(root); group > 0 && (machine == 0 || group < machine) {
		limit = group / 4 * 3
	}
	if limit > 0 {
		limit = max(limit, least)
	}
	return limit
}

func machineMemory(root fs.FS) int64 {
	b, err := fs.ReadFile(root, "proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "MemTotal:" {
			kb, err := strconv.ParseInt(f[1], 10, 64)
			if err == nil {
				return kb << 10
			}
		}
	}
	return 0
}

// groupLimit returns the smallest limit of the process's cgroup and its parents, 0 if
// there is none.
func groupLimit(root fs.FS) int64 {
	f, err := root.Open("proc/self/cgroup")
	if err != nil {
		return 0
	}
	defer f.Close()
	smallest := int64(0)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// hierarchy:controllers:path; version 2 has no controllers
		parts := strings.SplitN(lines.Text(), ":", 3)
		if len(parts) != 3 {
			continue
		}
		mount, file := "sys/fs/cgroup", "memory.max"
		if parts[1] != "" {
			if !strings.Contains(","+parts[1]+",", ",memory,") {
				continue
			}
			mount, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		}
		// In a container the path may be the host's, and the mount only the container's.
		for dir := path.Clean("/" + parts[2]); ; dir = path.Dir(dir) {
			if v := readLimit(root, path.Join(mount, dir, file)); v > 0 && (smallest == 0 || v < smallest) {
				smallest = v
			}
			if dir == "/" {
				break
			}
		}
	}
	return smallest
}

func readLimit(root fs.FS, name string) int64 {
	b, err := fs.ReadFile(root, name)
	if err != nil {
		return 0
	}
	v, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return 0 // "max"
	}
	return v
}
