package api

import "time"

// States of a circuit breaker.
const (
	BreakerClosed   = "closed"    // calls go through
	BreakerOpen     = "open"      // calls fail at once: the backend did not answer
	BreakerHalfOpen = "half-open" // one call is let through, to see
)

// Breaker is what a server knows of one backend.
type Breaker struct {
	State    string    `json:"state"`
	Since    time.Time `json:"since"`
	Failures int       `json:"failures"`        // in a row
	Error    string    `json:"error,omitempty"` // the last failure, while there are any
}

// Server is one codehub process, for administrators.
type Server struct {
	ID        string             `json:"id"`
	Hostname  string             `json:"hostname"`
	Version   string             `json:"version"`
	StartedAt time.Time          `json:"started_at"`
	SeenAt    time.Time          `json:"seen_at"`
	FlushedAt *time.Time         `json:"flushed_at"` // up to when the activity it saw is handed on
	Leads     bool               `json:"leads"`
	Alive     bool               `json:"alive"` // seen of late
	Backends  map[string]Breaker `json:"backends"`
}

// AdminStatus is the answer of GET /admin/status.
type AdminStatus struct {
	Servers      []Server       `json:"servers"`
	Phases       map[string]int `json:"phases"`     // workspaces in each phase, DELETED left out
	Operations   map[string]int `json:"operations"` // running ones, by kind
	Running      int            `json:"running"`    // what counts against max_running_global
	MaxRunning   int            `json:"max_running_global"`
	PerUser      int            `json:"max_running_per_user"`
	WatchedUntil *time.Time     `json:"watched_until"` // up to when it is known what people did
}

// Orphan is something in the backend that belongs to no workspace.
type Orphan struct {
	Kind        string    `json:"kind"` // container, volume or job
	Name        string    `json:"name"`
	WorkspaceID string    `json:"workspace_id,omitempty"`
	Detail      string    `json:"detail,omitempty"`
	FirstSeenAt time.Time `json:"first_seen_at"`
	// RemovedAfter is when it is removed unless a workspace turns up; nil for
	// what is never removed by itself.
	RemovedAfter *time.Time `json:"removed_after"`
}

// OrphanList is the answer of GET /admin/orphans.
type OrphanList struct {
	Orphans []Orphan `json:"orphans"`
}

// Account is a user as administrators see them.
type Account struct {
	ID         string     `json:"id"`
	Username   string     `json:"username"`
	Admin      bool       `json:"admin"`
	Disabled   bool       `json:"disabled"`
	MaxRunning *int       `json:"max_running"` // null: the server's limit; 0: none
	Running    int        `json:"running"`     // workspaces that count against it
	Workspaces int        `json:"workspaces"`
	LockedTill *time.Time `json:"locked_until"`
	CreatedAt  time.Time  `json:"created_at"`
}

// AccountList is the answer of GET /users.
type AccountList struct {
	Users      []Account `json:"users"`
	NextCursor string    `json:"next_cursor"`
}

// CreateAccount is the body of POST /users.
type CreateAccount struct {
	Username   string `json:"username"`
	Password   string `json:"password"`
	Admin      bool   `json:"admin,omitempty"`
	MaxRunning *int   `json:"max_running,omitempty"`
}

// PatchAccount is the body of PATCH /users/{id}; what is left out stays.
type PatchAccount struct {
	Admin      *bool         `json:"admin,omitempty"`
	Disabled   *bool         `json:"disabled,omitempty"`
	MaxRunning Nullable[int] `json:"max_running,omitzero"`
	Password   *string       `json:"password,omitempty"`
}

// ChangePassword is the body of POST /users/me/password.
type ChangePassword struct {
	Current string `json:"current"`
	New     string `json:"new"`
}
