package docker

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"codehub/internal/runtime/account"
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
				want := fmt.Sprintf("coder:x:%d:", ownUID)
				if got := readFile(t, r, up.ContainerID, list); !strings.HasPrefix(got, want) || strings.Count(got, "coder:") != 1+strings.Count(want, "coder:coder:") && list == "/etc/group" {
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

	// It is in use, and stays as old as it may get.
	r.engine.Now = func() time.Time { return time.Now().Add(24 * time.Hour) }
	check(t, r.images.SweepNames(t.Context()))
	files := must2(t)(filepath.Glob(filepath.Join(r.cfg.DataDir, "names", "*")))
	if len(files) != 2 {
		t.Errorf("files in use: %q", files)
	}
	check(t, r.RemoveContainer(t.Context(), up.ContainerID, 0))
	check(t, r.images.SweepNames(t.Context()))
	if left := must2(t)(filepath.Glob(filepath.Join(r.cfg.DataDir, "names", "*"))); len(left) > 0 {
		t.Errorf("files that nothing mounts: %q", left)
	}
	r.engine.Now = time.Now

	image, err := r.images.RunAs(t.Context(), spec.Image)
	check(t, err)
	var _ = image
	var _ = account.User
	var _ = client.ContainerStartOptions{}
}
