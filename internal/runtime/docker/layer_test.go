package docker

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"codehub/internal/harness"
)

// newLayers returns the two upper folders of an overlay as Docker makes them for a new
// container: the lower one has /etc.
func newLayers(t *testing.T) (upper, below string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("the test changes owners: run it as root")
	}
	dir := t.TempDir()
	upper, below = filepath.Join(dir, "container/diff"), filepath.Join(dir, "container-init/diff")
	for _, folder := range []string{upper, below + "/etc"} {
		check(t, os.MkdirAll(folder, 0o755))
	}
	return upper, below
}

func TestPutInEtc(t *testing.T) {
	t.Parallel()
	upper, below := newLayers(t)
	check(t, os.Chown(below+"/etc", 4711, 4712))
	check(t, unix.Chmod(below+"/etc", 0o3750))
	want, err := os.Stat(below + "/etc")
	check(t, err)
	check(t, putInEtc(upper, below, map[string]string{"passwd": "users", "group": "groups"}))
	var s unix.Stat_t
	check(t, unix.Lstat(upper+"/etc", &s))
	got, err := os.Lstat(upper + "/etc")
	if err != nil || got.Mode() != want.Mode() || !got.ModTime().Equal(want.ModTime()) || s.Uid != 4711 || s.Gid != 4712 {
		t.Errorf("%v %v %d:%d, want %v %v: %v", got.Mode(), got.ModTime(), s.Uid, s.Gid, want.Mode(), want.ModTime(), err)
	}
	for name, want := range map[string]string{"passwd": "users", "group": "groups"} {
		content, err := os.ReadFile(upper + "/etc/" + name)
		if err != nil || string(content) != want {
			t.Errorf("%s: %q, %v", name, content, err)
		}
		if err := unix.Lstat(upper+"/etc/"+name, &s); err != nil || s.Mode != unix.S_IFREG|0o644 || s.Uid != 0 || s.Gid != 0 {
			t.Errorf("%s: mode %o, %d:%d, %v", name, s.Mode, s.Uid, s.Gid, err)
		}
	}
	if entries, err := os.ReadDir(filepath.Dir(upper)); err != nil || len(entries) != 1 {
		t.Errorf("left next to the upper folder: %v, %v", entries, err)
	}
}

// Where a layer is not as expected, nothing is written, neither there nor where a link
// leads.
func TestPutInEtcRefusesUnexpectedLayers(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(upper, below, outside string) error{
		"etc is there":        func(upper, _, _ string) error { return os.Mkdir(upper+"/etc", 0o700) },
		"etc is a link":       func(upper, _, outside string) error { return os.Symlink(outside, upper+"/etc") },
		"an interrupted call": func(upper, _, _ string) error { return os.Mkdir(filepath.Dir(upper)+"/codehub-etc", 0o700) },
		"a link in its place": func(upper, _, outside string) error { return os.Symlink(outside, filepath.Dir(upper)+"/codehub-etc") },
		"no etc below":        func(_, below, _ string) error { return os.Remove(below + "/etc") },
		"etc below is a link": func(_, below, outside string) error {
			return errors.Join(os.Remove(below+"/etc"), os.Symlink(outside, below+"/etc"))
		},
		"etc below has an attribute": func(_, below, _ string) error {
			return unix.Setxattr(below+"/etc", "trusted.overlay.redirect", []byte("/other"), 0)
		},
		"the upper folder is a link": func(upper, _, outside string) error {
			return errors.Join(os.Remove(upper), os.Symlink(outside, upper))
		},
	} {
		upper, below := newLayers(t)
		outside := t.TempDir()
		if err := change(upper, below, outside); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if err := putInEtc(upper, below, map[string]string{"passwd": "users"}); err == nil {
			t.Errorf("%s: no error", what)
		}
		for _, dir := range []string{outside, filepath.Join(upper, "etc")} {
			if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
				t.Errorf("%s: %s has %v", what, dir, entries)
			}
		}
	}
}

// What a container has in /etc is the same, whether this process or Docker put it there. A
// link in the place of /etc is left to Docker.
func TestNamesAreTheSameHereAndByDocker(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	r := newRuntime(t, nil)
	if os.Geteuid() != 0 || !r.engine(t.Context()).keepsUsers {
		t.Fatal("the test needs root and a Docker that does not map users")
	}
	const etcIsLink = "etc is a link"
	dir, reg, link := byte(tar.TypeDir), byte(tar.TypeReg), byte(tar.TypeSymlink)
	for name, list := range map[string][]tar.Header{
		"no etc": {{Name: "file", Typeflag: reg, Mode: 0o644}},
		"its own mode and owner": {{Name: "etc/", Typeflag: dir, Mode: 0o2750, Uid: 4711, Gid: 4712},
			{Name: "etc/passwd", Typeflag: reg, Mode: 0o600, Uid: 5}, {Name: "etc/other", Typeflag: reg, Mode: 0o640, Linkname: "other"}},
		"links":   {{Name: "etc/real", Typeflag: reg, Mode: 0o644, Linkname: "real"}, {Name: "etc/passwd", Typeflag: link, Linkname: "real"}, {Name: "etc/group", Typeflag: link, Linkname: "/file"}},
		etcIsLink: {{Name: "elsewhere/passwd", Typeflag: reg, Mode: 0o644, Linkname: "elsewhere"}, {Name: "etc", Typeflag: link, Linkname: "/elsewhere"}},
	} {
		image := importImage(t, r, nil, files(t, list...))
		names := map[string]string{"passwd": "users\n", "group": "groups\n"}
		content, err := accountsTar(names, false, nil)
		check(t, err)
		var seen [2]string
		for i, put := range []func(id string) error{
			func(id string) error {
				done, err := r.nameHere(t.Context(), id, names)
				if done == (name == etcIsLink) {
					t.Errorf("%s: done here: %v", name, done)
				}
				return err
			},
			func(id string) error {
				_, err := r.api.CopyToContainer(t.Context(), id, client.CopyToContainerOptions{DestinationPath: "/", Content: bytes.NewReader(content)})
				return err
			},
		} {
			made, err := r.api.ContainerCreate(t.Context(), client.ContainerCreateOptions{
				Config:     &container.Config{Image: image, Cmd: []string{"never-started"}, Labels: r.labels(roleHelper, "", "")},
				HostConfig: &container.HostConfig{NetworkMode: noNetwork},
			})
			check(t, err)
			if err := put(made.ID); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			seen[i] = listing(t, r, made.ID, "/etc")
		}
		if name == etcIsLink {
			continue
		}
		if diff := cmp.Diff(seen[1], seen[0]); diff != "" || !strings.Contains(seen[0], "users") {
			t.Errorf("%s (-by Docker +here):\n%s", name, diff)
		}
	}
}

// listing describes a folder of a container and all that it has, without times.
func listing(t *testing.T, r *Runtime, id, folder string) string {
	t.Helper()
	res, err := r.api.CopyFromContainer(t.Context(), id, client.CopyFromContainerOptions{SourcePath: folder})
	check(t, err)
	defer res.Content.Close()
	var lines []string
	for tr := tar.NewReader(res.Content); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			slices.Sort(lines)
			return strings.Join(lines, "\n")
		}
		check(t, err)
		content, err := io.ReadAll(tr)
		check(t, err)
		lines = append(lines, fmt.Sprintf("%s %c %o %d:%d %q %q", h.Name, h.Typeflag, h.Mode, h.Uid, h.Gid, h.Linkname, content))
	}
}
