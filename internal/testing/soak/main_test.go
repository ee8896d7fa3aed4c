package soak

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"codehub/internal/testing/harness"
)

// env has the binary, image and folders that the tests use.
var env struct {
	binary, image, output string
	scratch               string // removed after the tests
	docker                *client.Client
}

// Locks TestMain to the main thread. A goroutine that enters a namespace must
// not use that thread: it would keep the namespace alive, because the main
// thread cannot end.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	if device := os.Getenv(initDevice); device != "" {
		fmt.Fprintln(os.Stderr, "soak: init:", runInit(device))
		os.Exit(1)
	}
	if !harness.Verifying() {
		fmt.Println("skipped: make verify and make soak run the tests of this package")
		os.Exit(0)
	}
	if err := prerequisites(); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
	closeOnSignal()
	code := m.Run()
	exitMutex.Lock() // not unlocked; if a signal came first, its handler ends the process
	report.print()
	os.RemoveAll(env.scratch)
	os.Exit(code)
}

func prerequisites() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("these tests create namespaces and block devices: run them as root")
	}
	var err error
	if env.binary, err = harness.Binary(); err != nil {
		return err
	}
	env.image = harness.TestImage()
	if env.output, err = harness.Output(); err != nil {
		return err
	}
	env.output = filepath.Join(env.output, "soak")
	if err := os.MkdirAll(env.output, 0o755); err != nil {
		return err
	}
	if env.docker, err = client.New(client.FromEnv); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := env.docker.ImageInspect(ctx, env.image); err != nil {
		return fmt.Errorf("image %s: %w (make images builds it; Docker must run)", env.image, err)
	}
	// The path is short, because sockets are below it. PostgreSQL's user must
	// be able to enter it.
	if env.scratch, err = os.MkdirTemp("", "chs"); err != nil {
		return err
	}
	return os.Chmod(env.scratch, 0o755)
}
