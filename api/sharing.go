package api

import "time"

// Share is the access of a user or of a group to a workspace of another user.
type Share struct {
	ID        string    `json:"id"`
	User      string    `json:"user"`     // the username; empty: a group
	UserID    string    `json:"user_id"`  // empty: a group
	Group     string    `json:"group"`    // the group's name; empty: a user
	GroupID   string    `json:"group_id"` // empty: a user
	Access    string    `json:"access"`   // use or view
	Git       bool      `json:"git"`      // the owner's Git connections may be used in the workspace while it is shared for use
	CreatedAt time.Time `json:"created_at"`
}

// ShareList is the answer of GET /workspaces/{id}/shares.
type ShareList struct {
	Shares []Share `json:"shares"`
}

// NewShare is the body of POST /workspaces/{id}/shares: a user or a group, by name or id.
type NewShare struct {
	User   string `json:"user,omitempty"`
	Group  string `json:"group,omitempty"`
	Access string `json:"access"`
	Git    bool   `json:"git,omitempty"` // with the access use: Git in the workspace may use the owner's connections, also for these guests
}

// SharedWorkspace is a workspace that another user shares with the caller.
type SharedWorkspace struct {
	ID           string     `json:"id"`
	Name         string     `json:"name"`
	Description  string     `json:"description"`
	Owner        string     `json:"owner"`
	Access       string     `json:"access"` // use or view
	State        string     `json:"state"`
	ImageRef     string     `json:"image_ref"`
	Size         string     `json:"size"`
	URL          string     `json:"url"` // where it is entered; empty without use
	LastAccessAt *time.Time `json:"last_access_at"`
	CreatedAt    time.Time  `json:"created_at"`
	Shares       []Share    `json:"shares"` // who has access
}

// SharedList is the answer of GET /shared.
type SharedList struct {
	Workspaces []SharedWorkspace `json:"workspaces"`
}

// LeftShare is the answer of DELETE /shared/{id}.
type LeftShare struct {
	Groups []string `json:"groups"` // by which the caller still has access; empty: none
}
