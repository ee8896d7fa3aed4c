package kubetest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
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

// Image makes an image in the machine's Docker that has a program at a path, and nothing
// else, for Options.Images. It is removed at the end of the test.
func Image(tb testing.TB, name, program, at string) string {
	tb.Helper()
	raw, err := os.ReadFile(program)
	if err != nil {
		tb.Fatal(err)
	}
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	var dirs []string
	for dir := path.Dir(strings.TrimPrefix(at, "/")); dir != "."; dir = path.Dir(dir) {
		dirs = append([]string{dir + "/"}, dirs...)
	}
	for _, dir := range dirs {
		err = errors.Join(err, w.WriteHeader(&tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: 0o755}))
	}
	err = errors.Join(err, w.WriteHeader(&tar.Header{Name: strings.TrimPrefix(at, "/"), Mode: 0o755, Size: int64(len(raw))}))
	_, failed := w.Write(raw)
	if err := errors.Join(err, failed, w.Close()); err != nil {
		tb.Fatal(err)
	}
	// Tests that run at the same time may remove their images.
	ref := fmt.Sprintf("codehub/%s:%d-%.8x", name, os.Getpid(), sha256.Sum256(raw))
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
