package front

import (
	"fmt"
	"net"
	"time"

	proxyproto "github.com/pires/go-proxyproto"
)

// headerTimeout bounds the wait for the PROXY protocol header of a connection.
const headerTimeout = 10 * time.Second

// ProxyProtocol returns a listener whose connections from trusted proxies begin with a
// PROXY protocol header, v1 or v2; without one they are closed. Their RemoteAddr is the
// client's. Connections of other peers are unchanged, so a header of theirs is only a
// malformed request.
func (p Proxies) ProxyProtocol(l net.Listener) net.Listener {
	return proxyListener{&proxyproto.Listener{
		Listener:          l,
		ReadHeaderTimeout: headerTimeout,
		ValidateHeader:    validate,
		ConnPolicy: func(o proxyproto.ConnPolicyOptions) (proxyproto.Policy, error) {
			if peer, ok := o.Upstream.(*net.TCPAddr); ok && p.Contain(peer.AddrPort().Addr()) {
				return proxyproto.REQUIRE, nil
			}
			return proxyproto.SKIP, nil
		},
	}}
}

type proxyListener struct{ *proxyproto.Listener }

func (l proxyListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if proxied, ok := c.(*proxyproto.Conn); ok {
		return proxyConn{proxied}, nil
	}
	return c, err
}

// proxyConn is a connection of a trusted proxy.
type proxyConn struct{ *proxyproto.Conn }

// CloseWrite closes the connection for writing, as TCP connections can.
func (c proxyConn) CloseWrite() error {
	if half, ok := c.Raw().(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

// NetConn returns the connection to the proxy.
func (c proxyConn) NetConn() net.Conn { return c.Raw() }

// TCP returns the TCP connection under c, which may be one of TLS or of the PROXY
// protocol.
func TCP(c net.Conn) (*net.TCPConn, bool) {
	for {
		switch under := c.(type) {
		case *net.TCPConn:
			return under, true
		case interface{ NetConn() net.Conn }:
			c = under.NetConn()
		default:
			return nil, false
		}
	}
}

// validate refuses headers whose source is no TCP address. A proxy that checks
// codehub's health itself sends LOCAL or UNKNOWN, without an address.
func validate(h *proxyproto.Header) error {
	if h.Command.IsLocal() || h.TransportProtocol.IsUnspec() {
		return nil
	}
	if _, ok := h.SourceAddr.(*net.TCPAddr); !ok {
		return fmt.Errorf("the source %v is no TCP address", h.SourceAddr)
	}
	return nil
}
