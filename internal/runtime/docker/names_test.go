package docker

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"codehub/internal/testing/harness"
)

// The user of a workspace has a name by files of the data folder where nothing has to be copied,
// and otherwise by a copy: with sudo, whose programs replace the files, and where Docker cannot
// mount the files.
func TestUserHasName(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change  func(*testing.T, *Config)
		mounted bool
	}{
		"mounted":                              {nil, true},
		"sudo":                                 {func(_ *testing.T, c *Config) { c.Sudo = true }, false},
		"no data folder":                       {func(_ *testing.T, c *Config) { c.DataDir = "" }, false},
		"data folder of another host":          {func(t *testing.T, c *Config) { c.HostDataDir = filepath.Join(t.TempDir(), "none") }, false},
		"data folder that cannot be written":   {func(_ *testing.T, c *Config) { c.DataDir = "/proc/none" }, false},
		"files that are lost before the start": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newFaultProxy(t)
			r := newRuntime(t, func(c *Config) {
				if c.Host = e.host; test.change != nil {
					test.change(t, c)
				}
			})
			if strings.HasPrefix(name, "files that are lost") {
				lost := func(_ http.ResponseWriter, req *http.Request) bool {
					if strings.HasSuffix(req.URL.Path, "/start") {
						check(t, os.RemoveAll(filepath.Join(r.cfg.DataDir, "names")))
					}
					return false
				}
				e.fault.Store(&lost)
			}
			spec := newHome()
			spec.UID = ownUID
			up := startSpec(t, r, spec)
			hello(t, up)
			mounts := mountsOf(inspectOf(t, r, up))
			for _, list := range []string{"/etc/passwd", "/etc/group"} {
				if writable, found := mounts[list]; found != test.mounted || writable {
					t.Errorf("the mounts are %v", mounts)
				}
				if got := readFile(t, r, up.ContainerID, list); !strings.HasPrefix(got, fmt.Sprintf("coder:x:%d:", ownUID)) || strings.Count(got, "coder:x:") != 1 {
					t.Errorf("%s:\n%s", list, got)
				}
			}
		})
	}
}

// Programs find the workspace's user in mounted lists, also after the next start, and root of
// docker exec cannot change them. A container that was created by a killed server starts with
// complete lists.
func TestMountedNames(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, func(c *Config) { c.IDEImage = fakeIDE(t) })
	spec := newHome()
	spec.Image, spec.UID = harness.SlimImage(), ownUID
	up := startSpec(t, r, spec)
	want := fmt.Sprintf("uid=%d(coder) gid=%[1]d(coder) groups=%[1]d(coder)\ncoder\n%s\ncoder:x:%[1]d:\n/home/coder\nrw\n", ownUID,
		fmt.Sprintf("coder:x:%d:%[1]d:coder:/home/coder:/bin/bash", ownUID))
	const script = `id; whoami; getent passwd coder; getent group coder; cd; pwd; touch x && echo rw; (echo x >> /etc/passwd) 2>/dev/null && echo changed; true`
	if got, err := inside(t.Context(), r, up.ContainerID, "sh", "-c", script); err != nil || got != want {
		t.Errorf("in the workspace: %v\n%s\nwant\n%s", err, got, want)
	}

	files := func(now time.Time) []string {
		t.Helper()
		r.engine.Now = func() time.Time { return now }
		check(t, r.images.SweepNames(t.Context()))
		list, err := filepath.Glob(filepath.Join(r.cfg.DataDir, "names", "*"))
		check(t, err)
		return list
	}
	later := time.Now().Add(24 * time.Hour)
	if got := files(later); len(got) != 2 {
		t.Errorf("files in use: %q", got)
	}
	check(t, r.RemoveContainer(t.Context(), up.ContainerID, 0))
	if got := files(later); len(got) > 0 {
		t.Errorf("files that nothing mounts: %q", got)
	}

	direct{r: r}.halfStart(t, spec)
	for _, file := range files(time.Now()) {
		check(t, os.Truncate(file, 0))
	}
	created, err := r.inspectNamed(t.Context(), spec.Workspace)
	check(t, err)
	if c := start(t, r, spec); c.ID != created.Container.ID {
		t.Errorf("another container than the created one was started")
	}
	if got, err := inside(t.Context(), r, created.Container.ID, "sh", "-c", script); err != nil || got != want {
		t.Errorf("in a container of a killed server: %v\n%s\nwant\n%s", err, got, want)
	}
}
