package api

import "time"

// DevcontainerList is the answer of GET /workspaces/{id}/devcontainer: the files by which the
// repositories of a workspace describe their environment.
type DevcontainerList struct {
	Files []Devcontainer `json:"files"` // in the order in which tools take them
	More  bool           `json:"more"`  // there are others
	// Build is the last build of an image for the workspace; null: there was none.
	Build *DevcontainerBuild `json:"build"`
}

// DevcontainerBuild is the build of an image from a file, its Dockerfile and its Features. The
// workspace uses the file once the build is done.
type DevcontainerBuild struct {
	File string `json:"file"`
	// State is "waiting" (for other builds), "building", "done", "failed" or "canceled".
	State     string                `json:"state"`
	Step      string                `json:"step"`    // the current step, as Docker prints it; empty: none yet
	Error     string                `json:"error"`   // why it failed: one sentence
	Log       string                `json:"log"`     // the last 64 KiB
	Ignored   []DevcontainerIgnored `json:"ignored"` // of the Features; known once the build has begun
	StartedAt time.Time             `json:"started_at"`
	EndedAt   *time.Time            `json:"ended_at"`
}

// Devcontainer is a devcontainer.json, or a .gitpod.yml, and what a workspace would use of it.
type Devcontainer struct {
	File    string `json:"file"`    // below the home: project/api/.devcontainer/devcontainer.json
	Digest  string `json:"digest"`  // of its content, for UseDevcontainer; empty: it cannot be used
	Used    bool   `json:"used"`    // by the workspace
	Changed bool   `json:"changed"` // the workspace uses an earlier version of the file
	// Problem is why the file cannot be used: "long", "kind", "unreadable", "syntax", "deep", "many",
	// "object", "no_name" or empty, and Message the same for people.
	Problem string `json:"problem"`
	Message string `json:"message"`
	Line    int    `json:"line"` // of the problem; 0: none

	Name       string                `json:"name"`
	Image      string                `json:"image"`      // empty: the workspace's stays
	Dockerfile string                `json:"dockerfile"` // of the build, a path below the repository; empty: none
	Features   []string              `json:"features"`   // references of those that are installed, as in the file
	Size       string                `json:"size"`       // empty: the workspace's stays
	Folder     string                `json:"folder"`     // that the IDE opens
	Env        map[string]string     `json:"env"`
	Ports      []ProjectPort         `json:"ports"`
	Scripts    []DevcontainerScript  `json:"scripts"` // in their order
	Extensions []string              `json:"extensions"`
	Settings   map[string]any        `json:"settings"` // of the editor
	Secrets    []DevcontainerSecret  `json:"secrets"`  // that the repository asks for
	Ignored    []DevcontainerIgnored `json:"ignored"`
}

// DevcontainerScript is commands that run side by side, once per home or at each start.
type DevcontainerScript struct {
	Name     string                `json:"name"` // postCreateCommand
	Once     bool                  `json:"once"`
	Commands []DevcontainerCommand `json:"commands"`
}

// DevcontainerCommand is a text for a shell, or a program with its arguments.
type DevcontainerCommand struct {
	Name  string   `json:"name"`
	Shell string   `json:"shell"`
	Args  []string `json:"args"`
}

// DevcontainerSecret is a secret that the repository asks its users for.
type DevcontainerSecret struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	URL         string `json:"url"`
	Present     bool   `json:"present"` // the workspace gets a secret as a variable of this name
}

// DevcontainerIgnored is something in the file that is not honoured.
type DevcontainerIgnored struct {
	Property string `json:"property"`
	Line     int    `json:"line"`
	Reason   string `json:"reason"`
}

// UseDevcontainer is the body of POST /workspaces/{id}/devcontainer.
type UseDevcontainer struct {
	// File is its path below the home, or the end of only one of the paths; empty: the first file.
	File string `json:"file,omitempty"`
	// Digest names the version of the file to use. Empty: the present version.
	Digest string `json:"digest,omitempty"`
}

// WorkspaceDevcontainer is the file that a workspace uses.
type WorkspaceDevcontainer struct {
	File   string `json:"file"`
	Digest string `json:"digest"`
}
