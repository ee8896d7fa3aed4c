package docker

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/account"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/image"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// An interrupted copy is done again, concurrent ones wait, and a complete one stays.
func TestInstallTree(t *testing.T) {
	t.Parallel()
	from, to := t.TempDir(), t.TempDir()
	nothing := func() error { return nil }
	putFileWith(t, from, "start", "program")
	check(t, os.Chmod(filepath.Join(from, "start"), 0o4711))
	check(t, os.MkdirAll(filepath.Join(from, "lib/deep"), 0o700))
	putFileWith(t, filepath.Join(from, "lib/deep"), "file", "content")
	check(t, os.Symlink("deep/file", filepath.Join(from, "lib/link")))
	putFileWith(t, to, "left over", "of a call that was killed")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if err := installTree(from, to, "one", nothing); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if info, err := os.Stat(filepath.Join(to, "start")); err != nil || info.Mode() != 0o555 {
		t.Fatalf("%v, %v", info, err)
	}
	content, err := os.ReadFile(filepath.Join(to, "lib/link"))
	if err != nil || string(content) != "content" {
		t.Errorf("%q, %v", content, err)
	}
	stray := filepath.Join(to, "left over")
	isThere := func() bool { _, err := os.Lstat(stray); return err == nil }
	if isThere() {
		t.Error("what was left over is there")
	}
	putFileWith(t, to, "left over", "from now on") // a copy removes it
	if err := installTree(from, to, "one", nothing); err != nil || !isThere() {
		t.Errorf("a complete tree was copied again: %v", err)
	}
	check(t, os.Remove(filepath.Join(to, completeFile)))
	if err := installTree(from, to, "one", nothing); err != nil || isThere() {
		t.Errorf("an incomplete tree was kept: %v", err)
	}
	check(t, syscall.Mkfifo(filepath.Join(from, "pipe"), 0o600))
	if err := installTree(from, to, "two", nothing); err == nil {
		t.Error("a pipe was copied")
	}
	if _, err := os.Lstat(filepath.Join(to, completeFile)); !os.IsNotExist(err) {
		t.Errorf("after a failure: %v", err)
	}
}

// fakeIDE is an image with the test server as the IDE.
func fakeIDE(t *testing.T, r *Runtime) string {
	t.Helper()
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
	r := newRuntime(t, nil)
	r.cfg.IDEImage = fakeIDE(t, r)
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
	r := newRuntime(t, nil)
	r.cfg.IDEImage = fakeIDE(t, r)
	image := importImage(t, r, nil, files(t, tar.Header{Name: "file", Typeflag: tar.TypeReg, Mode: 0o644}))
	name, digest, err := r.ensureIDEVolume(t.Context())
	check(t, err)
	// Docker makes it again, empty, for a container that mounts it.
	must(t)(r.engine.API.VolumeRemove(t.Context(), name, client.VolumeRemoveOptions{}))
	must(t)(r.engine.CreateVolume(t.Context(), client.VolumeCreateOptions{Name: name, Labels: r.toolMount(&r.ide, name).VolumeOptions.Labels}))
	spec := newHome()
	spec.Image = image
	hello(t, startSpec(t, r, spec))

	r.cfg.IDEImage = fakeIDE(t, r)
	next, nextDigest, err := r.ensureIDEVolume(t.Context())
	if err != nil || next == name || nextDigest == digest {
		t.Errorf("the next IDE is on %s: %v", next, err)
	}
	if err := r.sweepToolVolumes(t.Context()); err != nil { // the first is in use
		t.Error(err)
	}
	// A prune removes the image, which no container runs: the volume is enough.
	r.cfg.IDEImage = "codehub-test/missing:latest"
	if again, _, err := r.ensureIDEVolume(t.Context()); err != nil || again != next {
		t.Errorf("without the image: %s, %v", again, err)
	}
	r.ide.forget() // as after a restart
	if _, _, err := r.ensureIDEVolume(t.Context()); err == nil || r.ide.failed.Err() == nil || !strings.Contains(err.Error(), "CODEHUB_IDE_IMAGE") {
		t.Errorf("without both: %v; the condition: %v", err, r.ide.failed.Err())
	}
}
