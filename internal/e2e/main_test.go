// Package e2e tests codehub from the outside: the real binary, real Docker,
// real code-server, a real browser. What a test needs and does not find makes
// it fail and say so.
package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/moby/moby/client"
)

// env is where the parts are; the Makefile sets it.
var env struct {
	binary, workspaceImage, testImage, chromium, output string
	scratch                                             string // gone after the tests
	docker                                              *client.Client
}

func TestMain(m *testing.M) {
	if err := prerequisites(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
	// They wait for others most of the time: more of them at once than there are
	// cores.
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		_ = f.Value.Set(strconv.Itoa(2 * runtime.GOMAXPROCS(0)))
	}
	watchForInterrupts()
	code := m.Run()
	os.RemoveAll(env.scratch)
	os.Exit(code)
}

func prerequisites() error {
	root, err := filepath.Abs("../..")
	if err != nil {
		return err
	}
	env.binary = or(os.Getenv("CODEHUB_TEST_BINARY"), filepath.Join(root, "bin", "codehub"))
	if _, err := os.Stat(env.binary); err != nil {
		return fmt.Errorf("no codehub binary: run make build (%w)", err)
	}
	env.workspaceImage = or(os.Getenv("CODEHUB_TEST_WORKSPACE_IMAGE"), "codehub/workspace:latest")
	env.testImage = or(os.Getenv("CODEHUB_TEST_IMAGE"), "codehub/testserver:latest")
	if env.scratch, err = os.MkdirTemp("", "codehub-e2e-binaries-"); err != nil {
		return err
	}
	env.output = or(os.Getenv("CODEHUB_TEST_OUTPUT"), filepath.Join(root, "test-output"))
	for _, p := range []string{"/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"} {
		if _, err := os.Stat(p); err == nil {
			env.chromium = p
			break
		}
	}
	if env.chromium == "" {
		return fmt.Errorf("no Chromium: install the package chromium")
	}
	if env.docker, err = client.New(client.FromEnv); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, image := range []string{env.workspaceImage, env.testImage} {
		if _, err := env.docker.ImageInspect(ctx, image); err != nil {
			return fmt.Errorf("image %s: %w (make images builds it; Docker must run)", image, err)
		}
	}
	return nil
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
