// Package harness is what the tests of several packages share: what a test
// says that it needs, browsers, and waiting. Databases come from
// internal/pgtest, Redis from internal/redistest, Docker daemons of a test's
// own from internal/dockertest, and servers from internal/e2e/proc.
package harness

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Without is the environment variable that names what tests do without,
// separated by spaces. make check sets it, make test does not.
const Without = "CODEHUB_TEST_WITHOUT"

// NeedsDocker has the test skipped by make check, where no Docker responds: a
// test that uses Docker and does not call this fails there.
func NeedsDocker(t testing.TB) {
	t.Helper()
	needs(t, "docker")
}

// NeedsChromium has the test skipped by make check. Package browser calls it.
func NeedsChromium(t testing.TB) {
	t.Helper()
	needs(t, "chromium")
}

// NeedsDockerInMain is NeedsDocker for a package all of whose tests need it.
// It ends the process in make check.
func NeedsDockerInMain() {
	if without("docker") {
		fmt.Println("skipped: every test of this package needs docker")
		os.Exit(0)
	}
}

func needs(t testing.TB, what string) {
	t.Helper()
	if without(what) {
		t.Skipf("skipped: it needs %s", what)
	}
}

func without(what string) bool {
	return slices.Contains(strings.Fields(os.Getenv(Without)), what)
}

// WorkspaceImage is the image with the real IDE.
func WorkspaceImage() string {
	return cmp.Or(os.Getenv("CODEHUB_TEST_WORKSPACE_IMAGE"), "codehub/workspace:latest")
}

// TestImage is a small image that tests run as workspaces: images/testserver.
func TestImage() string {
	return cmp.Or(os.Getenv("CODEHUB_TEST_IMAGE"), "codehub/testserver:latest")
}

// Binary is the path of the codehub binary, which make build makes.
func Binary() (string, error) {
	path := os.Getenv("CODEHUB_TEST_BINARY")
	if path == "" {
		root, err := Root()
		if err != nil {
			return "", err
		}
		path = filepath.Join(root, "bin", "codehub")
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("no codehub binary: run make build (%w)", err)
	}
	return path, nil
}

// Output is the folder for what tests leave to look at.
func Output() (string, error) {
	if path := os.Getenv("CODEHUB_TEST_OUTPUT"); path != "" {
		return path, nil
	}
	root, err := Root()
	return filepath.Join(root, "test-output"), err
}

// Root is the folder of the module.
func Root() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, statErr := os.Stat(filepath.Join(dir, "go.mod")); statErr == nil {
			return dir, nil
		}
		if filepath.Dir(dir) == dir {
			err = fmt.Errorf("no go.mod above the working directory")
		}
		dir = filepath.Dir(dir)
	}
	return "", err
}
