package kubetest

import (
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// Forward gives Pods access to a server that listens on this machine's loopback, or at the path
// of a Unix socket. It returns the address at which they reach it.
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
			go c.pass(from, to)
		}
	}()
	return l.Addr().String()
}

func (c *Cluster) pass(from net.Conn, address string) {
	defer from.Close()
	network := "tcp"
	if strings.HasPrefix(address, "/") {
		network = "unix"
	}
	to, err := net.DialTimeout(network, address, 10*time.Second)
	if err != nil {
		fmt.Fprintf(c.tb.Output(), "no connection to %s for a Pod: %v\n", address, err)
		return
	}
	defer to.Close()
	go func() {
		_, _ = io.Copy(to, from)
		to.Close()
	}()
	_, _ = io.Copy(from, to)
}
