package adopt

import (
	"time"

	"codehub/internal/workspace"
)

// Result is the result for a workspace with archives in the bucket.
type Result string

const (
	Adopted  Result = "adopted"  // its row was added
	Revived  Result = "revived"  // its row was undeleted: it was deleted before its newest archive was made
	Recorded Result = "recorded" // its row existed, and unknown archives were recorded
	Known    Result = "known"    // its row existed with all of its archives
	Left     Result = "left"     // not adopted; Reason says why
)

// Report is what was done, or would be done.
type Report struct {
	DryRun       bool        `json:"dry_run"`
	Installation string      `json:"installation"` // of the archives
	TakenOver    bool        `json:"taken_over"`   // the database now belongs to that installation
	Copied       bool        `json:"copied"`       // archives were copied into this installation's part of the bucket
	Others       []string    `json:"others"`       // installations whose archives were not considered
	Users        []User      `json:"users"`        // created ones
	Workspaces   []Workspace `json:"workspaces"`
	Unusable     []Unusable  `json:"unusable"`
	Warnings     []string    `json:"warnings"`
	Left         int         `json:"left"`
}

// User is a user who was created to own workspaces. The password is shown once.
type User struct {
	Username string `json:"username"`
	Password string `json:"password,omitempty"`
	Admin    bool   `json:"admin"`
}

// Workspace is the result for a workspace.
type Workspace struct {
	ID       workspace.ID `json:"id"`
	Result   Result       `json:"result"`
	Reason   string       `json:"reason,omitempty"`
	Owner    string       `json:"owner"`
	Name     string       `json:"name"`
	OldName  string       `json:"old_name"`
	Archives int          `json:"archives"` // complete archives
	Bytes    int64        `json:"bytes"`    // of the newest archive
	Newest   time.Time    `json:"newest"`
}

// Unusable is an archive that is incomplete or does not match its .meta.
type Unusable struct {
	Key string `json:"key"`
	Why string `json:"why"`
}
