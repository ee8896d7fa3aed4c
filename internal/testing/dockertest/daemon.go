// Package dockertest starts Docker daemons for tests, in addition to the machine's own.
package dockertest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"codehub/internal/testing/harness"
)

// Options are what a daemon starts with; the zero value will do.
type Options struct {
	Root   string // folder of the daemon's data; empty: one that goes with the daemon
	NoFile int    // limit of open files; 0: that of the test
	Args   []string
	Image  string // copied from the machine's daemon; empty: none
	Map    int    // number of uids that containers have (userns-remap); 0: all
	// Cleanup registers what ends the daemon; nil: t.Cleanup.
	Cleanup func(t *testing.T, f func())
}

// Daemon is a Docker daemon that a test can stop, kill and start again. It
// leaves the machine's packet filter and the machine's own daemon alone.
type Daemon struct {
	*testing.T
	Host string // for DOCKER_HOST
	API  *client.Client

	options Options
	dir     string // sockets and process ids
	bridge  string // its own: without one it would remove the machine's docker0
	cmd     *exec.Cmd
}

var daemons atomic.Int32

// Start starts a daemon that ends with the test. It takes root.
func Start(t *testing.T, o Options) *Daemon {
	t.Helper()
	harness.NeedsDocker(t)
	if os.Geteuid() != 0 {
		t.Fatal("this test runs a Docker daemon of its own, which takes root")
	}
	dir, err := os.MkdirTemp("", "chd") // short: sockets live under it
	if err != nil {
		t.Fatal(err)
	}
	d := &Daemon{T: t, options: o, dir: dir, Host: "unix://" + filepath.Join(dir, "d.sock"), bridge: fmt.Sprintf("chd%d-%d", os.Getpid()%100000, daemons.Add(1))}
	if o.Root == "" {
		d.options.Root = filepath.Join(dir, "data")
	}
	if d.API, err = client.New(client.WithHost(d.Host)); err != nil {
		t.Fatal(err)
	}
	cleanup := o.Cleanup
	if cleanup == nil {
		cleanup = (*testing.T).Cleanup
	}
	cleanup(t, func() {
		d.End(syscall.SIGTERM)
		if t.Failed() {
			log, err := os.ReadFile(d.logFile())
			t.Logf("the daemon's log (%v):\n%s", err, log[max(0, len(log)-4000):])
		}
		d.API.Close()
		d.run("ip", "link", "delete", d.bridge)
		d.unmount()
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove the daemon's folder: %v", err)
		}
	})
	d.run("ip", "link", "add", d.bridge, "type", "bridge")
	d.run("ip", "address", "add", "192.168.252.1/29", "dev", d.bridge)
	d.Start()
	if o.Image != "" {
		d.copyImage(o.Image)
	}
	return d
}

func (d *Daemon) logFile() string { return filepath.Join(d.dir, "log") }

// unmount takes away what a killed daemon left mounted.
func (d *Daemon) unmount() {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		d.Error(err)
	}
	lines := strings.Split(string(mounts), "\n")
	for i := len(lines) - 1; i >= 0; i-- { // the innermost first
		if f := strings.Fields(lines[i]); len(f) > 1 && strings.HasPrefix(f[1], d.dir+"/") {
			if err := syscall.Unmount(f[1], syscall.MNT_DETACH); err != nil {
				d.Errorf("unmount %s: %v", f[1], err)
			}
		}
	}
}

func (d *Daemon) run(name string, args ...string) {
	d.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		d.Errorf("%s %v: %v: %s", name, args, err, out)
	}
}

// Start starts the daemon again after End.
func (d *Daemon) Start() {
	d.Helper()
	command := []string{
		"dockerd", "--host", d.Host, "--data-root", d.options.Root, "--exec-root", filepath.Join(d.dir, "exec"),
		"--pidfile", filepath.Join(d.dir, "pid"), "--bridge", d.bridge, "--iptables=false", "--ip6tables=false",
	}
	command = append(command, d.options.Args...)
	if d.options.Map > 0 {
		command = d.mapUsers(command)
	}
	if d.options.NoFile > 0 {
		command = append([]string{"prlimit", "--nofile=" + strconv.Itoa(d.options.NoFile)}, command...)
	}
	d.cmd = exec.Command(command[0], command[1:]...)
	// A file and no pipe: its containerd outlives a kill, and writes to the same.
	log, err := os.OpenFile(d.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		d.Fatal(err)
	}
	defer log.Close()
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := d.cmd.Start(); err != nil {
		d.Fatalf("start dockerd: %v", err)
	}
	deadline := time.Now().Add(2 * time.Minute)
	for {
		ctx, cancel := context.WithTimeout(d.Context(), 5*time.Second)
		_, err := d.API.Ping(ctx, client.PingOptions{})
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			d.Fatalf("dockerd does not respond: %v", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// mapUsers returns the command for a daemon that maps users. It has the files that the
// daemon reads the map from in a mount namespace of its own.
func (d *Daemon) mapUsers(command []string) []string {
	d.Helper()
	if err := os.Chmod(d.dir, 0o711); err != nil { // for root in containers, which is another user
		d.Fatal(err)
	}
	ids := filepath.Join(d.dir, "subid")
	if err := os.WriteFile(ids, fmt.Appendf(nil, "nobody:3000000:%d\nnogroup:3000000:%[1]d\n", d.options.Map), 0o644); err != nil {
		d.Fatal(err)
	}
	const script = `mount --bind "$0" /etc/subuid && mount --bind "$0" /etc/subgid && exec "$@" --userns-remap=nobody:nogroup`
	return append([]string{"unshare", "--mount", "sh", "-c", script, ids}, command...)
}

// End ends the daemon with the signal, if it runs.
func (d *Daemon) End(with syscall.Signal) {
	if d.cmd == nil {
		return
	}
	_ = d.cmd.Process.Signal(with)
	_ = d.cmd.Wait()
	d.cmd = nil
	d.endContainerd()
}

// Signal sends the daemon a signal that it survives.
func (d *Daemon) Signal(s syscall.Signal) {
	if d.cmd != nil {
		_ = d.cmd.Process.Signal(s)
	}
}

// Restart ends the daemon with the signal and starts it again.
func (d *Daemon) Restart(with syscall.Signal) {
	d.Helper()
	d.End(with)
	d.Start()
}

// endContainerd has a killed daemon's containerd end, which goes with it. Where
// no init reaps it, the next daemon would take its process id for a living one.
func (d *Daemon) endContainerd() {
	path := filepath.Join(d.dir, "exec", "containerd", "containerd.pid")
	raw, err := os.ReadFile(path)
	if err != nil {
		return // it has ended in order
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil || pid <= 1 {
		d.Fatalf("%s: %q", path, raw)
	}
	for deadline := time.Now().Add(time.Minute); ; {
		command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || !strings.Contains(string(command), d.dir) { // a zombie has none
			break
		}
		if time.Now().After(deadline) {
			d.Fatalf("containerd (pid %d) does not end", pid)
		}
		_ = syscall.Kill(pid, syscall.SIGKILL)
		time.Sleep(20 * time.Millisecond)
	}
	if err := os.Remove(path); err != nil {
		d.Error(err)
	}
}

// copyImage brings an image over from the machine's daemon.
func (d *Daemon) copyImage(ref string) {
	d.Helper()
	machine, err := client.New(client.FromEnv)
	if err != nil {
		d.Fatal(err)
	}
	defer machine.Close()
	saved, err := machine.ImageSave(d.Context(), []string{ref})
	if err != nil {
		d.Fatal(err)
	}
	defer saved.Close()
	loaded, err := d.API.ImageLoad(d.Context(), saved)
	if err != nil {
		d.Fatal(err)
	}
	defer loaded.Close()
	var answer bytes.Buffer
	if _, err := answer.ReadFrom(loaded); err != nil {
		d.Fatal(err)
	}
	if _, err := d.API.ImageInspect(d.Context(), ref); err != nil {
		d.Fatalf("image %s was not copied: %v: %s", ref, err, answer.String())
	}
}
