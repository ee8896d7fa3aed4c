package docker

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"codehub/internal/base/health"
	"codehub/internal/runtime"
	"codehub/internal/runtime/account"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/image"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// fakeIDE is an image with the test server as the IDE.
func fakeIDE(t *testing.T) string {
	t.Helper()
	r := newRuntime(t, nil)
	c, err := r.engine.API.ContainerCreate(t.Context(), client.ContainerCreateOptions{
		Config:     &container.Config{Image: harness.TestImage(), Cmd: []string{"never-started"}, Labels: r.engine.Labels("test", "", "")},
		HostConfig: &container.HostConfig{NetworkMode: engine.NoNetwork},
	})
	check(t, err)
	defer func() {
		if err := r.engine.Discard(t.Context(), c.ID); err != nil {
			t.Error(err)
		}
	}()
	res, err := r.engine.API.CopyFromContainer(t.Context(), c.ID, client.CopyFromContainerOptions{SourcePath: "/testserver"})
	check(t, err)
	defer res.Content.Close()
	in := tar.NewReader(res.Content)
	header, err := in.Next()
	check(t, err)
	var b bytes.Buffer
	out := tar.NewWriter(&b)
	header.Name = strings.TrimPrefix(account.IDEStart, "/")
	check(t, out.WriteHeader(header))
	must(t)(io.Copy(out, in))
	check(t, out.Close())
	return importImage(t, r, nil, b.Bytes())
}

// files is a tar archive with these files.
func files(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, h := range headers {
		content := h.Linkname
		if h.Typeflag == tar.TypeReg {
			h.Linkname, h.Size = "", int64(len(content))
		}
		check(t, tw.WriteHeader(&h))
		if h.Typeflag == tar.TypeReg {
			must(t)(io.WriteString(tw, content))
		}
	}
	check(t, tw.Close())
	return b.Bytes()
}

// Any image gets the IDE, and runs it as the workspace user, who has a name and owns the
// home. Nothing that the image says or holds takes the place of codehub's programs.
func TestAnyImage(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, func(c *Config) { c.IDEImage = fakeIDE(t) })
	dir, reg, link := byte(tar.TypeDir), byte(tar.TypeReg), byte(tar.TypeSymlink)
	for name, test := range map[string]struct {
		changes []string
		files   []tar.Header
	}{
		"almost nothing": {nil, []tar.Header{{Name: "file", Typeflag: reg, Mode: 0o644, Linkname: "content"}}},
		"a command that fails, a user and a folder without access": {
			[]string{`ENTRYPOINT ["/bin/false"]`, "USER app", "WORKDIR /closed", "ENV FOO=bar", "ENV HOME=/root"},
			[]tar.Header{
				{Name: "closed/", Typeflag: dir, Mode: 0o700},
				{Name: "etc/passwd", Typeflag: reg, Mode: 0o600, Linkname: "root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/app:/bin/sh\ncoder:x:1234:1234::/srv:/bin/sh\n"},
				{Name: "home/coder/", Typeflag: dir, Mode: 0o700, Uid: 1234, Gid: 1234},
				{Name: "home/coder/his", Typeflag: reg, Mode: 0o4600, Uid: 1234, Gid: 1234},
				{Name: "home/coder/roots", Typeflag: reg, Mode: 0o600},
				{Name: "home/coder/foreign", Typeflag: reg, Mode: 0o640, Uid: 4711, Gid: 4712},
			},
		},
		"hostile": {
			[]string{`ENTRYPOINT ["/opt/codehub/codehub"]`, "USER 0", "ENV PATH=/evil"},
			[]tar.Header{
				{Name: "opt/codehub/", Typeflag: dir, Mode: 0o777},
				{Name: "opt/codehub/codehub", Typeflag: reg, Mode: 0o755, Linkname: "#!/evil"},
				{Name: "opt/codehub-ide/", Typeflag: dir, Mode: 0o777},
				{Name: "opt/codehub-ide/start", Typeflag: reg, Mode: 0o755, Linkname: "#!/evil"},
				{Name: "etc/hostile", Typeflag: reg, Mode: 0o644, Linkname: "coder:x:0:0::/evil:/evil\n"},
				{Name: "etc/passwd", Typeflag: link, Mode: 0o777, Linkname: "hostile"},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := newHome()
			spec.UID, spec.Image = ownUID, importImage(t, r, test.changes, files(t, test.files...))
			up := startSpec(t, r, spec)
			hello(t, up)
			info := inspectOf(t, r, up)
			if info.Config.User != image.UserSpec(ownUID) || info.Config.WorkingDir != "/" {
				t.Errorf("user %q in %q", info.Config.User, info.Config.WorkingDir)
			}
			putProbe(t, r, up.ContainerID, "")
			got := probeInside[struct {
				UID, GID    int
				Home, Write string
			}](t, r, up.ContainerID, "/probe", "id")
			if got.UID != ownUID || got.GID != ownUID || got.Home != runtime.HomeDir || got.Write != "<nil>" {
				t.Errorf("in the workspace: %+v", got)
			}
			passwd := readFile(t, r, up.ContainerID, "/etc/passwd")
			if !strings.HasPrefix(passwd, fmt.Sprintf("coder:x:%d:%[1]d:coder:/home/coder:", ownUID)) || strings.Count(passwd, "coder:x:") != 1 {
				t.Errorf("users:\n%s", passwd)
			}
			must(t)(r.engine.API.ContainerStatPath(t.Context(), up.ContainerID, client.ContainerStatPathOptions{Path: "/tmp"}))
			for _, f := range (direct{r: r, storage: workspace.StorageDockerVolume}).home(t, spec.Workspace) {
				uid, gid := ownUID, ownUID
				if f.Path == "foreign" {
					uid, gid = 4711, 4712
				}
				if f.UID != uid || f.GID != gid {
					t.Errorf("%s belongs to %d:%d, want %d:%d", f.Path, f.UID, f.GID, uid, gid)
				}
			}
		})
	}
}

func readFile(t *testing.T, r *Runtime, container, name string) string {
	t.Helper()
	res, err := r.engine.API.CopyFromContainer(t.Context(), container, client.CopyFromContainerOptions{SourcePath: name})
	check(t, err)
	defer res.Content.Close()
	tr := tar.NewReader(res.Content)
	must(t)(tr.Next())
	content, err := io.ReadAll(tr)
	check(t, err)
	return string(content)
}

// The IDE's volume is made again after it was removed by hand, and a new IDE gets another.
func TestIDEVolumeIsRepaired(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	ide := fakeIDE(t)
	r := newRuntime(t, func(c *Config) { c.IDEImage = ide })
	image := importImage(t, r, nil, files(t, tar.Header{Name: "file", Typeflag: tar.TypeReg, Mode: 0o644}))
	name, digest, err := r.tools.IDE(t.Context())
	check(t, err)
	// Docker makes it again, empty, for a container that mounts it.
	must(t)(r.engine.API.VolumeRemove(t.Context(), name, client.VolumeRemoveOptions{}))
	must(t)(r.engine.EnsureVolume(t.Context(), client.VolumeCreateOptions{Name: name, Labels: r.engine.Labels(engine.RoleIDE, "", "")}))
	spec := newHome()
	spec.Image = image
	hello(t, startSpec(t, r, spec))

	ide = fakeIDE(t)
	conditions := &health.Monitor{}
	restarted := func() *Runtime {
		return newRuntime(t, func(c *Config) {
			c.Installation, c.Subnet, c.IDEImage, c.Conditions = r.cfg.Installation, r.cfg.Subnet, ide, conditions
		})
	}
	later := restarted()
	next, nextDigest, err := later.tools.IDE(t.Context())
	if err != nil || next == name || nextDigest == digest {
		t.Errorf("the next IDE is on %s: %v", next, err)
	}
	if err := later.tools.Sweep(t.Context()); err != nil { // the first is in use
		t.Error(err)
	}
	// A prune removes the image, which no container runs: the volume is enough.
	must(t)(r.engine.API.ImageRemove(t.Context(), ide, client.ImageRemoveOptions{Force: true}))
	if again, _, err := later.tools.IDE(t.Context()); err != nil || again != next {
		t.Errorf("without the image: %s, %v", again, err)
	}
	conditions = &health.Monitor{}
	if _, _, err := restarted().tools.IDE(t.Context()); err == nil || conditions.Err("ide") == nil || !strings.Contains(err.Error(), "CODEHUB_IDE_IMAGE") {
		t.Errorf("without both: %v; the condition: %v", err, conditions.Err("ide"))
	}
}
