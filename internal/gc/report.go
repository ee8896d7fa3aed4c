package gc

import (
	"time"

	"codehub/internal/workspace"
)

// Verdict is what becomes of an archive.
type Verdict string

const (
	Keep    Verdict = "keep"    // something holds on to it
	Found   Verdict = "found"   // kept: the database did not know it, and does from now on
	Wait    Verdict = "wait"    // nothing holds on to it; it goes at Due
	Remove  Verdict = "remove"  // it goes
	Missing Verdict = "missing" // the database knows it, and the bucket does not have it
	Unknown Verdict = "unknown" // not touched: not this database's to judge
)

// Verdicts lists every verdict.
func Verdicts() []Verdict { return []Verdict{Keep, Found, Wait, Remove, Missing, Unknown} }

// Item is one archive, or one object that is no part of any, and what becomes
// of it.
type Item struct {
	Verdict   Verdict      `json:"verdict"`
	Reason    string       `json:"reason"`
	Key       string       `json:"key"`
	Workspace workspace.ID `json:"workspace,omitempty"`
	Name      string       `json:"workspace_name,omitempty"`
	Size      int64        `json:"size"`            // bytes in the bucket
	Due       *time.Time   `json:"due,omitempty"`   // Wait: when it goes
	Error     string       `json:"error,omitempty"` // why it is not removed yet
}

// Report is what a collection came to.
type Report struct {
	Started time.Time     `json:"started"`
	Took    time.Duration `json:"took_ns"`
	DryRun  bool          `json:"dry_run"`
	// Restored says that another database than this collected last, or this
	// one as it was before a backup was restored: every wait began anew.
	Restored bool `json:"restored"`

	Items    []Item `json:"items"`
	Aborted  int    `json:"aborted_uploads"`     // remains of uploads that broke off, removed
	Released int    `json:"released_workspaces"` // deleted ones of which nothing is left now
	Failed   int    `json:"failed"`              // items that were to be removed and could not be
}

// Count counts the items with a verdict, and their bytes.
func (r *Report) Count(v Verdict) (n int, bytes int64) {
	for _, i := range r.Items {
		if i.Verdict == v {
			n++
			bytes += i.Size
		}
	}
	return n, bytes
}

// Removed counts what was removed, or would be.
func (r *Report) Removed() (n int, bytes int64) {
	for _, i := range r.Items {
		if i.Verdict == Remove && i.Error == "" {
			n++
			bytes += i.Size
		}
	}
	return n, bytes
}
