package workspace

// TemplateUse is the template that a workspace was created from, or last updated to.
type TemplateUse struct {
	Name       string            `json:"name"`
	Version    string            `json:"version"`
	Parameters map[string]string `json:"parameters,omitempty"`
	// Settings are what this version gave. A setting of the workspace that differs was changed by
	// its owner, and an update keeps it.
	Settings TemplateSettings `json:"settings"`
	// Previous is the use before the last update, without a Previous of its own; nil: none.
	Previous *TemplateUse `json:"previous,omitempty"`
}

// TemplateSettings are the settings of a workspace that a template gives.
type TemplateSettings struct {
	Image      string            `json:"image"`
	Size       string            `json:"size,omitempty"` // empty: the default one
	Env        map[string]string `json:"env,omitempty"`
	StandbyTTL *int              `json:"standby_ttl_seconds,omitempty"` // nil: the server's default
	ArchiveTTL *int              `json:"archive_ttl_seconds,omitempty"`
	Project    *Project          `json:"project,omitempty"` // nil: nothing

	BackupInterval *int   `json:"backup_interval_seconds,omitempty"` // nil: the server's
	BackupKeep     string `json:"backup_keep,omitempty"`             // empty: the server's
}
