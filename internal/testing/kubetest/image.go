package kubetest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Build builds the program in a folder, static, and returns its path.
func Build(tb testing.TB, folder string) string {
	tb.Helper()
	bin := filepath.Join(tb.TempDir(), "program")
	build := exec.Command("go", "build", "-trimpath", "-o", bin, folder)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		tb.Fatalf("build %s: %v: %s", folder, err, out)
	}
	return bin
}

// Image makes an image in the machine's Docker that has programs at paths, and nothing else,
// for Options.Images. It is removed at the end of the test.
func Image(tb testing.TB, name string, programs map[string]string) string {
	tb.Helper()
	var files bytes.Buffer
	sum := sha256.New()
	w := tar.NewWriter(io.MultiWriter(&files, sum))
	made := map[string]bool{}
	var err error
	for _, at := range slices.Sorted(maps.Keys(programs)) {
		at := strings.TrimPrefix(at, "/")
		for i, c := range at {
			if dir := at[:i]; c == '/' && !made[dir] {
				made[dir] = true
				err = errors.Join(err, w.WriteHeader(&tar.Header{Name: dir + "/", Typeflag: tar.TypeDir, Mode: 0o755}))
			}
		}
		raw, failed := os.ReadFile(programs["/"+at])
		err = errors.Join(err, failed, w.WriteHeader(&tar.Header{Name: at, Mode: 0o755, Size: int64(len(raw))}))
		_, failed = w.Write(raw)
		err = errors.Join(err, failed)
	}
	if err := errors.Join(err, w.Close()); err != nil {
		tb.Fatal(err)
	}
	// Tests that run at the same time may remove their images.
	ref := fmt.Sprintf("codehub/%s:%d-%.8x", name, os.Getpid(), sum.Sum(nil))
	load := exec.Command("docker", "import", "-", ref)
	load.Stdin = &files
	if out, err := load.CombinedOutput(); err != nil {
		tb.Fatalf("docker import: %v: %s", err, out)
	}
	tb.Cleanup(func() {
		if out, err := exec.Command("docker", "image", "rm", ref).CombinedOutput(); err != nil {
			tb.Logf("docker image rm: %v: %s", err, out)
		}
	})
	return ref
}
