package copytree

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestCopyTree(t *testing.T) {
	t.Parallel()
	from, to := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(from, "lib/deep"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(from, "lib/deep/start"), []byte("program"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("lib/deep/start", filepath.Join(from, "start")); err != nil {
		t.Fatal(err)
	}
	if code := Main([]string{from, to}); code != 0 {
		t.Fatalf("the code is %d", code)
	}
	if link, err := os.Readlink(filepath.Join(to, "start")); err != nil || link != "lib/deep/start" {
		t.Errorf("the link leads to %q (%v)", link, err)
	}
	if content, err := os.ReadFile(filepath.Join(to, "start")); err != nil || string(content) != "program" {
		t.Errorf("the file has %q (%v)", content, err)
	}
	if info, err := os.Stat(filepath.Join(to, "lib/deep/start")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", info, err)
	}
	if err := syscall.Mkfifo(filepath.Join(from, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if Main([]string{from, t.TempDir()}) == 0 || Main(nil) == 0 {
		t.Error("a pipe was copied, or nothing")
	}
}
