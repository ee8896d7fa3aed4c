package docker

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/account"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// ownUID is the uid of the workspaces in tests of uids.
const ownUID = 1_500_042

// variant is the test image with more files and other settings.
func variant(t *testing.T, r *Runtime, changes []string, files ...tar.Header) string {
	t.Helper()
	ctx := t.Context()
	c, err := r.engine.API.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config:     &container.Config{Image: harness.TestImage(), Cmd: []string{"never-started"}, Labels: r.engine.Labels("test", "", "")},
		HostConfig: &container.HostConfig{NetworkMode: engine.NoNetwork},
	})
	check(t, err)
	defer func() {
		if err := r.engine.Discard(ctx, c.ID); err != nil {
			t.Error(err)
		}
	}()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, h := range files {
		content := h.Name
		if h.Name == "etc/passwd" || h.Name == "etc/users" {
			content = "root:x:0:0::/root:/x\ntoor:x:0:0::/:/x\napp:x:10001:10001::/home/coder:/x\n"
		}
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(content))
		}
		check(t, tw.WriteHeader(&h))
		if h.Typeflag == tar.TypeReg {
			must(t)(tw.Write([]byte(content)))
		}
	}
	check(t, tw.Close())
	must(t)(r.engine.API.CopyToContainer(ctx, c.ID, client.CopyToContainerOptions{DestinationPath: "/", Content: &b}))
	rootfs, err := r.engine.API.ContainerExport(ctx, c.ID, client.ContainerExportOptions{})
	check(t, err)
	defer rootfs.Close()
	ref := "codehub-test/" + engine.RandomHex(8) + ":latest"
	res, err := r.engine.API.ImageImport(ctx, client.ImageImportSource{Source: rootfs, SourceName: "-"}, ref, client.ImageImportOptions{
		Changes: append(changes, `ENTRYPOINT ["/testserver"]`, "WORKDIR /home/coder", "LABEL "+account.LabelIDE+"="+account.IDEIncluded, "LABEL "+engine.LabelInstallation+"="+r.cfg.Installation),
	})
	check(t, err)
	drain(t, res)
	return ref
}

// An image that brings its IDE runs as the workspace's uid, whatever user it names, and
// what root or the home's owner has in the home belongs to that uid.
func TestImageRunsAsUIDOfWorkspace(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	ofRoot := []tar.Header{
		{Name: "home/coder/", Typeflag: tar.TypeDir, Mode: 0o700},
		{Name: "home/coder/roots", Typeflag: tar.TypeReg, Mode: 0o600},
		{Name: "home/coder/closed/", Typeflag: tar.TypeDir, Mode: 0o700},
		{Name: "home/coder/closed/in it", Typeflag: tar.TypeReg, Mode: 0o600},
		{Name: "home/coder/link", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd", Mode: 0o777},
		{Name: "home/coder/foreign", Typeflag: tar.TypeReg, Mode: 0o640, Uid: 4711, Gid: 4712},
	}
	linked := []tar.Header{
		{Name: "etc/passwd", Typeflag: tar.TypeSymlink, Linkname: "../usr/users", Mode: 0o777},
		{Name: "usr/users", Typeflag: tar.TypeSymlink, Linkname: "/etc/users", Mode: 0o777},
		{Name: "etc/users", Typeflag: tar.TypeReg, Mode: 0o644},
	}
	r := newRuntime(t, nil)
	for _, test := range []struct {
		name    string
		changes []string
		files   []tar.Header
		storage string
	}{
		{"no user", nil, ofRoot, workspace.StorageDockerVolume},
		{"a user that it lacks", []string{"USER nobody-knows"}, ofRoot, workspace.StorageLocalDir},
		{"root, behind links", []string{"USER toor"}, append(linked, ofRoot...), workspace.StorageDockerVolume},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			spec := newHome()
			spec.Image, spec.Storage, spec.UID = variant(t, r, test.changes, test.files...), test.storage, ownUID
			seed(t, r, spec)
			check(t, r.OwnHome(t.Context(), ownOf(spec), nil))
			c := start(t, r, spec)
			info, err := r.engine.API.ContainerInspect(t.Context(), c.ID, client.ContainerInspectOptions{})
			check(t, err)
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", ideOf(t, info.Container)))
			if want := fmt.Sprintf("\nUid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d\n", ownUID); err != nil || !strings.Contains(string(status), want) {
				t.Errorf("on the host it does not run as uid %d: %v\n%s", ownUID, err, status)
			}
			putProbe(t, r, c.ID, "")
			got := probeInside[struct {
				UID, GID    int
				Home, Write string
			}](t, r, c.ID, "/probe", "id")
			if got.UID != ownUID || got.GID != ownUID || got.Home != runtime.HomeDir || got.Write != "<nil>" {
				t.Errorf("in the workspace: %+v", got)
			}
			for _, f := range (direct{r: r, storage: test.storage}).home(t, spec.Workspace) {
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
