package kubetest

import (
	"io"
	"net"
	"time"
)

// Forward gives Pods access to a server that listens on this machine's loopback. It returns
// the address at which they reach it.
func (c *Cluster) Forward(to string) string {
	c.tb.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(c.Address, "0"))
	if err != nil {
		c.tb.Fatal(err)
	}
	c.tb.Cleanup(func() { l.Close() })
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			go pass(from, to)
		}
	}()
	return l.Addr().String()
}

func pass(from net.Conn, address string) {
	defer from.Close()
	to, err := net.DialTimeout("tcp", address, 10*time.Second)
	if err != nil {
		return
	}
	defer to.Close()
	go func() {
		_, _ = io.Copy(to, from)
		to.Close()
	}()
	_, _ = io.Copy(from, to)
}
