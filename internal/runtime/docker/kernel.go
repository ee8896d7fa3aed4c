package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/moby/moby/api/types/container"

	"codehub/internal/base/health"
	"codehub/internal/runtime/docker/engine"
)

// The kernel counts some resources by uid. Workspaces have uids of their own, so that none
// can use up those of another. If they share a uid, because there are more workspaces than
// uids or because users become root in them, the limits are set so high that a workspace
// reaches its memory limit first, or at least that the ordinary use of all workspaces of a
// uid fits.

// kernel is the kernel of Docker's host, as far as workspaces share its limits.
type kernel struct {
	*engine.Engine
	procSys   string // /proc/sys
	lowLimits *health.Condition
	noUlimits atomic.Bool // Docker may not lift limits; see refused
}

func newKernel(e *engine.Engine) *kernel {
	return &kernel{Engine: e, procSys: "/proc/sys", lowLimits: e.Conditions.New(health.Config{
		Name: "kernel-limits", Failing: "limits of the kernel are too low for all workspaces", Resolved: "limits of the kernel are high enough again",
		Level: slog.LevelWarn, Log: e.Log,
	})}
}

// sysctl is a limit of the host for each user.
type sysctl struct {
	path string // below /proc/sys
	// want is what it is raised to, and each what a running workspace needs of it.
	want, each int64
}

var sysctls = []sysctl{
	{"fs/inotify/max_user_instances", 65536, 16},
	{"fs/inotify/max_user_watches", 8 << 20, 8192},
}

// maxCounted bounds the number of workspaces whose needs are added up if there is no
// limit of running ones.
const maxCounted = 1000

// kernelLimits raises the sysctls in dir if it may and returns an error that names
// those that are too low for so many workspaces with so many uids.
func kernelLimits(dir string, workspaces int, uids int64, raise bool, raised func(name string, from, to int64)) error {
	if workspaces <= 0 || workspaces > maxCounted {
		workspaces = maxCounted
	}
	workspaces = (workspaces + int(max(uids, 1)) - 1) / int(max(uids, 1)) // of one uid
	var low []string
	for _, s := range sysctls {
		file := filepath.Join(dir, s.path)
		raw, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the kernel does not have it
		}
		if err != nil {
			return fmt.Errorf("read a limit of the kernel: %w", err)
		}
		value, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
		if err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
		name := strings.ReplaceAll(s.path, "/", ".")
		if raise && value < s.want {
			// It may fail: another user than root, or a container.
			if err := os.WriteFile(file, []byte(strconv.FormatInt(s.want, 10)), 0); err == nil {
				raised(name, value, s.want)
				value = s.want
			}
		}
		if need := min(s.each*int64(workspaces), s.want); value < need {
			low = append(low, fmt.Sprintf("%s is %d, %d workspaces of one uid need %d (sysctl -w %s=%d)", name, value, workspaces, need, name, s.want))
		}
	}
	if len(low) > 0 {
		return errors.New(strings.Join(low, "; "))
	}
	return nil
}

// check reports limits that are too low for so many workspaces with so many uids, after it has
// raised them if it may. Those of another machine are not known.
func (k *kernel) check(workspaces int, uids int64, raise bool) {
	if !strings.HasPrefix(k.API.DaemonHost(), "unix://") {
		return
	}
	k.lowLimits.Set(kernelLimits(k.procSys, workspaces, uids, raise, func(name string, from, to int64) {
		k.Log.Info("kernel limit raised", "limit", name, "from", from, "to", to)
	}))
}

// ulimits are the limits of a workspace's processes that the kernel compares with
// what all containers of the same uid use together. They are off where the memory
// limit of the container covers what they limit.
func (k *kernel) ulimits(ctx context.Context) []*container.Ulimit {
	if k.noUlimits.Load() {
		return nil
	}
	unlimited := func(name string) *container.Ulimit { return &container.Ulimit{Name: name, Soft: -1, Hard: -1} }
	// A container can have 256 message queues of 80 kB.
	limits := []*container.Ulimit{unlimited("msgqueue")}
	if k.Features(ctx).CountsSignals {
		limits = append(limits, unlimited("sigpending"))
	}
	return limits
}

// refused reports whether a container with these limits was not started
// because Docker may not lift them, as in some virtual machines. Docker's own limits
// apply then.
func (k *kernel) refused(err error, limits []*container.Ulimit) bool {
	if len(limits) == 0 || !strings.Contains(err.Error(), "rlimit") {
		return false
	}
	if !k.noUlimits.Swap(true) {
		k.Log.Warn("Docker may not lift limits of processes; workspaces share its limits of pending signals and message queues", "err", err)
	}
	return true
}
