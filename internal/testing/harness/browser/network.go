package browser

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// network is a network namespace for a Chromium. Docker adds interfaces to the machine's
// for each container, and each of them ends requests of a Chromium that sees it.
type network struct {
	path string            // for nsenter
	do   chan func() error // run on the thread that is in the namespace
	did  chan error
}

// newNetwork creates a network namespace, which leave gives up.
func newNetwork() (*network, error) {
	n := &network{do: make(chan func() error), did: make(chan error)}
	go n.live()
	// Chromium takes a machine without an interface other than loopback as offline. IPv6
	// addresses would change once more after Chromium has started.
	script := `echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6 && ip link set lo up && ip link add up0 type veth peer up1 && ip address add 192.0.2.1/24 dev up0 && ip link set up0 up && ip link set up1 up && ip route add default via 192.0.2.2`
	if err := n.run(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("create a network namespace, which needs root: %w", err)
		}
		n.path = fmt.Sprintf("/proc/%d/task/%d/ns/net", unix.Getpid(), unix.Gettid())
		if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
			return fmt.Errorf("set up the browser's network: %w: %s", err, out)
		}
		return nil
	}); err != nil {
		n.leave()
		return nil, err
	}
	return n, nil
}

func (n *network) leave() { close(n.do) }

// live runs functions on a thread of their own until n.do is closed. The thread leaves the
// namespace then and must not end: it may have started processes that end with it.
func (n *network) live() {
	runtime.LockOSThread()
	machine, err := os.Open(fmt.Sprintf("/proc/%d/task/%d/ns/net", unix.Getpid(), unix.Gettid()))
	for f := range n.do {
		if err == nil {
			n.did <- f()
		} else {
			n.did <- err
		}
	}
	if err != nil {
		select {}
	}
	defer machine.Close()
	if unix.Setns(int(machine.Fd()), unix.CLONE_NEWNET) != nil {
		select {}
	}
	runtime.UnlockOSThread()
}

func (n *network) run(f func() error) error {
	n.do <- f
	return <-n.did
}

// enter makes a command start in the namespace and end with the test's process.
func (n *network) enter(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Args = append([]string{"nsenter", "--net=" + n.path, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/usr/bin/nsenter"
}

// reach makes the port of an address on this machine's loopback reachable in the namespace.
func (n *network) reach(t testing.TB, address string) {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	host := "127.0.0.1"
	if net.ParseIP(u.Hostname()) != nil {
		host = u.Hostname()
	}
	to := net.JoinHostPort(host, u.Port())
	var l net.Listener
	if err := n.run(func() error { l, err = net.Listen("tcp", to); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go relay(c, to)
		}
	}()
}

// relay connects c with an address of the machine until both directions have ended.
func relay(c net.Conn, to string) {
	defer c.Close()
	up, err := net.Dial("tcp", to)
	if err != nil {
		// As where nothing listens.
		_ = c.(*net.TCPConn).SetLinger(0)
		return
	}
	defer up.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		pass(up, c)
	}()
	pass(c, up)
	<-done
}

// pass copies one direction and its end. If the destination fails, both directions end.
func pass(to, from net.Conn) {
	if _, err := io.Copy(to, from); err != nil {
		_ = to.Close()
		_ = from.Close()
		return
	}
	_ = to.(*net.TCPConn).CloseWrite()
}
