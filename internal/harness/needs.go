// Package harness has what the tests of several packages share: what a test
// needs, browsers, and waiting. Databases come from internal/pgtest, Redis from
// internal/redistest, separate Docker daemons from internal/dockertest, and
// servers from internal/e2e/proc.
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

// Without is the environment variable with the names of what is missing,
// separated by spaces. Tests that need it are skipped. make check sets the
// variable, make test does not.
const Without = "CODEHUB_TEST_WITHOUT"

// NeedsDocker skips the test in make check. A test that uses Docker without
// calling NeedsDocker fails there.
func NeedsDocker(t testing.TB) {
	t.Helper()
	needs(t, "docker")
}

// NeedsChromium skips the test in make check. Package browser calls it.
func NeedsChromium(t testing.TB) {
	t.Helper()
	needs(t, "chromium")
}

// NeedsDockerInMain is NeedsDocker for TestMain of a package whose tests all
// need Docker. It ends the process in make check.
func NeedsDockerInMain() {
	if without("docker") {
		fmt.Println("skipped: every test of this package needs docker")
		os.Exit(0)
	}
}

func needs(t testing.TB, what string) {
	t.Helper()
	if without(what) {
		t.Skipf("skipped: the test needs %s", what)
	}
}

func without(what string) bool {
	return slices.Contains(strings.Fields(os.Getenv(Without)), what)
}

// IDEImage returns the image with the real IDE, which is at /opt/codehub-ide (images/ide).
func IDEImage() string {
	return cmp.Or(os.Getenv("CODEHUB_TEST_IDE_IMAGE"), "codehub/ide:latest")
}

// WorkspaceImage returns the default image, which has many tools and no IDE.
func WorkspaceImage() string {
	return cmp.Or(os.Getenv("CODEHUB_TEST_WORKSPACE_IMAGE"), "codehub/workspace:latest")
}

// SlimImage returns the image with few tools.
func SlimImage() string {
	return cmp.Or(os.Getenv("CODEHUB_TEST_SLIM_IMAGE"), "codehub/workspace-slim:latest")
}

// TestImage returns a small image for workspaces of tests (images/testserver).
func TestImage() string {
	return cmp.Or(os.Getenv("CODEHUB_TEST_IMAGE"), "codehub/testserver:latest")
}

// Binary returns the path of the codehub binary, which make build creates.
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

// Long marks a test that takes minutes and whose subject other tests or the soak have, too.
// -short leaves it out, which make test sets on slow machines and says there.
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("skipped: -short leaves out tests that take long")
	}
}

// Output returns the folder for screenshots and logs of tests.
func Output() (string, error) {
	if path := os.Getenv("CODEHUB_TEST_OUTPUT"); path != "" {
		return path, nil
	}
	root, err := Root()
	return filepath.Join(root, "test-output"), err
}

// Root returns the folder of the module.
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
