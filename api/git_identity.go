package api

import "time"

// GitIdentity is the author of a user's commits and the SSH key with which git reaches servers and
// signs, in all workspaces of the user.
type GitIdentity struct {
	Name        string     `json:"name"`           // that of the identity provider or the username, unless the user has entered another one
	Email       string     `json:"email"`          // as name; empty: none
	SignCommits bool       `json:"sign_commits"`   // git signs commits and tags with the key
	PublicKey   string     `json:"public_key"`     // as in authorized_keys; empty: there is no key
	KeyMadeAt   *time.Time `json:"key_created_at"` // null: there is no key
}

// SetGitIdentity is the body of PUT /user/git-identity.
type SetGitIdentity struct {
	Name        string `json:"name,omitempty"`         // empty: that of the identity provider, or the username
	Email       string `json:"email,omitempty"`        // empty: that of the identity provider, or none
	SignCommits bool   `json:"sign_commits,omitempty"` // makes a key if there is none
}

// GitSignatureRequest asks for a signature with the SSH key of a workspace's owner.
type GitSignatureRequest struct {
	PublicKey string `json:"public_key"` // of the key, as in authorized_keys
	Data      string `json:"data"`       // base64, of at most 16 KiB
}

// GitSignature is a signature in SSH's own form.
type GitSignature struct {
	Format    string `json:"format"`    // ssh-ed25519
	Signature string `json:"signature"` // base64
}
