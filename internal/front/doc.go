// Package front is what stands between the network and codehub's handlers: the
// listener, with PROXY protocol and TLS, and the address of the client behind
// reverse proxies.
package front
