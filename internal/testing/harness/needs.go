// Package harness has what the tests of several packages share: what a test
// needs, browsers, and waiting. Databases come from internal/testing/pgtest, Redis from
// internal/testing/redistest, separate Docker daemons from internal/testing/dockertest, and
// servers from internal/testing/e2e/proc.
package harness

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// Tier is the environment variable with the tier of tests that runs: check, test or
// verify. Each has the tests of the one before. Without it all tests run, so that
// go test -run finds every test.
const Tier = "CODEHUB_TEST_TIER"

// Verify marks a test that only make verify runs: the race detector, matrices of faults,
// Kubernetes, and further proofs of what make test shows.
func Verify(t testing.TB) {
	t.Helper()
	if leavesOut("check", "test") {
		t.Skip("skipped: make verify runs this test")
	}
}

// Verifying reports whether all of a test's cases run: make check and make test run those
// that differ most.
func Verifying() bool { return !leavesOut("check", "test") }

// NeedsDocker marks a test that make check leaves out, because it uses Docker. A test
// that uses Docker without calling NeedsDocker fails there.
func NeedsDocker(t testing.TB) {
	t.Helper()
	needs(t, "Docker")
}

// NeedsChromium marks a test that make check leaves out, because it uses Chromium.
// Package browser calls it.
func NeedsChromium(t testing.TB) {
	t.Helper()
	needs(t, "Chromium")
}

// NeedsDockerInMain is NeedsDocker for TestMain of a package whose tests all
// need Docker. It ends the process in make check.
func NeedsDockerInMain() {
	if leavesOut("check") {
		fmt.Println("skipped: every test of this package needs Docker")
		os.Exit(0)
	}
}

func needs(t testing.TB, what string) {
	t.Helper()
	if leavesOut("check") {
		t.Skipf("skipped: the test needs %s, which make check does without", what)
	}
}

// leavesOut reports whether one of these tiers runs.
func leavesOut(tiers ...string) bool { return slices.Contains(tiers, os.Getenv(Tier)) }

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
