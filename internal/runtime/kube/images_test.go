package kube

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/runtimetest"
)

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
	check(t, err)
	var list []runtimetest.File
	for tr := tar.NewReader(bytes.NewReader(raw)); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		check(t, err)
		content, err := io.ReadAll(tr)
		check(t, err)
		name := strings.TrimPrefix(strings.TrimPrefix(path.Clean(h.Name), path.Base(runtime.HomeDir)), "/")
		if name == "" {
			name = "."
		}
		list = append(list, runtimetest.File{Path: name, Mode: h.FileInfo().Mode() & kept, UID: h.Uid, GID: h.Gid, Content: string(content)})
	}
	sortFiles(list)
	return list
}

// savedImage is the image of the tests as `docker save` writes it.
var savedImage = sync.OnceValues(func() ([]byte, error) {
	return exec.Command("docker", "save", harness.TestImage()).Output()
})

// remoteImage adds a variant of the test image to the cluster's registry.
func (c *cluster) remoteImage(t *testing.T) string {
	t.Helper()
	return c.add(t, "test/"+uuid.NewString())
}

// republish makes the name of a remote image stand for another one.
func (c *cluster) republish(t *testing.T, ref string) {
	t.Helper()
	c.add(t, strings.TrimSuffix(strings.TrimPrefix(ref, c.registryHost+"/"), ":v1"))
}

func (c *cluster) add(t *testing.T, name string) string {
	t.Helper()
	saved, err := savedImage()
	check(t, err)
	ref, _ := c.registry.AddSaved(name, saved, uuid.NewString())
	return c.registryHost + strings.TrimPrefix(ref, c.registry.Host())
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
