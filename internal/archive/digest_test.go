package archive

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"codehub/internal/testing/archivetest"
)

func TestDigestDetectsEveryChange(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	file := filepath.Join(home, "file")
	check := func(err error) {
		t.Helper()
		check(t, err)
	}
	at := time.Unix(1700000000, 5)
	check(os.WriteFile(file, []byte("content"), 0o600))
	check(os.Symlink("file", filepath.Join(home, "link")))
	check(os.Chtimes(file, at, at))
	check(os.Chtimes(home, at, at))
	seen := map[string]string{}
	note := func(change string) {
		t.Helper()
		check(os.Chtimes(home, at, at))
		got := digest(t, home)
		if earlier, ok := seen[got]; ok {
			t.Errorf("%s: the digest is that of %q", change, earlier)
		}
		seen[got] = change
	}
	note("nothing")
	check(os.WriteFile(file, []byte("Content"), 0o600))
	check(os.Chtimes(file, at, at))
	note("content")
	check(os.Chmod(file, 0o640))
	note("mode")
	check(os.Chtimes(file, at, at.Add(time.Nanosecond)))
	note("time")
	check(unix.Setxattr(file, "user.a", []byte("1"), 0))
	note("attribute")
	check(unix.Setxattr(file, "user.a", []byte("2"), 0))
	note("value of an attribute")
	check(unix.Setxattr(file, "system.posix_acl_access", archivetest.ACL(7, 7, 0, 1234), 0))
	note("ACL")
	check(os.Remove(filepath.Join(home, "link")))
	check(os.Symlink("filf", filepath.Join(home, "link")))
	note("symbolic link")
	check(os.Link(file, filepath.Join(home, "second")))
	note("hard link")
	check(os.Remove(filepath.Join(home, "second")))
	content, err := os.ReadFile(file)
	check(err)
	check(os.WriteFile(filepath.Join(home, "second"), content, 0o640))
	note("a copy in place of a hard link")
	check(os.Mkdir(filepath.Join(home, "folder"), 0o700))
	note("folder")
	if os.Geteuid() == 0 {
		check(os.Chown(file, 1, 0))
		note("owner")
		check(os.Chown(file, 1, 2))
		note("group")
	}
}

// A hole and zeros are the same content.
func TestDigestIgnoresHoles(t *testing.T) {
	t.Parallel()
	at := time.Unix(1700000000, 0)
	const size = 1 << 20
	digestOf := func(offset int64, write func(f *os.File) error) string {
		home := t.TempDir()
		f, err := os.Create(filepath.Join(home, "file"))
		check(t, err)
		check(t, write(f))
		_, err = f.WriteAt([]byte("data"), size/2+offset)
		check(t, err)
		check(t, f.Close())
		check(t, os.Chtimes(filepath.Join(home, "file"), at, at))
		check(t, os.Chtimes(home, at, at))
		return digest(t, home)
	}
	hole := func(f *os.File) error { return f.Truncate(size) }
	zeros := func(f *os.File) error { _, err := f.Write(make([]byte, size)); return err }
	sparse, full, moved := digestOf(10, hole), digestOf(10, zeros), digestOf(11, hole)
	if sparse != full || sparse == moved {
		t.Errorf("sparse %s, full %s, moved %s", sparse, full, moved)
	}
}

func digest(t *testing.T, dir string) string {
	t.Helper()
	sum, _, err := Digest(t.Context(), dir, nil)
	check(t, err)
	return sum
}
