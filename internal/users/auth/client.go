package auth

import (
	"net/http"
	"net/netip"

	"codehub/internal/gateway/front"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// Client is where a request comes from.
type Client struct {
	Address   netip.Addr // invalid: unknown
	UserAgent string
}

// ClientOf returns where a request comes from.
func ClientOf(r *http.Request) Client {
	return Client{Address: front.Address(r), UserAgent: r.UserAgent()}
}

// stored is the client as the store keeps it.
func (c Client) stored() postgres.Client {
	return postgres.Client{Address: c.Address, UserAgent: boundedText(c.UserAgent, 256)}
}

// ipv6Prefix is the size of the network that one customer of a provider gets at least.
// Its addresses are one source.
const ipv6Prefix = 64

// source names the client in the queues of password checks. Clients with the same
// source share one place in the rotation.
func (c Client) source() string {
	a := c.Address.Unmap().WithZone("")
	if !a.IsValid() {
		return "unknown"
	}
	if a.Is4() {
		return a.String()
	}
	return netip.PrefixFrom(a, ipv6Prefix).Masked().String()
}

// sourceOf names a caller who is logged in. Logins, from the same address or another one,
// do not delay the caller's password checks.
func sourceOf(c workspace.Caller) string { return "user " + c.UserID }

// ownSource is the source of the server's own password hashes.
const ownSource = "server"
