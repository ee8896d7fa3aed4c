// Package soak holds codehub against power cuts, kills, Docker restarts, clock
// jumps and restored databases, with every home compared by hash, owners,
// modes, times, links, attributes and ACLs. docs/testing.md describes a round.
//
// It consists of tests; a short form of each runs with every other test, the
// full length by `make soak`.
package soak
