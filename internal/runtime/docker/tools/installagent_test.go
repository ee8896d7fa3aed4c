package tools

import (
	"os"
	"path/filepath"
	"sync"
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
