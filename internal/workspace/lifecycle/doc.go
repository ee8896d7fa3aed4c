// Package lifecycle holds the rules of a workspace's life. Judge turns an
// observation into conditions, a phase and at most one action. The intents
// (Desire, Wake, Stay, Delete, Undelete, ApplyQueued and those that begin with
// Request) turn what a person asks for into a changed workspace. RuleOf gives the rule of
// an operation; OpeningOf, LossOf and Restorable answer what pages, the API and
// the proxy ask.
//
// Everything here is pure: the time, the claim ID and the jitter are arguments,
// and the result is data. docs/states.md describes the same rules in prose.
package lifecycle
