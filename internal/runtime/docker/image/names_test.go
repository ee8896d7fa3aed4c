package image

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A list has one file, which is written again if it was damaged, and is removed once it is old
// and nothing mounts it.
func TestNamesFiles(t *testing.T) {
	t.Parallel()
	n := newNames(t.TempDir(), "/on/host")
	begun := time.Now()
	put := func(content string) (name, path string) {
		t.Helper()
		name, err := n.put(content, begun)
		check(t, err)
		path = filepath.Join(n.dir, name)
		got, err := os.ReadFile(path)
		info, statErr := os.Stat(path)
		if err := errors.Join(err, statErr); err != nil || string(got) != content || info.Mode().Perm() != 0o644 {
			t.Errorf("the file of %q is %q: %v, %v", content, got, info, err)
		}
		return name, path
	}
	first, damaged := put("a")
	check(t, os.WriteFile(damaged, nil, 0o600))
	if again, _ := put("a"); again != first {
		t.Errorf("the file of one content is %s and %s", first, again)
	}
	second, _ := put("b")
	if first == second {
		t.Error("two contents have one file")
	}

	mounted := map[string]bool{"/on/host/names/" + first: true}
	for _, sweep := range []struct {
		after time.Duration
		left  int
	}{{0, 2}, {namesLife + time.Minute, 1}} {
		check(t, n.sweep(mounted, begun.Add(sweep.after)))
		left, err := os.ReadDir(n.dir)
		check(t, err)
		if len(left) != sweep.left {
			t.Errorf("after %s: %v", sweep.after, left)
		}
	}
	if _, err := os.Stat(filepath.Join(n.dir, first)); err != nil {
		t.Errorf("a mounted file: %v", err)
	}

	// The server does not make another data folder in place of a removed one.
	check(t, os.RemoveAll(filepath.Dir(n.dir)))
	if _, err := n.put("c", begun); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without the data folder: %v", err)
	}
	check(t, n.sweep(nil, begun))
}
