// Package activity knows when a workspace was last really used: the proxy
// records it in memory, every replica hands it on, and the leader writes it to
// the database (design §4, §9). Data that is missing is unknown and never
// stops a workspace.
package activity

import (
	"context"
	"time"

	"codehub/internal/workspace"
)

// Kind is what a person, or what they left running, did.
type Kind string

const (
	Open     Kind = workspace.AccessOpen // a page of the workspace was opened
	Presence Kind = "presence"           // somebody is at the window: keys, clicks
	Typing   Kind = "typing"             // in an editor or a terminal
	Output   Kind = "output"             // a terminal printed
	Client   Kind = "client"             // data from a client that is no known IDE
	Stay     Kind = workspace.AccessStay // its owner asked for it to stay
)

// Access is the last use of one workspace, by the clock of whoever says so.
type Access struct {
	ID   workspace.ID
	At   time.Time
	Kind Kind
}

// Bus carries what replicas saw to the leader. It may lose what it holds: it
// then begins a new epoch, so that nobody takes what was lost for idleness.
type Bus interface {
	// Add hands over accesses, each unless a later one of its workspace is
	// there, and returns the epoch that they were added in.
	Add(ctx context.Context, seen []Access) (epoch string, err error)
	// Read returns what is there, and the epoch that holds it.
	Read(ctx context.Context) (seen []Access, epoch string, err error)
	// Remove takes out what was read, except where something later has come.
	Remove(ctx context.Context, seen []Access) error
}
