package api

import "time"

// Group is a group of users.
type Group struct {
	ID            string    `json:"id"`
	Name          string    `json:"name"`
	Claim         string    `json:"claim"`          // a group of an identity provider whose members belong to this one
	Issuer        string    `json:"issuer"`         // the provider; empty: any
	MaxRunning    *int      `json:"max_running"`    // of each member; null: the server's limit; 0: none
	MaxWorkspaces *int      `json:"max_workspaces"` // as above
	MaxBytes      *int64    `json:"max_bytes"`      // as above
	Members       int       `json:"members"`
	Manages       bool      `json:"manages"` // the caller may add and remove members
	CreatedAt     time.Time `json:"created_at"`
}

// GroupList is the answer of GET /groups.
type GroupList struct {
	Groups     []Group `json:"groups"`
	NextCursor string  `json:"next_cursor"`
}

// CreateGroup is the body of POST /groups.
type CreateGroup struct {
	Name          string `json:"name"`
	Claim         string `json:"claim,omitempty"`
	Issuer        string `json:"issuer,omitempty"`
	MaxRunning    *int   `json:"max_running,omitempty"`
	MaxWorkspaces *int   `json:"max_workspaces,omitempty"`
	MaxBytes      *int64 `json:"max_bytes,omitempty"`
}

// PatchGroup is the body of PATCH /groups/{id}; absent fields are unchanged.
type PatchGroup struct {
	Name          *string         `json:"name,omitempty"`
	Claim         *string         `json:"claim,omitempty"`
	Issuer        *string         `json:"issuer,omitempty"`
	MaxRunning    Nullable[int]   `json:"max_running,omitzero"`
	MaxWorkspaces Nullable[int]   `json:"max_workspaces,omitzero"`
	MaxBytes      Nullable[int64] `json:"max_bytes,omitzero"`
}

// Member is a user in a group.
type Member struct {
	UserID   string `json:"user_id"`
	Username string `json:"username"`
	Admin    bool   `json:"admin"`   // adds and removes members
	Added    bool   `json:"added"`   // not only by the claim
	Claimed  bool   `json:"claimed"` // by the claim
}

// RemovedMember is what is left of the membership of a user who was removed from a group.
type RemovedMember struct {
	Claimed bool `json:"claimed"` // the user is still a member, by the claim
}

// MemberList is the answer of GET /groups/{id}/members.
type MemberList struct {
	Members    []Member `json:"members"`
	NextCursor string   `json:"next_cursor"`
}

// SetMember is the body of POST /groups/{id}/members.
type SetMember struct {
	User  string `json:"user"`            // a name or an id
	Admin *bool  `json:"admin,omitempty"` // absent: unchanged
}
