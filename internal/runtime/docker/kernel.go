package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"
)

// The kernel counts some resources by uid. Workspaces have uids of their own, so that none
// can use up those of another. If they share a uid, because there are more workspaces than
// uids or because users become root in them, the limits are set so high that a workspace
// reaches its memory limit first, or at least that the ordinary use of all workspaces of a
// uid fits.

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

// checkKernelLimits reports limits that are too low. Those of another machine are
// not known.
func (r *Runtime) checkKernelLimits() {
	if !strings.HasPrefix(r.engine.API.DaemonHost(), "unix://") {
		return
	}
	r.lowLimits.Set(kernelLimits(r.procSys, r.cfg.MaxRunning, r.cfg.UIDs.Len(), !r.cfg.KeepLimits, func(name string, from, to int64) {
		r.engine.Log.Info("kernel limit raised", "limit", name, "from", from, "to", to)
	}))
}

// ulimits are the limits of a workspace's processes that the kernel compares with
// what all containers of the same uid use together. They are off where the memory
// limit of the container covers what they limit.
func (r *Runtime) ulimits(ctx context.Context) []*container.Ulimit {
	if r.noUlimits.Load() {
		return nil
	}
	unlimited := func(name string) *container.Ulimit { return &container.Ulimit{Name: name, Soft: -1, Hard: -1} }
	// A container can have 256 message queues of 80 kB.
	limits := []*container.Ulimit{unlimited("msgqueue")}
	if r.engine.Features(ctx).CountsSignals {
		limits = append(limits, unlimited("sigpending"))
	}
	return limits
}

// ulimitsRefused reports whether a container with these limits was not started
// because Docker may not lift them, as in some virtual machines. Docker's own limits
// apply then.
func (r *Runtime) ulimitsRefused(err error, limits []*container.Ulimit) bool {
	if len(limits) == 0 || !strings.Contains(err.Error(), "rlimit") {
		return false
	}
	if !r.noUlimits.Swap(true) {
		r.engine.Log.Warn("Docker may not lift limits of processes; workspaces share its limits of pending signals and message queues", "err", err)
	}
	return true
}
