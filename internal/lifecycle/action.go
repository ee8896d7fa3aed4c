package lifecycle

import (
	"time"

	"codehub/internal/workspace"
)

// Kind says what is to be done.
type Kind int

const (
	None            Kind = iota
	Claim                // take Op, then run it
	Run                  // Op is claimed, nobody in this process works on it: go on with it
	Complete             // Op is done: it ends
	Fail                 // Op failed, or an invariant is broken: record Reason
	Cancel               // Op ends on request
	Recover              // the recorded error is cleared
	SetAside             // what is in the home's way is kept under another name
	RemoveContainer      // forced stop: the container goes, whatever the phase
	Settle               // bookkeeping alone: the row becomes what reality is
)

// Action is the one thing that a decision asks for.
type Action struct {
	Kind    Kind
	Op      workspace.Operation
	Reason  workspace.ErrorReason // Fail: what is recorded
	Message string                // Fail: for people
}

// Result is a decision.
type Result struct {
	// Row is the row as it is to be written: conditions, phase, and all that
	// the action changes.
	Row    workspace.Workspace
	Action Action
	// Requests that were dealt with and are to be cleared.
	ClearRecover, ClearCancel, ClearForceStop bool
	// ApplyQueued asks the API layer to put the queued wish into force.
	ApplyQueued bool
	// LookAgain is when time alone will change the decision; zero: never.
	LookAgain time.Time
}
