package importm1

// Results for a user or a workspace.
const (
	Imported = "imported" // by this run; in a dry run: it would be
	Joined   = "joined"   // a user: an existing user of that name
	Already  = "already"  // by an earlier run, and not changed again
	Deleted  = "deleted"  // deleted in the first version, and not imported
	Left     = "left"     // not imported; Reason says why
)

// Report is the result for everything in the source.
type Report struct {
	DryRun       bool        `json:"dry_run"`
	Users        []User      `json:"users"`
	Workspaces   []Workspace `json:"workspaces"`
	UnknownHomes []string    `json:"unknown_homes"` // without a workspace in the source
	Warnings     []string    `json:"warnings"`
	Left         int         `json:"left"` // users, workspaces and homes that were not imported
}

// User is a user of the first version.
type User struct {
	OldID    string   `json:"old_id"`
	OldName  string   `json:"old_username"`
	ID       string   `json:"id,omitempty"`
	Username string   `json:"username,omitempty"`
	Admin    bool     `json:"admin,omitempty"`
	Result   string   `json:"result"`
	Reason   string   `json:"reason,omitempty"` // why it was not imported
	Notes    []string `json:"notes,omitempty"`
}

// Workspace is a workspace of the first version.
type Workspace struct {
	OldID        string   `json:"old_id"`
	OldName      string   `json:"old_name"`
	Owner        string   `json:"owner"` // the new username, or the old one if not imported
	Status       string   `json:"status"`
	ID           string   `json:"id,omitempty"`
	Name         string   `json:"name,omitempty"`
	DesiredState string   `json:"desired_state,omitempty"`
	Home         *Home    `json:"home,omitempty"`
	Container    string   `json:"container,omitempty"` // what was done with the old container: stopped, removed
	Result       string   `json:"result"`
	Reason       string   `json:"reason,omitempty"`
	Notes        []string `json:"notes,omitempty"`
}

// Home is a home that was copied.
type Home struct {
	Entries int64  `json:"entries"`
	Bytes   int64  `json:"bytes"`             // content
	Skipped int64  `json:"skipped,omitempty"` // sockets, FIFOs and devices, which are not archived
	Size    int64  `json:"size"`              // packed
	SHA256  string `json:"sha256"`
	Key     string `json:"key"`
}

func (r *Report) count() {
	r.Left = len(r.UnknownHomes)
	for _, u := range r.Users {
		if u.Result == Left {
			r.Left++
		}
	}
	for _, w := range r.Workspaces {
		if w.Result == Left {
			r.Left++
		}
	}
}
