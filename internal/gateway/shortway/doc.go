// Package shortway relays the plain requests and the WebSockets of IDEs with less work than
// net/http and httputil.ReverseProxy; see docs/adr/0016. Everything else goes through those.
package shortway
