package lifecycle

import (
	"time"

	"codehub/internal/workspace"
)

// Kind is what a decision asks for.
type Kind int

const (
	None            Kind = iota
	Claim                // claim Op, then run it
	Run                  // Op is claimed and has no executor in this process: run it
	Complete             // Op is complete: end it
	Fail                 // Op failed, or an invariant is broken: record Reason
	Cancel               // end Op on request
	Recover              // clear the recorded error
	SetAside             // keep the volume that blocks the home under another name
	RemoveContainer      // forced stop: remove the container, in any phase
	Settle               // only write the row, so that it matches the observation
)

// Action is what a decision asks for. There is one at most.
type Action struct {
	Kind    Kind
	Op      workspace.Operation
	Reason  workspace.ErrorReason // Fail: what is recorded
	Message string                // Fail: for people
}

// Result is a decision.
type Result struct {
	// Row is the row to write: conditions, phase, and everything that the action
	// changes.
	Row    workspace.Workspace
	Action Action
	// Requests that are carried out, and to be cleared.
	ClearRecover, ClearCancel, ClearForceStop, ClearRestore bool
	// Audit is an entry that is written with the row; nil: none.
	Audit *Entry
	// ApplyQueued asks the API layer to apply the queued state.
	ApplyQueued bool
	// LookAgain is when the decision changes without a new observation; zero: never.
	LookAgain time.Time
}
