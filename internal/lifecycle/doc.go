// Package judge decides: observed facts become conditions, conditions a
// phase, and the phase held against what is desired at most one action
// (design §2 and §3). Everything here is pure: the time, the claim id and the
// jitter come in as fields, and what should happen goes out as data.
package lifecycle
