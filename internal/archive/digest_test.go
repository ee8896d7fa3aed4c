package archive

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"codehub/internal/archive/archivetest"
)

func TestDigestEqualAfterUnpack(t *testing.T) {
	t.Parallel()
	from, to := t.TempDir(), t.TempDir()
	archivetest.Corpus(t, from)
	var b bytes.Buffer
	if _, err := Pack(t.Context(), from, &b, PackOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := Unpack(t.Context(), &b, to, UnpackOptions{}); err != nil {
		t.Fatal(err)
	}
	before, stats := digest(t, from)
	after, restored := digest(t, to)
	stats.Skipped, restored.Skipped = 0, 0
	if before != after || stats != restored {
		t.Errorf("digest %s of %+v, unpacked %s of %+v", before, stats, after, restored)
	}
}

func TestDigestDetectsEveryChange(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	file := filepath.Join(home, "file")
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
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
		got, _ := digest(t, home)
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
	make := func(fill func(f *os.File) error) string {
		home := t.TempDir()
		f, err := os.Create(filepath.Join(home, "file"))
		if err != nil {
			t.Fatal(err)
		}
		if err := fill(f); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(filepath.Join(home, "file"), at, at); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(home, at, at); err != nil {
			t.Fatal(err)
		}
		sum, _ := digest(t, home)
		return sum
	}
	const size = 1 << 20
	sparse := make(func(f *os.File) error {
		if err := f.Truncate(size); err != nil {
			return err
		}
		_, err := f.WriteAt([]byte("data"), size/2+10)
		return err
	})
	full := make(func(f *os.File) error {
		if _, err := io.CopyN(f, zeroReader{}, size); err != nil {
			return err
		}
		_, err := f.WriteAt([]byte("data"), size/2+10)
		return err
	})
	moved := make(func(f *os.File) error {
		if err := f.Truncate(size); err != nil {
			return err
		}
		_, err := f.WriteAt([]byte("data"), size/2+11)
		return err
	})
	if sparse != full || sparse == moved {
		t.Errorf("sparse %s, full %s, moved %s", sparse, full, moved)
	}
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func digest(t *testing.T, dir string) (string, Stats) {
	t.Helper()
	sum, stats, err := Digest(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	return sum, stats
}
