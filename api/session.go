package api

import "time"

// Kinds of Session.
const (
	SessionCookie = "session" // a login in a browser
	SessionToken  = "token"   // an API token
)

// Session is the answer of GET /session: who asks, and by what.
type Session struct {
	User      User       `json:"user"`
	Kind      string     `json:"kind"`
	ExpiresAt *time.Time `json:"expires_at"`
}

// Deleted is the data of the event workspace_deleted.
type Deleted struct {
	ID string `json:"id"`
}
