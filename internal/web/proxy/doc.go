// Package proxy relays requests under /w/{id}/ to the IDE of the workspace.
// docs/architecture.md describes a request's path through it.
//
// A request passes three stages:
//
//	target.go   parses the workspace and the path for the IDE
//	entry.go    authenticates, authorizes, and checks the workspace's state
//	relay.go    relays to the container: headers, WebSockets, streams
//
// The route cache (routes.go) answers the second stage without the database or
// Docker. connections.go tracks open connections, which end with their session,
// their route or the server. use.go detects user activity.
//
// In path mode all workspaces share the dashboard's origin, so a page in a
// workspace can act as its visitor there. The proxy limits that: cookies, redirects
// and service workers of a workspace stay under its path (confine.go), and other
// sites can only open its pages (origin.go). docs/security.md lists what remains.
package proxy
