package tools

import (
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

// An interrupted copy is done again, concurrent ones wait, and a complete one stays.
func TestInstallTree(t *testing.T) {
	t.Parallel()
	from, to := t.TempDir(), t.TempDir()
	nothing := func() error { return nil }
	putFileWith(t, from, "start", "program")
	check(t, os.Chmod(filepath.Join(from, "start"), 0o4711))
	check(t, os.MkdirAll(filepath.Join(from, "lib/deep"), 0o700))
	putFileWith(t, filepath.Join(from, "lib/deep"), "file", "content")
	check(t, os.Symlink("deep/file", filepath.Join(from, "lib/link")))
	putFileWith(t, to, "left over", "of a call that was killed")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if err := installTree(from, to, "one", nothing); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if info, err := os.Stat(filepath.Join(to, "start")); err != nil || info.Mode() != 0o555 {
		t.Fatalf("%v, %v", info, err)
	}
	content, err := os.ReadFile(filepath.Join(to, "lib/link"))
	if err != nil || string(content) != "content" {
		t.Errorf("%q, %v", content, err)
	}
	stray := filepath.Join(to, "left over")
	isThere := func() bool { _, err := os.Lstat(stray); return err == nil }
	if isThere() {
		t.Error("what was left over is there")
	}
	putFileWith(t, to, "left over", "from now on") // a copy removes it
	if err := installTree(from, to, "one", nothing); err != nil || !isThere() {
		t.Errorf("a complete tree was copied again: %v", err)
	}
	check(t, os.Remove(filepath.Join(to, completeFile)))
	if err := installTree(from, to, "one", nothing); err != nil || isThere() {
		t.Errorf("an incomplete tree was kept: %v", err)
	}
	check(t, syscall.Mkfifo(filepath.Join(from, "pipe"), 0o600))
	if err := installTree(from, to, "two", nothing); err == nil {
		t.Error("a pipe was copied")
	}
	if _, err := os.Lstat(filepath.Join(to, completeFile)); !os.IsNotExist(err) {
		t.Errorf("after a failure: %v", err)
	}
}
