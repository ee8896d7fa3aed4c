package docker

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"codehub/internal/harness"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

func TestResolveUser(t *testing.T) {
	t.Parallel()
	passwd := "root:x:0:0:root:/root:/bin/sh\ntoor:x:0:0::/:/bin/sh\napp:x:10001:10001::/:/bin/sh\n" +
		"broken:x:many:1::/:/bin/sh\nshort\n 7 :x:1:1\napp:x:0:0::/:/bin/sh\n"
	for user, want := range map[string]string{
		"": asWorkspaceUser, "0": asWorkspaceUser, "0:0": asWorkspaceUser, "00": asWorkspaceUser, "+0": asWorkspaceUser, "-0": asWorkspaceUser,
		":0": asWorkspaceUser, ":1000": asWorkspaceUser, "0:1000": asWorkspaceUser, "root": asWorkspaceUser, "root:root": asWorkspaceUser,
		"toor": asWorkspaceUser, "broken": asWorkspaceUser, "short": asWorkspaceUser,
		"1000": "1000", "1000:1000": "1000:1000", "1000:0": "1000:0", "+5": "5", "33:www-data": "33:www-data",
		"app": "10001", "app:app": "10001:app",
		"nobody": "", "0x0": "", "1e3": "",
	} {
		got, err := resolveUser(user, func() (string, error) { return passwd, nil })
		if got.user != want || (err == nil) != (want != "") || got.own != (want == asWorkspaceUser && user != "1000:1000") {
			t.Errorf("resolveUser(%q) = %+v, %v; want %q", user, got, err, want)
		}
	}
	unreadable := errors.New("unreadable")
	if got, err := resolveUser("app", func() (string, error) { return "", unreadable }); !errors.Is(err, unreadable) {
		t.Errorf("resolveUser without a list of users = %+v, %v", got, err)
	}
}

// variant is the test image with more files and other settings.
func variant(t *testing.T, r *Runtime, changes []string, files ...tar.Header) string {
	t.Helper()
	ctx := t.Context()
	c, err := r.api.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config:     &container.Config{Image: harness.TestImage(), Cmd: []string{"never-started"}, Labels: r.labels("test", "", "")},
		HostConfig: &container.HostConfig{NetworkMode: noNetwork},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.discard(ctx, c.ID); err != nil {
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
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := tw.Write([]byte(content)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.api.CopyToContainer(ctx, c.ID, client.CopyToContainerOptions{DestinationPath: "/", Content: &b}); err != nil {
		t.Fatal(err)
	}
	rootfs, err := r.api.ContainerExport(ctx, c.ID, client.ContainerExportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer rootfs.Close()
	ref := "codehub-test/" + randomHex(8) + ":latest"
	res, err := r.api.ImageImport(ctx, client.ImageImportSource{Source: rootfs, SourceName: "-"}, ref, client.ImageImportOptions{
		Changes: append(changes, `ENTRYPOINT ["/testserver"]`, "WORKDIR /home/coder", "LABEL "+labelIDE+"="+ideIncluded, "LABEL "+labelInstallation+"="+r.cfg.Installation),
	})
	if err != nil {
		t.Fatal(err)
	}
	drain(t, res)
	return ref
}

// An image whose user is root runs as uid 1000, and what root owns in its home
// belongs to that user. Root is looked for behind a name and a link, too.
func TestImageOfRootRunsAsWorkspaceUser(t *testing.T) {
	t.Parallel()
	ofRoot := []tar.Header{
		{Name: "home/coder/", Typeflag: tar.TypeDir, Mode: 0o700},
		{Name: "home/coder/roots", Typeflag: tar.TypeReg, Mode: 0o600},
		{Name: "home/coder/closed/", Typeflag: tar.TypeDir, Mode: 0o700},
		{Name: "home/coder/closed/in it", Typeflag: tar.TypeReg, Mode: 0o600},
		{Name: "home/coder/link", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd", Mode: 0o777},
		{Name: "home/coder/foreign", Typeflag: tar.TypeReg, Mode: 0o640, Uid: 4711, Gid: 4712},
	}
	users := []tar.Header{{Name: "etc/passwd", Typeflag: tar.TypeReg, Mode: 0o644}}
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
		uid     int
	}{
		{"no user", nil, ofRoot, workspace.StorageDockerVolume, 1000},
		{"uid 0", []string{"USER 0:0"}, ofRoot, workspace.StorageLocalDir, 1000},
		{"another name of root", []string{"USER toor"}, append(users, ofRoot...), workspace.StorageDockerVolume, 1000},
		{"another user", []string{"USER app"}, users, workspace.StorageDockerVolume, 10001},
		{"users behind links", []string{"USER root"}, append(linked, ofRoot...), workspace.StorageDockerVolume, 1000},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			spec := newHome()
			spec.Image, spec.Storage = variant(t, r, test.changes, test.files...), test.storage
			volume := runtime.VolumeSpec{Workspace: spec.Workspace, Storage: spec.Storage, Claim: spec.VolumeClaim, Image: spec.Image}
			if err := r.CreateVolume(t.Context(), volume, nil); err != nil {
				t.Fatal(err)
			}
			c, err := r.StartContainer(t.Context(), spec, nil)
			if err != nil {
				t.Fatal(err)
			}
			awaitHealthy(t, r, c)
			info, err := r.api.ContainerInspect(t.Context(), c.ID, client.ContainerInspectOptions{})
			if err != nil {
				t.Fatal(err)
			}
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", ideOf(t, info.Container)))
			if want := fmt.Sprintf("\nUid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d\n", test.uid); err != nil || !strings.Contains(string(status), want) {
				t.Errorf("on the host it does not run as uid %d: %v\n%s", test.uid, err, status)
			}
			if test.uid != 1000 {
				return
			}
			putProbe(t, r, c.ID, "")
			got := probeInside[struct {
				UID, GID    int
				Home, Write string
			}](t, r, c.ID, "/probe", "id")
			if got.UID != 1000 || got.GID != 1000 || got.Home != runtime.HomeDir || got.Write != "<nil>" {
				t.Errorf("in the workspace: %+v", got)
			}
			for _, f := range (direct{r: r, storage: test.storage}).home(t, spec.Workspace) {
				uid, gid := 1000, 1000
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

func TestUnknownUserOfImage(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	image := variant(t, r, []string{"USER nobody-knows"})
	if as, err := r.userOf(t.Context(), image); err == nil || !strings.Contains(err.Error(), "nobody-knows") {
		t.Errorf("userOf = %+v, %v", as, err)
	}
}

// A container that an earlier version created for root, and did not start, is
// created again.
func TestCreatedContainerOfRootIsReplaced(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	spec := newHome()
	spec.Image = variant(t, r, nil)
	volume := runtime.VolumeSpec{Workspace: spec.Workspace, Storage: spec.Storage, Claim: spec.VolumeClaim, Image: spec.Image}
	if err := r.CreateVolume(t.Context(), volume, nil); err != nil {
		t.Fatal(err)
	}
	net, err := r.checkedNetwork(t.Context(), networkMaxAge)
	if err != nil {
		t.Fatal(err)
	}
	as, err := r.userOf(t.Context(), spec.Image)
	if err != nil {
		t.Fatal(err)
	}
	if as.agent, as.agentDigest, err = r.ensureAgentVolume(t.Context()); err != nil {
		t.Fatal(err)
	}
	as.user = ""
	opts := r.createOptions(spec, as, net, r.addrs.take(r.now()), "earlier")
	if _, err := r.api.ContainerCreate(t.Context(), opts); err != nil {
		t.Fatal(err)
	}
	c, err := r.StartContainer(t.Context(), spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	if user := inspectOf(t, r, runtime.Upstream{ContainerID: c.ID}).Config.User; user != asWorkspaceUser {
		t.Errorf("it runs as %q", user)
	}
}
