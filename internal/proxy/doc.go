// Package proxy leads people from /w/{id}/ to the IDE of their workspace
// (design §8).
//
// A request passes three stations, each knowing nothing of the next:
//
//	target.go   which workspace is meant, and what the IDE is asked for
//	entry.go    who asks, whether they may, and what state the workspace is in
//	relay.go    to the container and back: headers, WebSockets, streams
//
// Beside them stand the route cache (routes.go), which answers the second
// station without the database or the runtime, the record of what is open
// (connections.go), by which a connection ends with its session, its route or
// the server, and what is noticed of people on the way (use.go).
//
// In path mode every workspace shares the dashboard's origin, so that a page
// in a workspace can act as its visitor there. What the proxy can do about it
// from outside it does: cookies, redirects and service workers of a workspace
// stay under its path (confine.go), and other sites reach it by opening a page
// only (origin.go).
package proxy
