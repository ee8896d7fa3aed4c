// Package workspace holds codehub's words: the workspace itself, its phases,
// conditions, operations, desired states and the state of its home
// (design §1 and §2), and the coded errors that every layer shares. It knows
// nothing of databases, containers or HTTP.
package workspace
