package api

import "time"

// Secret is a secret of a user or a group, without its value, which no call returns.
type Secret struct {
	ID            string    `json:"id"`
	Name          string    `json:"name"`
	Env           string    `json:"env"`            // environment variable with the value; empty: none
	File          string    `json:"file"`           // file with the value, such as ~/.npmrc; empty: none
	WorkspaceID   *string   `json:"workspace_id"`   // the only workspace that gets it; null: all
	WorkspaceName string    `json:"workspace_name"` // empty also if that workspace is deleted
	Template      *string   `json:"template"`       // name of the only template whose workspaces get it; null: it does not matter
	GroupID       *string   `json:"group_id"`       // null: the caller's own
	GroupName     string    `json:"group_name"`
	Manages       bool      `json:"manages"` // the caller may change and delete it
	Size          int       `json:"size"`    // bytes of the value
	CreatedAt     time.Time `json:"created_at"`
	ChangedAt     time.Time `json:"changed_at"`
}

// SecretList is the answer of GET /secrets and GET /groups/{id}/secrets.
type SecretList struct {
	Secrets []Secret `json:"secrets"`
	// Waiting are the caller's running workspaces that get other secrets at their next start.
	Waiting []SecretWaiting `json:"waiting"`
	// Missing are the secrets that the caller's workspaces require and do not have.
	Missing []SecretMissing `json:"missing"`
}

// SecretMissing is a variable that a workspace requires, and that neither a secret nor its own
// environment variables set.
type SecretMissing struct {
	WorkspaceID string `json:"workspace_id"`
	Name        string `json:"name"` // of the workspace
	Env         string `json:"env"`
}

// SecretWaiting is a running workspace whose secrets have changed since its start.
type SecretWaiting struct {
	WorkspaceID string `json:"workspace_id"`
	Name        string `json:"name"`
}

// Base64 is the encoding of a value that is not text.
const Base64 = "base64"

// CreateSecret is the body of POST /secrets and POST /groups/{id}/secrets.
type CreateSecret struct {
	Name        string `json:"name"`
	Value       string `json:"value"`
	Encoding    string `json:"encoding,omitempty"`     // of the value: base64, or empty for text
	Env         string `json:"env,omitempty"`          // at least one of env and file
	File        string `json:"file,omitempty"`         // begins with ~/
	WorkspaceID string `json:"workspace_id,omitempty"` // empty: all workspaces
	Template    string `json:"template,omitempty"`     // a template's name, instead of a workspace
}

// UpdateSecret is the body of PATCH /secrets/{id}; absent fields are unchanged.
type UpdateSecret struct {
	Value       *string          `json:"value,omitempty"`
	Encoding    string           `json:"encoding,omitempty"`
	Env         *string          `json:"env,omitempty"`         // empty: none
	File        *string          `json:"file,omitempty"`        // empty: none
	WorkspaceID Nullable[string] `json:"workspace_id,omitzero"` // one ends Template
	Template    Nullable[string] `json:"template,omitzero"`     // one ends WorkspaceID
}
