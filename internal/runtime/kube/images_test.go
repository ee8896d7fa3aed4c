package kube

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"codehub/internal/harness"
	"codehub/internal/runtime"
	"codehub/internal/runtime/runtimetest"
)

// programImage builds a program of codehub's and an image that has it at a path. The image
// goes with the test.
func programImage(t *testing.T, name, source, at string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "program")
	build := exec.Command("go", "build", "-trimpath", "-o", bin, source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v: %s", source, err, out)
	}
	raw, err := os.ReadFile(bin)
	if err != nil {
		t.Fatal(err)
	}
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	for dir := range parents(at) {
		err = errors.Join(err, w.WriteHeader(&tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: 0o755}))
	}
	err = errors.Join(err, w.WriteHeader(&tar.Header{Name: strings.TrimPrefix(at, "/"), Mode: 0o755, Size: int64(len(raw))}))
	if _, failed := w.Write(raw); errors.Join(err, failed, w.Close()) != nil {
		t.Fatal(err, failed)
	}
	ref := fmt.Sprintf("codehub/%s:%x", name, sha256.Sum256(raw))[:len("codehub/:")+len(name)+16]
	load := exec.Command("docker", "import", "-", ref)
	load.Stdin = &files
	if out, err := load.CombinedOutput(); err != nil {
		t.Fatalf("docker import: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("docker", "image", "rm", ref).CombinedOutput(); err != nil {
			t.Logf("docker image rm: %v: %s", err, out)
		}
	})
	return ref
}

// parents yields the folders above a path, the topmost first.
func parents(at string) func(func(string) bool) {
	return func(yield func(string) bool) {
		parts := strings.Split(strings.Trim(path.Dir(at), "/"), "/")
		for n := range parts {
			if !yield(strings.Join(parts[:n+1], "/") + "/") {
				return
			}
		}
	}
}

// seedOf returns the content of an image at runtime.HomeDir.
func seedOf(t *testing.T, image string) []runtimetest.File {
	t.Helper()
	out, err := exec.Command("docker", "create", image, "never-started").Output()
	if err != nil {
		t.Fatalf("the tests need the image %s (make image, or CODEHUB_TEST_IMAGE): %v", image, err)
	}
	id := strings.TrimSpace(string(out))
	defer func() { _ = exec.Command("docker", "rm", id).Run() }()
	raw, err := exec.Command("docker", "cp", id+":"+runtime.HomeDir, "-").Output()
	if err != nil {
		t.Fatal(err)
	}
	var list []runtimetest.File
	for tr := tar.NewReader(bytes.NewReader(raw)); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(strings.TrimPrefix(path.Clean(h.Name), path.Base(runtime.HomeDir)), "/")
		if name == "" {
			name = "."
		}
		list = append(list, runtimetest.File{Path: name, Mode: h.FileInfo().Mode() & kept, UID: h.Uid, GID: h.Gid, Content: string(content)})
	}
	sortFiles(list)
	return list
}

// kept is the part of a mode that is compared.
const kept = fs.ModeType | fs.ModePerm | fs.ModeSticky | fs.ModeSetgid | fs.ModeSetuid

func sortFiles(list []runtimetest.File) {
	slices.SortFunc(list, func(a, b runtimetest.File) int { return strings.Compare(a.Path, b.Path) })
}

func TestMain(m *testing.M) {
	harness.Parallel(6) // they wait for the cluster most of the time
	os.Exit(m.Run())
}
