package workspace

import "net/netip"

// Caller is who asks. Every store method that acts for a person takes one and
// checks it inside, so that no layer above can forget to (a workspace is its
// owner's alone; others get CodeForbidden).
type Caller struct {
	UserID   string
	Username string
	Admin    bool
	// Session is the hex SHA-256 of the session id or API token that the
	// caller came with; what hangs on it (open connections, caches) ends with it.
	Session string
	// Token is the id of the API token, empty for a browser session.
	Token string
	// Scope and Only limit what the token may do; empty: no limit.
	Scope Scope
	Only  ID // the workspace that it is for
	// Inside is a program in the workspace Only, which needs no credential and may do very
	// little for the workspace's owner (docs/security.md).
	Inside bool
	// Address is that of the request's client, for the audit log; invalid: not known.
	Address netip.Addr
}

// System is codehub itself: the controller applying a queued state, the TTL
// runner. It passes every ownership check.
var System = Caller{UserID: "system", Username: "system"}

// Owns reports whether the caller may act on a workspace of that owner.
func (c Caller) Owns(ownerID string) bool {
	return c == System || (c.UserID != "" && c.UserID == ownerID)
}
