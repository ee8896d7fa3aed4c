package api

import "time"

// Template is a template that workspaces are created from.
type Template struct {
	Name        string            `json:"name"`
	Title       map[string]string `json:"title"` // by language: en, ko
	Description map[string]string `json:"description"`
	Icon        string            `json:"icon"`
	Image       string            `json:"image"` // empty: the default image
	Size        string            `json:"size"`
	Env         map[string]string `json:"env"` // ${param.NAME} in a value is the value of that parameter
	// Repositories are cloned into its workspaces; ${param.NAME} in a URL or a branch is the value of
	// that parameter.
	Repositories      []Repository        `json:"repositories"`
	Scripts           *Scripts            `json:"scripts"`    // null: none
	Extensions        []string            `json:"extensions"` // of the IDE, such as golang.go
	Ports             []ProjectPort       `json:"ports"`
	RequiredSecrets   []string            `json:"required_secrets"` // variables that secrets of the owner should set
	Parameters        []TemplateParameter `json:"parameters"`
	StandbyTTLSeconds *int                `json:"standby_ttl_seconds"` // null: the server's; 0: never
	ArchiveTTLSeconds *int                `json:"archive_ttl_seconds"`
	// BackupIntervalSeconds is between two backups of the home; null: the server's, 0: none.
	// BackupKeep is which are kept; empty: the server's rule.
	BackupIntervalSeconds *int       `json:"backup_interval_seconds"`
	BackupKeep            string     `json:"backup_keep"`
	Groups                []string   `json:"groups"`  // names of the groups that may use it; none: everyone
	Hidden                bool       `json:"hidden"`  // not offered; only administrators see it
	Version               string     `json:"version"` // of what workspaces get
	Source                string     `json:"source"`  // "built-in", "folder" or "saved"
	SavedAt               *time.Time `json:"saved_at"`
	SavedBy               string     `json:"saved_by"` // of a saved one

	// MissingSecrets are those of RequiredSecrets that the caller has not stored; of one template.
	MissingSecrets []string `json:"missing_secrets,omitempty"`

	// Text is the YAML, Workspaces the number of workspaces that were created from the template,
	// and History its saved versions, newest first. All are for administrators, of one template.
	Text       string            `json:"text,omitempty"`
	Workspaces *int              `json:"workspaces,omitempty"`
	History    []TemplateVersion `json:"history,omitempty"`
}

// Scripts are texts for bash, or for sh in an image without bash, that run in a workspace.
type Scripts struct {
	Create         string `json:"create"`          // once per home, after the repositories were cloned
	Start          string `json:"start"`           // at each start
	TimeoutSeconds int    `json:"timeout_seconds"` // of each; 0: 10 minutes
}

// TemplateParameter is a value that the owner of a workspace chooses.
type TemplateParameter struct {
	Name        string            `json:"name"`
	Title       map[string]string `json:"title"`
	Description map[string]string `json:"description"`
	Type        string            `json:"type"` // "string", "choice" or "boolean"
	Default     string            `json:"default"`
	Required    bool              `json:"required"` // it has no default
	Pattern     string            `json:"pattern"`  // a regular expression that matches the whole value
	Options     []string          `json:"options"`  // of a choice
}

// TemplateVersion is a saved version of a template.
type TemplateVersion struct {
	ID      int64     `json:"id"`
	SavedAt time.Time `json:"saved_at"`
	SavedBy string    `json:"saved_by"`
	Deleted bool      `json:"deleted"`
	Text    string    `json:"text"` // YAML; empty if the template was deleted
}

// TemplateList is the answer of GET /templates. Problems are mistakes in the files of the folder,
// for administrators.
type TemplateList struct {
	Templates []Template `json:"templates"`
	Problems  []string   `json:"problems,omitempty"`
}

// SaveTemplate is the body of PUT /templates/{name}.
type SaveTemplate struct {
	Text   string `json:"text"`              // YAML
	DryRun bool   `json:"dry_run,omitempty"` // check it and return what would change
}

// SavedTemplate is the answer of PUT /templates/{name}.
type SavedTemplate struct {
	Template Template         `json:"template"`
	New      bool             `json:"new"` // there was no template with this name
	Changes  []TemplateChange `json:"changes"`
	// Workspaces is how many workspaces get an update: they were created from the template, and what
	// it gives changes.
	Workspaces int `json:"workspaces"`
}

// TemplateChange is a difference between two versions of a template. A value that is not set is empty.
type TemplateChange struct {
	Field string `json:"field"` // such as env.GOFLAGS
	From  string `json:"from"`
	To    string `json:"to"`
}

// TemplateText is the answer of GET /workspaces/{id}/template: a template with the workspace's
// settings, without the values of the environment variables that its owner set.
type TemplateText struct {
	Text string `json:"text"`
}

// WorkspaceTemplate is the template that a workspace was created from.
type WorkspaceTemplate struct {
	Name            string  `json:"name"`
	Version         string  `json:"version"`          // that the next start uses
	PreviousVersion *string `json:"previous_version"` // before the last update; null: there was none
	UpdateAvailable bool    `json:"update_available"` // the template has changed
	// Parameters is absent from lists and events.
	Parameters map[string]string `json:"parameters,omitzero"`
}

// UpdateTemplate is the body of POST /workspaces/{id}/update-template, which may be absent.
type UpdateTemplate struct {
	Parameters map[string]string `json:"parameters,omitempty"` // values to change; the others stay
}
