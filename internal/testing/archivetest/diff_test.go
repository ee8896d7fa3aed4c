package archivetest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Diff finds every kind of difference.
func TestDiff(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	Corpus(t, home)
	before := Snapshot(t, home)
	for what, change := range map[string]func(home string) error{
		"mode": func(home string) error { return os.Chmod(filepath.Join(home, "links/file"), 0o600) },
		"mtime": func(home string) error {
			return os.Chtimes(filepath.Join(home, "links/file"), time.Time{}, time.Unix(1, 2))
		},
		"is missing":           func(home string) error { return os.Remove(filepath.Join(home, "empty/of/all")) },
		"was not there before": func(home string) error { return os.Mkdir(filepath.Join(home, "new"), 0o755) },
		"sameas":               func(home string) error { return relink(filepath.Join(home, "links/another")) },
		"data": func(home string) error {
			return os.WriteFile(filepath.Join(home, "sparse/small-hole"), make([]byte, 100<<10), 0o644)
		},
		"sha256": func(home string) error {
			return os.WriteFile(filepath.Join(home, "sizes/1"), []byte("x"), 0o644)
		},
	} {
		if diff := Diff(before, Snapshot(t, home)); diff != "" {
			t.Fatalf("a home differs from itself:\n%s", diff)
		}
		check(t, change(home))
		after := Snapshot(t, home)
		if diff := Diff(before, after); !strings.Contains(diff, what) {
			t.Errorf("%s is not in the difference:\n%s", what, diff)
		}
		before = after
	}
}

// relink replaces a hard link by a file with the same content.
func relink(name string) error {
	b, err := os.ReadFile(name)
	if err == nil {
		err = os.Remove(name)
	}
	if err == nil {
		err = os.WriteFile(name, b, 0o644)
	}
	return err
}
