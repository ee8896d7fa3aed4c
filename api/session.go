package api

import "time"

// Kinds of Session.
const (
	SessionCookie    = "session"   // a login in a browser
	SessionToken     = "token"     // an API token
	SessionWorkspace = "workspace" // none: a program inside a workspace
)

// Session is the answer of GET /session: the user, and the session or token of the request.
type Session struct {
	User      User       `json:"user"`
	Kind      string     `json:"kind"`
	ExpiresAt *time.Time `json:"expires_at"`
	URL       string     `json:"url"` // of the server, in a browser
	// Workspace is that of a request from inside a workspace, whose owner User then is.
	Workspace *SessionOf `json:"workspace,omitempty"`
}

// SessionOf is the workspace that a request comes from.
type SessionOf struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// OpenSession is one of a user's sessions: a login on a device.
type OpenSession struct {
	ID         string     `json:"id"`
	UserAgent  string     `json:"user_agent"`
	Address    string     `json:"address"` // of the client at the login; empty if unknown
	Current    bool       `json:"current"` // the request came with it
	CreatedAt  time.Time  `json:"created_at"`
	ExpiresAt  time.Time  `json:"expires_at"`
	LastUsedAt *time.Time `json:"last_used_at"` // to the minute
}

// SessionList is the answer of GET /sessions.
type SessionList struct {
	Sessions   []OpenSession `json:"sessions"`
	NextCursor string        `json:"next_cursor"`
}

// SessionsEnded is the answer of DELETE /sessions.
type SessionsEnded struct {
	Ended int64 `json:"ended"`
}

// Identity is one of a user's accounts at identity providers.
type Identity struct {
	ID        string    `json:"id"`
	Issuer    string    `json:"issuer"`
	Subject   string    `json:"subject"`
	Username  string    `json:"username"` // at the provider, for display
	Active    bool      `json:"active"`   // the provider accepted it at the last check
	CreatedAt time.Time `json:"created_at"`
	CheckedAt time.Time `json:"checked_at"` // last successful check
}

// IdentityList is the answer of GET /identities.
type IdentityList struct {
	Identities []Identity `json:"identities"`
}

// UnlinkIdentity is the body of POST /identities/{id}/unlink.
type UnlinkIdentity struct {
	Current string `json:"current"` // the password
}

// Passkey is one of a user's second factors.
type Passkey struct {
	ID         string     `json:"id"`
	Name       string     `json:"name"`
	Usable     bool       `json:"usable"` // false: it was made for another address of the server
	CreatedAt  time.Time  `json:"created_at"`
	LastUsedAt *time.Time `json:"last_used_at"` // null: never
	ClonedAt   *time.Time `json:"cloned_at"`    // when its counter did not increase; null: never
}

// PasskeyList is the answer of GET /passkeys.
type PasskeyList struct {
	Passkeys      []Passkey `json:"passkeys"`
	RecoveryCodes int       `json:"recovery_codes"` // that are left
}

// RenamePasskey is the body of PATCH /passkeys/{id}.
type RenamePasskey struct {
	Name string `json:"name"`
}

// Deleted is the data of the event workspace_deleted.
type Deleted struct {
	ID string `json:"id"`
}
