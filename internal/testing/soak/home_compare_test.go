package soak

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"codehub/internal/testing/archivetest"
)

// The comparison finds every kind of damage to a home.
func TestCompareFindsDamage(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	for what, damage := range map[string]func(dir string) error{
		"missing file": func(dir string) error { return os.Remove(filepath.Join(dir, workDir, "b")) },
		"empty file":   func(dir string) error { return os.Truncate(filepath.Join(dir, workDir, "a"), 0) },
		"content": func(dir string) error {
			f, err := os.OpenFile(filepath.Join(dir, workDir, "a"), os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteAt([]byte{1, 2, 3}, 5)
			return err
		},
		"owner": func(dir string) error { return os.Lchown(filepath.Join(dir, workDir, "link"), 7, 7) },
		"mode":  func(dir string) error { return os.Chmod(filepath.Join(dir, workDir, "empty"), 0o700) },
		"time": func(dir string) error {
			return os.Chtimes(filepath.Join(dir, workDir, "a"), time.Time{}, time.Unix(1, 0))
		},
		"attribute": func(dir string) error { return unix.Removexattr(filepath.Join(dir, workDir, "a"), "user.of") },
		"ACL": func(dir string) error {
			return unix.Setxattr(filepath.Join(dir, workDir, "a"), "system.posix_acl_access", archivetest.ACL(7, 7, 7, 1), 0)
		},
		"hole": func(dir string) error {
			f, err := os.OpenFile(filepath.Join(dir, workDir, "sparse"), os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteAt(make([]byte, 4096), 1<<20)
			return err
		},
		"file of the IDE": func(dir string) error { return os.Truncate(filepath.Join(dir, "ide-0.txt"), 3) },
		"all": func(dir string) error {
			return os.RemoveAll(filepath.Join(dir, workDir))
		},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, ".profile"), []byte("from the image"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := refillHome(dir, rng); err != nil {
			t.Fatal(err)
		}
		seen, err := snapshot(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "ide-0.txt"), []byte("synced"), 0o644); err != nil {
			t.Fatal(err)
		}
		l := &life{lastHome: seen, added: map[string]string{"ide-0.txt": "synced"}}
		if diff, err := l.compare(dir); err != nil || diff != "" {
			t.Fatalf("a home differs from itself: %s (%v)", diff, err)
		}
		l.lastHome, l.added = seen, map[string]string{"ide-0.txt": "synced"}
		if err := damage(dir); err != nil {
			t.Fatal(err)
		}
		if diff, err := l.compare(dir); err != nil || diff == "" {
			t.Errorf("%s: the damage was not found (%v)", what, err)
		}
	}
}

// While refillHome runs, its folder may have any content; the rest of the home
// must be unchanged.
func TestCompareAllowsFolderBeingRewritten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rng := rand.New(rand.NewPCG(1, 2))
	if err := os.WriteFile(filepath.Join(dir, "kept"), []byte("kept"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := refillHome(dir, rng); err != nil {
		t.Fatal(err)
	}
	seen, err := snapshot(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, workDir)); err != nil {
		t.Fatal(err)
	}
	l := &life{lastHome: seen, dirty: true, added: map[string]string{}}
	if diff, err := l.compare(dir); err != nil || diff != "" {
		t.Errorf("an interrupted refillHome counts as damage: %s (%v)", diff, err)
	}
	l.lastHome, l.dirty = seen, true
	if err := os.Remove(filepath.Join(dir, "kept")); err != nil {
		t.Fatal(err)
	}
	if diff, err := l.compare(dir); err != nil || !strings.Contains(diff, "kept") {
		t.Errorf("a missing file was not reported: %s (%v)", diff, err)
	}
}
