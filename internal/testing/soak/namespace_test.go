package soak

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// initDevice is the environment variable that makes this test binary the first
// process of a machine. Its value is the machine's block device.
const initDevice = "CODEHUB_SOAK_INIT"

// initBinds is the environment variable with the bind mounts of the machine, as
// source:target, separated by commas.
const initBinds = "CODEHUB_SOAK_BINDS"

// srv is the mount point of a machine's disk in its mount namespace.
const srv = "/srv"

// runInit is the first process of a machine: it mounts the machine's file
// systems, then reaps orphaned processes until its standard input is closed.
func runInit(device string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for _, m := range []struct{ what, where, kind, data string }{
		{"proc", "/proc", "proc", ""},
		{"tmpfs", "/run", "tmpfs", "mode=755"},
		{device, srv, "ext4", "errors=remount-ro"},
	} {
		if err := unix.Mount(m.what, m.where, m.kind, 0, m.data); err != nil {
			return fmt.Errorf("mount %s on %s: %w", m.what, m.where, err)
		}
	}
	for bind := range strings.SplitSeq(os.Getenv(initBinds), ",") {
		source, target, ok := strings.Cut(bind, ":")
		if !ok {
			continue
		}
		if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s over %s: %w", source, target, err)
		}
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("set up loopback: %w: %s", err, out)
	}
	fmt.Println("ready")
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0) // the kernel kills every other process of the namespace
	}()
	for {
		if _, err := unix.Wait4(-1, nil, 0, nil); errors.Is(err, unix.ECHILD) {
			_ = unix.Pause() // until SIGCHLD
		}
	}
}

var errOff = errors.New("the machine is off")

// namespace is a set of process, mount and network namespaces with its first
// process. The end of that process kills all others in it. nil: the machine is
// off.
type namespace struct {
	init  *exec.Cmd
	stdin io.Closer
}

func newNamespace(device string, binds []string) (*namespace, error) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), initDevice+"="+device, initBinds+"="+strings.Join(binds, ","))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET, Setsid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start namespaces: %w", err)
	}
	n := &namespace{cmd, stdin}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		return nil, errors.Join(fmt.Errorf("first process of the namespaces: %q, %w", line, err), n.end())
	}
	return n, nil
}

// end kills all processes in the namespaces and waits for their end.
func (n *namespace) end() error {
	_ = n.init.Process.Kill()
	_ = n.stdin.Close()
	_ = n.init.Wait() // was killed
	return nil
}

// path returns the host's path of a path in the namespace.
func (n *namespace) path(p string) string {
	if n == nil {
		return "/nowhere" + p
	}
	return fmt.Sprintf("/proc/%d/root%s", n.init.Process.Pid, p)
}

// startCommand starts a command in the namespaces.
func (n *namespace) startCommand(cmd *exec.Cmd) error {
	return n.inNamespaces(unix.CLONE_NEWNET|unix.CLONE_NEWPID|unix.CLONE_NEWNS, cmd.Start)
}

// inNamespaces calls f on a thread that has entered the namespaces.
func (n *namespace) inNamespaces(kinds int, f func() error) error {
	if n == nil {
		return errOff
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- func() error {
			if kinds&unix.CLONE_NEWNS != 0 {
				if err := unix.Unshare(unix.CLONE_FS); err != nil {
					return fmt.Errorf("unshare: %w", err)
				}
			}
			// The mount namespace is entered last, because its /proc is
			// another one.
			for _, ns := range []struct {
				name string
				kind int
			}{{"net", unix.CLONE_NEWNET}, {"pid", unix.CLONE_NEWPID}, {"mnt", unix.CLONE_NEWNS}} {
				if kinds&ns.kind == 0 {
					continue
				}
				fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/%s", n.init.Process.Pid, ns.name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
				if err != nil {
					return fmt.Errorf("open namespace %s: %w", ns.name, err)
				}
				err = unix.Setns(fd, ns.kind)
				_ = unix.Close(fd)
				if err != nil {
					return fmt.Errorf("enter namespace %s: %w", ns.name, err)
				}
			}
			return f()
		}()
	}()
	return <-done
}

// dial connects to an address in the network namespace.
func (n *namespace) dial(ctx context.Context, address string) (conn net.Conn, err error) {
	err = n.inNamespaces(unix.CLONE_NEWNET, func() error {
		conn, err = new(net.Dialer).DialContext(ctx, "tcp4", address)
		return err
	})
	return conn, err
}
