// Package front has the listener in front of codehub's handlers, with PROXY protocol
// and TLS, and determines the address of the client behind reverse proxies.
package front
