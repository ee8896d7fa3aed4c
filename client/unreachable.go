package client

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"syscall"
)

// Unreachable is the error of a request that did not reach the server, or whose
// response did not arrive.
type Unreachable struct {
	Server string // scheme, host and port
	Err    error
}

func (e *Unreachable) Unwrap() error { return e.Err }

// Error names the server and the cause, without the layers of the network library.
func (e *Unreachable) Error() string {
	cause, advice := e.Err, ""
	var u *url.Error
	if errors.As(cause, &u) {
		cause = u.Err
	}
	var op *net.OpError
	var dns *net.DNSError
	var call *os.SyscallError
	switch {
	case errors.As(cause, &op) && op.Op == "proxyconnect":
		return fmt.Sprintf("cannot reach %s through the proxy: %v", e.Server, op.Err)
	case errors.As(cause, &dns):
		cause, advice = fmt.Errorf("the name %s cannot be resolved", dns.Name), "; check the address"
	case errors.As(cause, &call):
		cause = call.Err
	}
	if errors.Is(cause, syscall.ECONNREFUSED) {
		advice = "; check the address, and that the server runs"
	}
	return fmt.Sprintf("cannot reach %s: %v%s", e.Server, cause, advice)
}

// unreachable wraps an error of the transport. An error of the caller's context
// stays as it is.
func (c *Client) unreachable(err error) error {
	u, parseErr := url.Parse(c.base)
	if parseErr != nil {
		return err
	}
	return &Unreachable{Server: u.Scheme + "://" + u.Host, Err: err}
}
