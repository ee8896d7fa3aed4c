package archive

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"codehub/internal/base/treewalk"
	"codehub/internal/testing/archivetest"
)

func fingerprintOf(tb testing.TB, dir string) string {
	tb.Helper()
	f, err := Fingerprint(tb.Context(), dir)
	check(tb, err)
	return f
}

func TestFingerprintMatchesPack(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	archivetest.Corpus(t, home)
	before := archivetest.Snapshot(t, home)
	stats, err := Pack(t.Context(), home, io.Discard, PackOptions{})
	check(t, err)
	if again := fingerprintOf(t, home); stats.Fingerprint == "" || again != stats.Fingerprint {
		t.Errorf("Fingerprint = %q, Pack had %q", again, stats.Fingerprint)
	}
	if diff := archivetest.Diff(before, archivetest.Snapshot(t, home)); diff != "" {
		t.Errorf("Fingerprint changed the home:\n%s", diff)
	}
}

func TestFingerprintDetectsEveryChange(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(home string) error{
		"content": func(home string) error {
			return os.WriteFile(filepath.Join(home, "a/file"), []byte("CONTENT"), 0o644)
		},
		"content with the old mtime": func(home string) error {
			file := filepath.Join(home, "a/file")
			var st unix.Stat_t
			if err := unix.Stat(file, &st); err != nil {
				return err
			}
			if err := os.WriteFile(file, []byte("CONTENT"), 0o644); err != nil {
				return err
			}
			return unix.UtimesNanoAt(unix.AT_FDCWD, file, []unix.Timespec{st.Atim, st.Mtim}, 0)
		},
		"mode":         func(home string) error { return os.Chmod(filepath.Join(home, "a"), 0o711) },
		"attribute":    func(home string) error { return unix.Setxattr(filepath.Join(home, "a/file"), "user.x", nil, 0) },
		"new file":     func(home string) error { return os.WriteFile(filepath.Join(home, "a/new"), nil, 0o644) },
		"new socket":   func(home string) error { return unix.Mknod(filepath.Join(home, "a/socket"), unix.S_IFSOCK|0o600, 0) },
		"removed FIFO": func(home string) error { return os.Remove(filepath.Join(home, "fifo")) },
		"renamed": func(home string) error {
			return os.Rename(filepath.Join(home, "a/file"), filepath.Join(home, "a/File"))
		},
		"moved":         func(home string) error { return os.Rename(filepath.Join(home, "a/file"), filepath.Join(home, "file")) },
		"link replaced": func(home string) error { return os.Rename(filepath.Join(home, "other"), filepath.Join(home, "link")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home := t.TempDir()
			check(t, os.MkdirAll(filepath.Join(home, "a"), 0o755))
			check(t, os.WriteFile(filepath.Join(home, "a/file"), []byte("content"), 0o644))
			check(t, os.Symlink("to", filepath.Join(home, "link")))
			check(t, os.Symlink("to", filepath.Join(home, "other")))
			check(t, unix.Mkfifo(filepath.Join(home, "fifo"), 0o600))
			before := fingerprintOf(t, home)
			// Reading does not count.
			_, err := os.ReadFile(filepath.Join(home, "a/file"))
			check(t, err)
			check(t, unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(home, "a"), []unix.Timespec{{Sec: 1}, {Nsec: unix.UTIME_OMIT}}, 0))
			if name != "mode" { // the access time moved the ctime of the folder
				before = fingerprintOf(t, home)
			}
			// The clock of a file system ticks every few milliseconds.
			for tick := filepath.Join(t.TempDir(), "tick"); ; {
				check(t, os.WriteFile(tick, nil, 0o600))
				if newest(t, tick) > newest(t, filepath.Join(home, "a/file")) && newest(t, tick) > newest(t, filepath.Join(home, "a")) {
					break
				}
			}
			check(t, change(home))
			if after := fingerprintOf(t, home); after == before {
				t.Errorf("the fingerprint is still %s", after)
			}
		})
	}
}

func newest(tb testing.TB, name string) int64 {
	tb.Helper()
	var st unix.Stat_t
	check(tb, unix.Stat(name, &st))
	return st.Ctim.Nano()
}

// A folder that is moved while those in it are visited is not lost track of.
func TestTraverseFindsMovedFolder(t *testing.T) {
	t.Parallel()
	home, elsewhere := t.TempDir(), t.TempDir()
	deep := strings.Repeat("d/", 2*treewalk.OpenFolders)
	check(t, os.MkdirAll(filepath.Join(home, deep), 0o755))
	_, err := Measure(t.Context(), home, func(m Measurement) error {
		if m.Entries == 2*treewalk.OpenFolders+1 {
			return os.Rename(filepath.Join(home, strings.Repeat("d/", 20)), filepath.Join(elsewhere, "moved"))
		}
		return nil
	})
	if !errors.Is(err, ErrChanged) {
		t.Errorf("Measure = %v, want ErrChanged", err)
	}
}
