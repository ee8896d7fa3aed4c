package gc

import (
	"time"

	"codehub/internal/workspace"
)

// Verdict is the result for an archive.
type Verdict string

const (
	Keep    Verdict = "keep"    // it is in use
	Found   Verdict = "found"   // kept, and recorded from now on
	Wait    Verdict = "wait"    // unused; it is removed at Due
	Remove  Verdict = "remove"  // it is removed
	Missing Verdict = "missing" // it is in the database and not in the bucket
	Unknown Verdict = "unknown" // kept; it does not belong to this database
)

// Verdicts lists every verdict.
func Verdicts() []Verdict { return []Verdict{Keep, Found, Wait, Remove, Missing, Unknown} }

// Item is the result for one archive, or for one object that belongs to no
// archive.
type Item struct {
	Verdict   Verdict      `json:"verdict"`
	Reason    string       `json:"reason"`
	Key       string       `json:"key"`
	Workspace workspace.ID `json:"workspace,omitempty"`
	Name      string       `json:"workspace_name,omitempty"`
	Size      int64        `json:"size"`            // bytes in the bucket
	Due       *time.Time   `json:"due,omitempty"`   // of Wait: when it is removed
	Error     string       `json:"error,omitempty"` // why it is not removed yet
}

// Report is the result of a collection.
type Report struct {
	Started time.Time     `json:"started"`
	Took    time.Duration `json:"took_ns"`
	DryRun  bool          `json:"dry_run"`
	// Restored reports that another database collected last, or this one before
	// a backup was restored, so all waits started over.
	Restored bool `json:"restored"`

	Items    []Item `json:"items"`
	Aborted  int    `json:"aborted_uploads"`     // interrupted uploads that were removed
	Released int    `json:"released_workspaces"` // deleted workspaces of which nothing is left
	Failed   int    `json:"failed"`              // items whose removal failed
}

// Count returns the number of items with a verdict, and their bytes.
func (r *Report) Count(v Verdict) (n int, bytes int64) {
	for _, i := range r.Items {
		if i.Verdict == v {
			n++
			bytes += i.Size
		}
	}
	return n, bytes
}

// Removed returns the number of archives that were or would be removed, and
// their bytes.
func (r *Report) Removed() (n int, bytes int64) {
	for _, i := range r.Items {
		if i.Verdict == Remove && i.Error == "" {
			n++
			bytes += i.Size
		}
	}
	return n, bytes
}
