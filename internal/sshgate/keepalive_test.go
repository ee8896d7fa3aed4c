package sshgate_test

import (
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"codehub/internal/front"
	"codehub/internal/harness"
)

// A client that asks whether the server is there, behind its request for a port, keeps its
// connection while the workspace starts.
func TestForwardWaitsForWorkspace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.db.Change(`UPDATE workspaces SET phase = 'STANDBY', desired_state = 'STANDBY' WHERE id = $1`, w.demo.ID)
	service := listen(t)
	echo(t, service)
	port := freePort(t)
	_, errs, exited := w.background(w.command("ssh", "-N", "-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=8", "-o", "ExitOnForwardFailure=yes", "-R", port+":"+service.Addr().String(), "demo"))
	select {
	case status := <-exited:
		t.Fatalf("ssh ended with %d: %s", status, errs)
	case <-time.After(12 * time.Second):
	}
	w.db.Change(running, w.demo.ID)
	echoes(t, dial(t, "tcp", "127.0.0.1:"+port), "hello")
}

// recorder keeps the connections that a listener accepts.
type recorder struct {
	net.Listener
	accepted chan net.Conn
}

func (r recorder) Accept() (net.Conn, error) {
	c, err := r.Listener.Accept()
	if err == nil {
		r.accepted <- c
	}
	return c, err
}

// Connections of a load balancer that sends the PROXY protocol have the keep-alives of all others.
func TestKeepAliveBehindProxyProtocol(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	proxies := front.Proxies{netip.MustParsePrefix("127.0.0.0/8")}
	accepted := recorder{listen(t), make(chan net.Conn, 1)}
	l := proxies.ProxyProtocol(accepted)
	serve(t, l, func() { _ = w.gate.Serve(t.Context(), l) })
	c, err := net.Dial("tcp", accepted.Addr().String())
	check(t, err)
	t.Cleanup(func() { c.Close() })
	_, err = io.WriteString(c, "PROXY TCP4 192.0.2.7 192.0.2.1 1000 22\r\nSSH-2.0-test\r\n")
	check(t, err)
	raw, err := (<-accepted.accepted).(*net.TCPConn).SyscallConn()
	check(t, err)
	harness.Eventually(t, "the keep-alives of SSH", func() bool {
		idle := 0
		check(t, raw.Control(func(fd uintptr) {
			idle, err = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE)
		}))
		return err == nil && idle == 30
	})
}
