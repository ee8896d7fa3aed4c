package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"
)

// engine is a Docker Engine of a test's own, beside the machine's, so that it
// can be stopped without anybody else noticing. It leaves the machine's packet
// filter alone, so what runs on it has no way outside.
type engine struct {
	*testing.T
	dir    string
	bridge string // of its own, and no address pools: with either missing or given it takes the machine's docker0 away
	host   string
	api    *client.Client
	cmd    *exec.Cmd
	log    bytes.Buffer
}

func startEngine(t *testing.T) *engine {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test runs a Docker Engine of its own, which takes root")
	}
	dir, err := os.MkdirTemp("", "chd") // short: sockets live under it
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{T: t, dir: dir, host: "unix://" + filepath.Join(dir, "d.sock"), bridge: fmt.Sprintf("chd%d", os.Getpid()%100000)}
	if e.api, err = client.New(client.WithHost(e.host)); err != nil {
		t.Fatal(err)
	}
	cleanup(t, func() {
		e.stop() // first: it writes to its log until then
		if t.Failed() {
			t.Logf("the engine's log:\n%s", lastLines(e.log.String(), 40))
		}
		e.api.Close()
		e.ip("link", "delete", e.bridge)
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove the engine's folder: %v", err)
		}
	})
	e.ip("link", "add", e.bridge, "type", "bridge")
	e.ip("address", "add", "192.168.253.1/29", "dev", e.bridge)
	e.start()
	e.copyImage(env.testImage)
	return e
}

func (e *engine) ip(args ...string) {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		e.Errorf("ip %v: %v: %s", args, err, out)
	}
}

func (e *engine) start() {
	e.Helper()
	e.cmd = exec.Command("dockerd", "--host", e.host, "--data-root", filepath.Join(e.dir, "data"),
		"--exec-root", filepath.Join(e.dir, "exec"), "--pidfile", filepath.Join(e.dir, "pid"),
		"--bridge", e.bridge, "--iptables=false", "--ip6tables=false")
	e.cmd.Stdout, e.cmd.Stderr = &e.log, &e.log
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := e.cmd.Start(); err != nil {
		e.Fatalf("start dockerd: %v", err)
	}
	deadline := time.Now().Add(time.Minute)
	for {
		ctx, cancel := context.WithTimeout(e.Context(), time.Second)
		_, err := e.api.Ping(ctx, client.PingOptions{})
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			e.Fatalf("dockerd does not answer: %v\n%s", err, lastLines(e.log.String(), 20))
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (e *engine) stop() {
	if e.cmd == nil {
		return
	}
	_ = e.cmd.Process.Signal(syscall.SIGTERM)
	_ = e.cmd.Wait()
	e.cmd = nil
}

// copyImage brings an image over from the machine's engine.
func (e *engine) copyImage(ref string) {
	e.Helper()
	saved, err := env.docker.ImageSave(e.Context(), []string{ref})
	if err != nil {
		e.Fatal(err)
	}
	defer saved.Close()
	loaded, err := e.api.ImageLoad(e.Context(), saved)
	if err != nil {
		e.Fatal(err)
	}
	defer loaded.Close()
	var answer bytes.Buffer
	if _, err := answer.ReadFrom(loaded); err != nil {
		e.Fatal(err)
	}
	if _, err := e.api.ImageInspect(e.Context(), ref); err != nil {
		e.Fatal(fmt.Errorf("image %s was not brought over: %w: %s", ref, err, answer.String()))
	}
}
