package kubetest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// ListenIn accepts connections at an address in a Pod's network, and closes them, until the
// test ends.
func (c *Cluster) ListenIn(pod *corev1.Pod, address string) {
	c.tb.Helper()
	c.listen("/proc/"+c.pid(pod)+"/ns/net", address)
}

// ListenOn gives a node an address of its own and accepts connections at its port, until the
// test ends. The node's Pods reach it by way of the node, as the metadata service of a cloud.
func (c *Cluster) ListenOn(node int, ip, port string) {
	c.tb.Helper()
	space := fmt.Sprintf("/run/netns/codehub-k8s%d-%d", c.number, node)
	if out, err := exec.Command("nsenter", "--net="+space, "ip", "addr", "add", ip+"/32", "dev", "lo").CombinedOutput(); err != nil {
		c.tb.Fatalf("ip addr add %s: %v: %s", ip, err, out)
	}
	c.listen(space, net.JoinHostPort(ip, port))
}

// Outside is an address beyond the cluster's nodes, as one on the internet, where connections
// are accepted until the test ends.
func (c *Cluster) Outside() string {
	c.tb.Helper()
	ip := fmt.Sprintf("203.0.113.%d", 10+c.number) // reserved for documentation
	bridge := fmt.Sprintf("codehub-k8s%d", c.number)
	if out, err := exec.Command("ip", "addr", "replace", ip+"/32", "dev", bridge).CombinedOutput(); err != nil {
		c.tb.Fatalf("ip addr replace %s: %v: %s", ip, err, out)
	}
	return c.serve(func() (net.Listener, error) { return net.Listen("tcp", ip+":0") })
}

// listen listens in a network namespace. The socket stays there, whichever thread uses it.
func (c *Cluster) listen(space, address string) {
	c.tb.Helper()
	c.serve(func() (l net.Listener, err error) {
		failed := within(space, func() { l, err = net.Listen("tcp4", address) })
		return l, errors.Join(failed, err)
	})
}

// DialFrom returns a function that connects from a node, from which services are reached by
// their addresses.
func (c *Cluster) DialFrom(node int) func(ctx context.Context, network, address string) (net.Conn, error) {
	space := fmt.Sprintf("/run/netns/codehub-k8s%d-%d", c.number, node)
	return func(ctx context.Context, _, address string) (conn net.Conn, err error) {
		failed := within(space, func() { conn, err = new(net.Dialer).DialContext(ctx, "tcp4", address) })
		return conn, errors.Join(failed, err)
	}
}

// within calls f on a thread that is in a network namespace meanwhile. The thread returns to its
// own one: if it ended, the system would kill the processes that it has started with a
// parent-death signal.
func within(space string, f func()) error {
	runtime.LockOSThread()
	own, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer unix.Close(own)
	fd, err := unix.Open(space, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(fd)
		err = unix.Setns(fd, unix.CLONE_NEWNET)
	}
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	f()
	if err := unix.Setns(own, unix.CLONE_NEWNET); err != nil {
		return err // the thread stays locked, so that no other goroutine gets it
	}
	runtime.UnlockOSThread()
	return nil
}

// serve answers connections until the test ends, and returns the address.
func (c *Cluster) serve(listen func() (net.Listener, error)) string {
	c.tb.Helper()
	l, err := listen()
	if err != nil {
		c.tb.Fatalf("listen: %v", err)
	}
	c.tb.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("HTTP/1.0 204 No Content\r\n\r\n"))
			conn.Close()
		}
	}()
	return l.Addr().String()
}
