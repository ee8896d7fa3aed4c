package docker

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"codehub/internal/base/health"
	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
)

func TestKernelLimits(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name               string
		instances, watches int64
		workspaces         int
		uids               int64
		raise, readOnly    bool
		raised             int
		says               string // empty: no error
	}{
		{"defaults of distributions", 128, 192536, 100, 1, false, false, 0, "fs.inotify.max_user_instances is 128, 100 workspaces of one uid need 1600"},
		{"the watches alone are low", 65536, 65536, 100, 1, false, false, 0, "fs.inotify.max_user_watches is 65536"},
		{"enough for few workspaces", 128, 192536, 8, 1, false, false, 0, ""},
		{"no running limit", 8192, 8 << 20, 0, 1, false, false, 0, "need 16000"},
		{"each has its own uid", 128, 65536, 1000, 1000, false, false, 0, ""},
		{"some share a uid", 128, 192536, 1000, 100, false, false, 0, "10 workspaces of one uid need 160"},
		{"raised", 128, 192536, 100, 1, true, false, 2, ""},
		{"never lowered", 1 << 20, 1 << 24, 100, 1, true, false, 0, ""},
		{"may not be raised", 0, 0, 100, 1, true, true, 0, "fs.inotify.max_user_watches is 65536"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			for i, value := range []int64{test.instances, test.watches} {
				file := filepath.Join(dir, sysctls[i].path)
				check(t, os.MkdirAll(filepath.Dir(file), 0o755))
				check(t, os.WriteFile(file, fmt.Appendln(nil, value), 0o644))
			}
			if test.readOnly {
				readOnly(t, dir)
			}
			raised := 0
			err := kernelLimits(dir, test.workspaces, test.uids, test.raise, func(string, int64, int64) { raised++ })
			if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("error = %v, want %q", err, test.says)
			}
			if raised != test.raised {
				t.Errorf("%d limits raised, want %d", raised, test.raised)
			}
		})
	}
}

// readOnly replaces the files in dir by ones that also root can only read. Their
// value is 65536.
func readOnly(t *testing.T, dir string) {
	t.Helper()
	for _, s := range sysctls {
		file := filepath.Join(dir, s.path)
		check(t, os.Remove(file))
		check(t, os.Symlink("/proc/sys/kernel/ngroups_max", file))
	}
}

func TestLowKernelLimitsAreACondition(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	conditions := &health.Monitor{}
	r := newRuntime(t, func(c *Config) { c.Conditions, c.MaxRunning = conditions, 10 })
	r.kernel.procSys = t.TempDir()
	file := filepath.Join(r.kernel.procSys, "fs/inotify/max_user_instances")
	check(t, os.MkdirAll(filepath.Dir(file), 0o755))
	for value, want := range map[string]string{"128": "10 workspaces of one uid need 160", "160": ""} {
		check(t, os.WriteFile(file, []byte(value+"\n"), 0o644))
		check(t, r.Prepare(t.Context()))
		err := conditions.Err("kernel-limits")
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("with %s: condition = %v, want %q", value, err, want)
		}
	}
}

// One workspace takes what the kernel counts for all containers of its uid; another
// one still gets what it needs.
func TestKernelResourcesOfNeighbour(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	r := newRuntime(t, func(c *Config) { c.KeepLimits = false })
	hostile, neighbour := running(t, r), running(t, r)
	for _, up := range []runtime.Upstream{hostile, neighbour} {
		putProbe(t, r, up.ContainerID, "")
	}
	check(t, r.Prepare(t.Context()))
	type taken map[string]int
	limited := r.kernel.noUlimits.Load() // Docker may not lift limits here
	// More than the usual limits: 128 instances, 4 pending signals per MiB of memory,
	// 10 queues.
	t.Log("taken by one workspace:", holdProbe[taken](t, r, hostile, "take", "150000", "1h"))
	for name, n := range probeInside[taken](t, r, neighbour.ContainerID, "/probe", "take", "50", "0s") {
		if n != 50 && !(limited && name != "inotify instances") {
			t.Errorf("the neighbour got %d of 50 %s", n, name)
		}
	}
}

// What one workspace takes of what the kernel counts by uid, no workspace with another uid
// lacks, also where no limit could be raised.
func TestUIDsKeepKernelResourcesApart(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	r := newRuntime(t, nil)
	r.kernel.noUlimits.Store(true)
	var ups []runtime.Upstream
	for _, uid := range []uint32{ownUID + 100, ownUID + 100, ownUID + 101} {
		spec := newHome()
		spec.UID = uid
		up := startSpec(t, r, spec)
		putProbe(t, r, up.ContainerID, "")
		ups = append(ups, up)
	}
	const queues = "message queues"
	type taken map[string]int
	all := holdProbe[taken](t, r, ups[0], "take", "50", "1h")[queues]
	if all == 0 || all == 50 {
		t.Fatalf("the kernel gave %d of 50 message queues, not as many as its limit allows", all)
	}
	if n := probeInside[taken](t, r, ups[1].ContainerID, "/probe", "take", "50", "0s")[queues]; n != 0 {
		t.Errorf("a workspace of the same uid got %d of %d message queues; the test shows nothing", n, all)
	}
	if n := probeInside[taken](t, r, ups[2].ContainerID, "/probe", "take", "50", "0s")[queues]; n != all {
		t.Errorf("a workspace of another uid got %d of %d message queues", n, all)
	}
}
