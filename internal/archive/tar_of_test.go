package archive

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"codehub/internal/testing/archivetest"
)

// partHome has a folder with links to what is in it and outside of it.
func partHome(t *testing.T) string {
	t.Helper()
	home := t.TempDir()
	file := func(name, content string, mode os.FileMode) {
		t.Helper()
		check(t, os.MkdirAll(filepath.Dir(filepath.Join(home, name)), 0o755))
		check(t, os.WriteFile(filepath.Join(home, name), []byte(content), mode))
	}
	file("a/outside", "from outside", 0o640)
	file("src", "x", 0o644)
	check(t, os.Remove(filepath.Join(home, "src")))
	file("src/main.go", "package main", 0o644)
	file("src/deep/"+strings.Repeat("n", 200)+"/file", strings.Repeat("long ", 40_000), 0o600)
	file("src/name\xff\n\\", "any bytes", 0o644)
	file("src.go", "not below src", 0o644)
	check(t, os.Symlink("../a/outside", filepath.Join(home, "src/link")))
	check(t, os.Link(filepath.Join(home, "src/main.go"), filepath.Join(home, "src/zz")))
	check(t, os.Link(filepath.Join(home, "a/outside"), filepath.Join(home, "src/one")))
	check(t, os.Link(filepath.Join(home, "a/outside"), filepath.Join(home, "src/two")))
	check(t, unix.Mkfifo(filepath.Join(home, "a/pipe"), 0o644))
	sparse, err := os.Create(filepath.Join(home, "src/sparse"))
	check(t, err)
	check(t, sparse.Truncate(8<<20))
	_, err = sparse.WriteAt([]byte("end"), 4<<20)
	check(t, err)
	check(t, sparse.Close())
	check(t, os.Chmod(filepath.Join(home, "src/deep"), 0o555))
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(home, "src/deep"), 0o755) })
	return home
}

func TestTarOfFolder(t *testing.T) {
	t.Parallel()
	home, o := partHome(t), newObjects()
	m := o.generation(t, home, BackupOptions{})
	var tar bytes.Buffer
	check(t, m.Tar(t.Context(), o.get, "src", &tar))
	list := exec.Command("tar", "--list", "--file=-", "--quoting-style=escape")
	list.Stdin = bytes.NewReader(tar.Bytes())
	out, err := list.CombinedOutput()
	check(t, err)
	long := "./src/deep/" + strings.Repeat("n", 200) + "/"
	want := []string{"./src/", "./src/deep/", long, long + "file", "./src/link", "./src/main.go", `./src/name\377\n\\`, "./src/one", "./src/sparse", "./src/two", "./src/zz"}
	got := strings.Fields(string(out))
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("tar lists %q, want %q", got, want)
	}
	to := t.TempDir()
	unpack := exec.Command("tar", "--extract", "--preserve-permissions", "--xattrs", "--file=-", "--directory="+to)
	unpack.Stdin = bytes.NewReader(tar.Bytes())
	out, err = unpack.CombinedOutput()
	if err != nil {
		t.Fatalf("tar: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(to, "src/deep"), 0o755) })
	samePart(t, filepath.Join(home, "src"), filepath.Join(to, "src"))
}

func samePart(t *testing.T, want, got string) {
	t.Helper()
	if diff := archivetest.Diff(archivetest.WithoutAtimes(archivetest.Snapshot(t, want)), archivetest.WithoutAtimes(archivetest.Snapshot(t, got))); diff != "" {
		t.Errorf("the part differs:\n%s", diff)
	}
}

func TestTarOfOneEntry(t *testing.T) {
	t.Parallel()
	home, o := partHome(t), newObjects()
	m := o.generation(t, home, BackupOptions{})
	for name, want := range map[string]string{
		"src/main.go": "-rw-r--r-- ./main.go", "src/two": "-rw-r----- ./two", "src/link": "lrwxrwxrwx ./link -> ../a/outside", "src/zz": "-rw-r--r-- ./zz",
	} {
		var tar bytes.Buffer
		check(t, m.Tar(t.Context(), o.get, name, &tar))
		list := exec.Command("tar", "--list", "--verbose", "--file=-")
		list.Stdin = &tar
		out, err := list.CombinedOutput()
		check(t, err)
		fields := strings.Fields(string(out))
		if got := fields[0] + " " + strings.Join(fields[5:], " "); got != want {
			t.Errorf("%s: tar lists %q, want %q", name, got, want)
		}
	}
	for _, name := range []string{"nothing", "src/mai", "src/main.go/x", ""} {
		if err := m.Tar(t.Context(), o.get, name, &bytes.Buffer{}); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: %v, want fs.ErrNotExist", name, err)
		}
	}
}

func TestUnpackPart(t *testing.T) {
	t.Parallel()
	home, o := partHome(t), newObjects()
	m := o.generation(t, home, BackupOptions{})
	unpacked := func(name, as string) (string, bool) {
		t.Helper()
		p, err := m.Part(name)
		check(t, err)
		var tar bytes.Buffer
		check(t, p.Tar(t.Context(), o.get, as, &tar))
		to := t.TempDir()
		dir, err := os.Open(to)
		check(t, err)
		defer dir.Close()
		folder, err := UnpackPart(t.Context(), &tar, int(dir.Fd()), OwnerMap{})
		check(t, err)
		return to, folder
	}
	to, folder := unpacked("src", ".")
	if !folder {
		t.Error("a folder was unpacked as a file")
	}
	samePart(t, filepath.Join(home, "src"), to)
	_ = os.Chmod(filepath.Join(to, "deep"), 0o755)
	if to, folder = unpacked("src/two", PartName); folder {
		t.Error("a file was unpacked as a folder")
	}
	content, err := os.ReadFile(filepath.Join(to, PartName))
	check(t, err)
	if string(content) != "from outside" {
		t.Errorf("the file has %q", content)
	}
}

// The agent takes tars from its server alone; a wrong one still leaves the folder's outside alone.
func TestUnpackPartRefusesOtherTars(t *testing.T) {
	t.Parallel()
	header := func(e entry) []byte {
		b, err := appendHeader(nil, &e)
		check(t, err)
		return b
	}
	end := make([]byte, 2*blockSize)
	for what, tar := range map[string][]byte{
		"nothing":       end,
		"two files":     slices.Concat(header(entry{name: PartName, kind: kindFile}), header(entry{name: "other", kind: kindFile}), end),
		"another name":  slices.Concat(header(entry{name: "other", kind: kindFile}), end),
		"a folder":      slices.Concat(header(entry{name: PartName, kind: kindFolder}), end),
		"a link out":    slices.Concat(header(entry{name: PartName, kind: kindSymlink, link: "/etc"}), header(entry{name: PartName + "/x", kind: kindFile}), end),
		"a name out":    slices.Concat(header(entry{name: ".", kind: kindFolder}), header(entry{name: "../x", kind: kindFile}), end),
		"a cut file":    header(entry{name: PartName, kind: kindFile, size: 3}),
		"no end":        header(entry{name: PartName, kind: kindFile}),
		"a linked root": slices.Concat(header(entry{name: PartName, kind: kindHardLink, link: "etc"}), end),
	} {
		to := t.TempDir()
		dir, err := os.Open(to)
		check(t, err)
		if _, err := UnpackPart(t.Context(), bytes.NewReader(tar), int(dir.Fd()), OwnerMap{}); !errors.Is(err, ErrCorrupted) {
			t.Errorf("%s: %v, want ErrCorrupted", what, err)
		}
		dir.Close()
	}
}
