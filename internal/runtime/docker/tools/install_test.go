package tools

import (
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

func TestInstallFile(t *testing.T) {
	t.Parallel()
	from, dir := t.TempDir(), t.TempDir()
	putFileWith(t, from, "executable", "content")
	source, to := filepath.Join(from, "executable"), filepath.Join(dir, agentFile)
	install := func(digest string) error {
		in, err := os.Open(source)
		if err != nil {
			return err
		}
		defer in.Close()
		return installFile(in, to, digest)
	}
	digest, err := fileDigest(source)
	check(t, err)
	putFileWith(t, dir, agentFile+".part-1", "of a call that was killed")
	if err := install("another"); err == nil {
		t.Error("an executable with another digest was installed")
	}
	if _, err := os.Stat(to); !os.IsNotExist(err) {
		t.Errorf("after a failure: %v", err)
	}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if err := install(digest); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	entries, err := os.ReadDir(dir)
	info, statErr := os.Stat(to)
	if err != nil || statErr != nil || len(entries) != 1 || info.Mode().Perm() != 0o755 {
		t.Errorf("installed: %v, %v, %v", entries, err, statErr)
	}
	if got, err := fileDigest(to); err != nil || got != digest {
		t.Errorf("the digest is %s, %v; want %s", got, err, digest)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func putFileWith(t *testing.T, dir, name, content string) {
	t.Helper()
	check(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
}

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
