// Package e2e tests codehub from the outside: the real binary, real Docker,
// real code-server, a real browser. A test fails if a program that it needs is
// missing.
package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"codehub/internal/testing/harness"
)

// env has the binary, images and folders that the tests use.
var env struct {
	binary, workspaceImage, slimImage, testImage, output string
	scratch                                              string // removed after the tests
	docker                                               *client.Client
	browsers                                             chan struct{} // has an element for each browser that runs
}

func TestMain(m *testing.M) {
	harness.NeedsDockerInMain()
	if err := prerequisites(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
	http.DefaultTransport.(*http.Transport).DialContext = dialLocalhost
	harness.Parallel(5)                   // they wait most of the time, except those with a browser
	env.browsers = make(chan struct{}, 2) // more wait for each other
	watchForInterrupts()
	code := m.Run()
	os.RemoveAll(env.scratch)
	os.Exit(code)
}

func prerequisites() error {
	var err error
	if env.binary, err = harness.Binary(); err != nil {
		return err
	}
	env.workspaceImage, env.slimImage, env.testImage = harness.WorkspaceImage(), harness.SlimImage(), harness.TestImage()
	if env.scratch, err = os.MkdirTemp("", "codehub-e2e-binaries-"); err != nil {
		return err
	}
	if env.output, err = harness.Output(); err != nil {
		return err
	}
	if env.docker, err = client.New(client.FromEnv); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, image := range []string{env.workspaceImage, env.slimImage, env.testImage} {
		if _, err := env.docker.ImageInspect(ctx, image); err != nil {
			return fmt.Errorf("image %s: %w (make images builds it; Docker must run)", image, err)
		}
	}
	return nil
}
