package api

import "time"

// Kinds of a GitConnection.
const (
	GitToken = "token" // the user entered it
	GitOAuth = "oauth"
)

// Errors of a GitConnection.
const (
	GitRevoked       = "revoked"       // the provider does not accept it any more: connect again
	GitUnavailable   = "unavailable"   // the provider is not responding
	GitMisconfigured = "misconfigured" // the provider does not accept the app
)

// GitConnection is the access of a user to a Git server. No call returns its tokens.
type GitConnection struct {
	ID string `json:"id"`
	// Host has a port if it is not the default one, and begins with http:// if the server has no TLS.
	Host string `json:"host"`
	Kind string `json:"kind"`
	// Provider is the name of the OAuth2 app.
	Provider string `json:"provider,omitempty"`
	Login    string `json:"login"`
	// Error is why the tokens could not be refreshed.
	Error     string    `json:"error,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	ChangedAt time.Time `json:"changed_at"`
}

// NewGitConnection stores a token for a Git server, and replaces the connection to that server.
type NewGitConnection struct {
	Host  string `json:"host"`
	Login string `json:"login"`
	Token string `json:"token"`
}

// GitCredentialRequest asks for the credential of a workspace's owner for a Git server.
type GitCredentialRequest struct {
	Host string `json:"host"` // https://HOST, http://HOST, or HOST
}

// GitCredential is what Git sends to a server.
type GitCredential struct {
	Username string `json:"username"`
	Password string `json:"password"`
}

// GitDisconnected is the answer of DELETE /git-connections/{id}.
type GitDisconnected struct {
	// Revoked: the provider accepts the token no more. Otherwise the user can revoke it there.
	Revoked bool `json:"revoked"`
}
