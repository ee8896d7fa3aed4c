// Package activity determines when a workspace was last used: the proxy records
// activity in memory, every replica flushes it, and the leader writes it to the
// database. Missing data counts as unknown and never stops a workspace.
// docs/adr/0010-the-ides-page-reports-its-use.md describes what counts as use.
package activity

import (
	"context"
	"time"

	"codehub/internal/workspace"
)

// Kind is the kind of an activity.
type Kind string

const (
	Open     Kind = workspace.AccessOpen // a page of the workspace was opened
	Presence Kind = "presence"           // a user is at the window: keys, clicks
	Typing   Kind = "typing"             // in an editor or a terminal
	Output   Kind = "output"             // a terminal printed
	Client   Kind = "client"             // data from a client with an unknown protocol
	Stay     Kind = workspace.AccessStay // the owner reset the idle timer

	// The leader records these two, as it asks the agents: a Recorder has no room for them.
	Busy Kind = "busy" // a command holds the workspace awake
	Work Kind = "work" // processes are at work, where that counts
)

// Access is the last use of a workspace, by the clock of the process that reports
// it.
type Access struct {
	ID   workspace.ID
	At   time.Time
	Kind Kind
}

// Bus carries activity from the replicas to the leader. If it loses data it begins
// a new epoch, so that the loss is not taken for idleness.
type Bus interface {
	// Add stores accesses, unless a later one of the same workspace exists, and
	// returns the epoch in which they are stored.
	Add(ctx context.Context, seen []Access) (epoch string, err error)
	// Read returns all stored accesses and their epoch.
	Read(ctx context.Context) (seen []Access, epoch string, err error)
	// Remove deletes the given accesses, except where a later one has replaced
	// them.
	Remove(ctx context.Context, seen []Access) error
}
