package arrivals

// Results for a user or a workspace.
const (
	Added   = "added"   // by this run; in a dry run: it would be
	Joined  = "joined"  // a user: an existing user of that name
	Already = "already" // by an earlier run, and not changed again
	Deleted = "deleted" // deleted at the source, and not imported
	Left    = "left"    // not imported, or changed at the source since; Reason says why
)

// What the source has of a workspace.
const (
	StillArchived = "archived"
	Removed       = "removed" // its deletion can be undone for a while
)

// Report is the result for every selected user and workspace.
type Report struct {
	DryRun     bool        `json:"dry_run"`
	Source     string      `json:"source"` // an installation, or postgres.FirstVersion
	Users      []User      `json:"users"`
	Workspaces []Workspace `json:"workspaces"`
	Warnings   []string    `json:"warnings"`
	Left       int         `json:"left"` // users and workspaces with that result
}

// User is a user of the source.
type User struct {
	OldID    string   `json:"old_id,omitempty"`
	OldName  string   `json:"old_username"`
	ID       string   `json:"id,omitempty"` // here
	Username string   `json:"username,omitempty"`
	Admin    bool     `json:"admin,omitempty"`
	Result   string   `json:"result"`
	Reason   string   `json:"reason,omitempty"` // why it was left
	Notes    []string `json:"notes,omitempty"`
}

// Workspace is a workspace of the source.
type Workspace struct {
	OldID        string   `json:"old_id"`
	OldName      string   `json:"old_name"`
	Owner        string   `json:"owner"`          // here, or at the source if it was left
	State        string   `json:"state"`          // at the source, before the import
	ID           string   `json:"id,omitempty"`   // here
	Name         string   `json:"name,omitempty"` // here
	DesiredState string   `json:"desired_state,omitempty"`
	Home         *Home    `json:"home,omitempty"`   // what was stored
	Source       string   `json:"source,omitempty"` // what the source has now; empty: unchanged
	Result       string   `json:"result"`
	Reason       string   `json:"reason,omitempty"`
	Notes        []string `json:"notes,omitempty"`
}

// Home is an archive that was stored and read back.
type Home struct {
	Entries int64  `json:"entries"`
	Bytes   int64  `json:"bytes"`             // content
	Skipped int64  `json:"skipped,omitempty"` // sockets, FIFOs and devices, which are not archived
	Size    int64  `json:"size"`              // packed
	SHA256  string `json:"sha256"`
	Key     string `json:"key"` // in this installation's bucket
}

// Shown is a result as people read it: a dry run has added and joined nothing.
func (r *Report) Shown(result string) string {
	if r.DryRun && result != Already && result != Deleted && result != Left {
		return "would be " + result
	}
	return result
}

func (r *Report) count() {
	r.Left = 0
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
