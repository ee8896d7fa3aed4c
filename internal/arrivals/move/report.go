package move

// Results for a user or a workspace.
const (
	Moved   = "moved"   // a workspace, by this run; in a dry run: it would be
	Added   = "added"   // a user, by this run
	Joined  = "joined"  // a user: an existing user of that name
	Already = "already" // by an earlier run, and not changed again
	Left    = "left"    // not moved, or changed at the source since; Reason says why
)

// States of a moved workspace at the source.
const (
	StillArchived = "archived"
	Removed       = "removed" // its deletion can be undone for a while
)

// Report is the result for every selected user and workspace.
type Report struct {
	DryRun     bool        `json:"dry_run"`
	Source     string      `json:"source"` // installation
	Users      []User      `json:"users"`
	Workspaces []Workspace `json:"workspaces"`
	Warnings   []string    `json:"warnings"`
	Left       int         `json:"left"` // users and workspaces with that result
}

// User is a user of the source.
type User struct {
	OldID    string   `json:"old_id"`
	Username string   `json:"username"`
	ID       string   `json:"id,omitempty"` // here
	Result   string   `json:"result"`
	Reason   string   `json:"reason,omitempty"` // why it was left
	Notes    []string `json:"notes,omitempty"`
}

// Workspace is a workspace of the source. It keeps its id.
type Workspace struct {
	ID     string   `json:"id"`
	Name   string   `json:"name"`
	Owner  string   `json:"owner"`
	State  string   `json:"state"`            // at the source, before the move
	Home   *Home    `json:"home,omitempty"`   // what was copied
	Source string   `json:"source,omitempty"` // StillArchived or Removed; empty if it was not moved
	Result string   `json:"result"`
	Reason string   `json:"reason,omitempty"`
	Notes  []string `json:"notes,omitempty"`
}

// Home is an archive that was copied and verified.
type Home struct {
	Entries int64  `json:"entries"`
	Skipped int64  `json:"skipped,omitempty"` // sockets, FIFOs and devices, which are not archived
	Size    int64  `json:"size"`
	SHA256  string `json:"sha256"`
	Key     string `json:"key"` // in this installation's bucket
}

// Shown is a result as people read it: a dry run has moved, added and joined nothing.
func (r *Report) Shown(result string) string {
	if r.DryRun && (result == Moved || result == Added || result == Joined) {
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
