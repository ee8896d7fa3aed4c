package adopt

import (
	"time"

	"codehub/internal/workspace"
)

// Result is what became of a workspace that the bucket has archives of.
type Result string

const (
	Adopted  Result = "adopted"  // its row was added
	Revived  Result = "revived"  // its row was there, deleted before its newest archive was made
	Recorded Result = "recorded" // its row is there, and archives that it did not know are kept for it now
	Known    Result = "known"    // its row is there, and knows all of its archives
	Left     Result = "left"     // nothing was done; Reason says why
)

// Report is what was done, or would be.
type Report struct {
	DryRun       bool        `json:"dry_run"`
	Installation string      `json:"installation"` // whose archives
	TakenOver    bool        `json:"taken_over"`   // the database is of that installation from now on
	Copied       bool        `json:"copied"`       // archives were copied into this installation's part of the bucket
	Others       []string    `json:"others"`       // installations whose archives were not looked at
	Users        []User      `json:"users"`        // that were made
	Workspaces   []Workspace `json:"workspaces"`
	Unusable     []Unusable  `json:"unusable"`
	Left         int         `json:"left"`
}

// User is one who was made to own workspaces. The password is told this once.
type User struct {
	Username string `json:"username"`
	Password string `json:"password,omitempty"`
	Admin    bool   `json:"admin"`
}

// Workspace is what became of one.
type Workspace struct {
	ID       workspace.ID `json:"id"`
	Result   Result       `json:"result"`
	Reason   string       `json:"reason,omitempty"`
	Owner    string       `json:"owner"`
	Name     string       `json:"name"`
	OldName  string       `json:"old_name"`
	Archives int          `json:"archives"` // that are complete
	Bytes    int64        `json:"bytes"`    // of the newest
	Newest   time.Time    `json:"newest"`
}

// Unusable is an archive that is not complete, or not what its .meta says.
type Unusable struct {
	Key string `json:"key"`
	Why string `json:"why"`
}
