package api

import "time"

// Kinds of a GitConnection.
const (
	GitToken = "token" // the user entered it
	GitOAuth = "oauth"
)

// States of a GitConnection.
const (
	GitOK      = "ok"
	GitExpires = "expires"
	GitFailed  = "failed"
)

// Errors of a GitConnection.
const (
	GitRevoked       = "revoked"       // the provider does not accept it any more: connect again
	GitUnavailable   = "unavailable"   // the provider is not responding
	GitMisconfigured = "misconfigured" // the provider does not accept the app
)

// GitConnection is the access of a user to a Git server. No call returns its tokens.
type GitConnection struct {
	ID       string `json:"id"`
	Host     string `json:"host"`     // with a port that is not the default one; begins with http:// if the server has no TLS
	Kind     string `json:"kind"`     // token or oauth
	Provider string `json:"provider"` // the name of the OAuth2 app; empty for a token
	Login    string `json:"login"`
	State    string `json:"state"` // ok; expires: the token ends and the server cannot refresh it; failed
	Error    string `json:"error"` // of the last refresh: revoked, unavailable or misconfigured; empty: there is none
	// ExpiresAt is the end of the access token, which the server refreshes before; absent: none or unknown.
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	CreatedAt time.Time  `json:"created_at"`
	ChangedAt time.Time  `json:"changed_at"` // of the token
}

// GitConnectionList is the answer of GET /git-connections.
type GitConnectionList struct {
	Connections []GitConnection `json:"connections"` // by host
}

// NewGitConnection is the body of POST /git-connections.
type NewGitConnection struct {
	Host  string `json:"host"`
	Login string `json:"login"`
	Token string `json:"token"`
}

// GitCredential is the answer of GET /git-credential: what Git sends to the host.
type GitCredential struct {
	Username string `json:"username"`
	Password string `json:"password"`
}

// GitDisconnected is the answer of DELETE /git-connections/{id}.
type GitDisconnected struct {
	// Revoked: the provider accepts the token no more. Otherwise the user can revoke it there.
	Revoked bool `json:"revoked"`
}
