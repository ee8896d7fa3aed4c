package api

import "time"

// Repository is a Git repository that the first start of a workspace clones.
type Repository struct {
	URL        string `json:"url"`                  // https://, http://, ssh:// or git@host:path, without a password
	Branch     string `json:"branch,omitempty"`     // branch or tag; default: that of the repository
	Path       string `json:"path,omitempty"`       // folder below the home; default: project/NAME
	Depth      int    `json:"depth,omitempty"`      // commits of the history; 0: all
	Submodules bool   `json:"submodules,omitempty"` // with its submodules
}

// Setup is how far a running workspace is with what its start does in addition to the IDE.
type Setup struct {
	Steps []SetupStep `json:"steps"` // in their order; none: there is nothing to do
}

// SetupStep is a step of a workspace's setup.
type SetupStep struct {
	Name    string `json:"name"`    // such as the URL of a repository
	Kind    string `json:"kind"`    // "clone" or "files"
	State   string `json:"state"`   // "waiting", "running", "done", "skipped" (an earlier start has done it) or "failed"
	Percent int    `json:"percent"` // 0: unknown
	Detail  string `json:"detail"`  // what it does now
	// Reason is why it failed: "git", "no_git", "space", "time", "in_the_way", "refused", "unknown" or
	// empty, and Error the words of the program that failed.
	Reason    string     `json:"reason"`
	Error     string     `json:"error"`
	Log       string     `json:"log"` // the end of its output
	StartedAt *time.Time `json:"started_at"`
	EndedAt   *time.Time `json:"ended_at"`
	Folder    string     `json:"folder"` // that it has cloned
	// Described reports that the repository has a devcontainer.json or a .gitpod.yml.
	Described bool `json:"described"`
}
