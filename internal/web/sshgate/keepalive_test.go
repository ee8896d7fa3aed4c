package sshgate_test

import (
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/crypto/ssh"

	"codehub/internal/gateway/front"
	"codehub/internal/testing/harness"
)

// A client behind whose request for a port others wait hears from the server while the workspace
// starts.
func TestForwardWaitsForWorkspace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.db.Change(`UPDATE workspaces SET phase = 'STANDBY', desired_state = 'STANDBY' WHERE id = $1`, w.demo.ID)
	raw, err := net.Dial("tcp", w.addr)
	check(t, err)
	t.Cleanup(func() { raw.Close() })
	conn, channels, requests, err := ssh.NewClientConn(raw, w.addr, w.config("demo", w.key))
	check(t, err)
	go func() {
		for range channels { // none is opened
		}
	}()
	forwarded := make(chan bool, 1)
	go func() {
		ok, _, _ := conn.SendRequest("tcpip-forward", true, forwardOf(0))
		forwarded <- ok
	}()
	if r := <-requests; r == nil || r.Type != "keepalive@openssh.com" || len(forwarded) > 0 {
		t.Fatalf("%+v, %d answers", r, len(forwarded))
	} else {
		check(t, r.Reply(false, nil))
	}
	go ssh.DiscardRequests(requests)
	w.db.Change(running, w.demo.ID)
	if !<-forwarded {
		t.Error("the port was not forwarded")
	}
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
