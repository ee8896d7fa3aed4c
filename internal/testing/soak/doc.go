// Package soak tests codehub with power cuts, kills, Docker restarts, clock
// jumps and restored databases, and compares every home by hash, owners, modes,
// times, links, attributes and ACLs. docs/testing.md describes a round.
//
// It consists of tests: a short form of each runs with make verify, the full
// length with make soak.
package soak
