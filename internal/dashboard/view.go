package dashboard

import (
	"time"

	"codehub/internal/lifecycle"
	"codehub/internal/workspace"
)

// A tone is what colour and motion a state is shown with.
const (
	toneRunning  = "running"
	toneBusy     = "busy" // something is under way
	toneIdle     = "idle"
	toneArchived = "archived"
	toneError    = "error"
)

// Where a form was sent from decides what the answer redraws, and where a
// browser without scripts goes next.
const (
	fromList   = "list"
	fromDetail = "detail"
	fromWait   = "wait" // the proxy's pages under /w/
	fromAny    = "any"  // whatever page; its stream redraws it
)

// action is one thing that a person can do now. Exactly one of Href (a link),
// Dialog (a link that opens a dialog; it works as a page too) and Post is set.
type action struct {
	Key    string // names it: the label is the text action.<Key>
	Label  string // if it is action.<Label> instead
	Href   string
	Dialog string
	Post   string
	Icon   string
	Danger bool
	NewTab bool
}

// problem is what went wrong, in the texts problem.<Key>.title and .body.
type problem struct {
	Key     string
	Final   bool   // in ERROR, as opposed to being tried again
	Detail  string // the backend's own words
	Actions []action
}

// progress is how far an operation is. Percent is -1 where it is not known,
// everything else 0.
type progress struct {
	Step, Detail   string
	Done, Total    int64 // bytes
	Percent        int
	Files, FilesOf int
	Rate           int64 // bytes a second
	Left           int   // seconds
}

// view is a workspace as the pages show it: which state its person sees and
// what they can do about it. It holds keys of texts, no texts.
type view struct {
	ID          string
	Name        string
	Description string
	Memo        string
	Image       string
	URL         string
	Phase       workspace.Phase
	Operation   workspace.Operation

	State    string // the text state.<State>
	Tone     string
	Since    time.Time
	Progress *progress
	Queued   string        // the text queued.<Queued>; empty for none
	Request  string        // the text request.<Request>: asked for and not acted upon yet
	Why      string        // the text cause.<Why>: why it is at rest, or on its way there
	Unused   time.Duration // for which it had not been used, if Why says so
	Life     lifetime
	Problem  *problem
	RetryAt  *time.Time
	Attempt  int

	Primary   *action
	Actions   []action // beside the primary one
	Menu      []action
	ToArchive *action // has a place of its own on the workspace's page, elsewhere it is in the menu
	KeepAwake *action // on the workspace's page alone

	Deleted      bool
	RestoreUntil time.Time // of a deleted one; zero when it can no longer be taken back

	W    workspace.Workspace
	From string
	Now  time.Time
}

// Enterable reports whether the proxy lets a person in now.
func (v view) Enterable() bool {
	return lifecycle.OpeningOf(v.W) == lifecycle.OpenNow
}

// terms are what a view depends on beside its workspace.
type terms struct {
	grace time.Duration // for which a deletion can be taken back
	ttl   workspace.TTL // of what has no time of its own
	now   time.Time
}

func (d *Dashboard) viewOf(w workspace.Workspace, from string) view {
	return viewOf(w, from, terms{d.DeleteGrace, d.TTL, d.Now()})
}

// viewOf works out what to show of w. It is pure: everything it depends on is
// an argument.
func viewOf(w workspace.Workspace, from string, on terms) view {
	v := view{
		ID: string(w.ID), Name: w.Name, Description: w.Description, Memo: w.Memo, Image: w.ImageRef,
		URL: "/w/" + string(w.ID) + "/", Phase: w.Phase, Operation: w.Operation,
		Deleted: w.DeletedAt != nil, Since: w.PhaseChangedAt, W: w, From: from, Now: on.now,
	}
	state := lifecycle.StateOf(w)
	v.State, v.Tone = string(state), toneOf(state)
	if w.Operation != workspace.OpNone {
		if w.OpStartedAt != nil {
			v.Since = *w.OpStartedAt
		}
		v.Progress = progressOf(w.Progress)
	}
	if !v.Deleted {
		v.Queued = queuedOf(w)
		v.Request = w.PendingRequest()
	}
	v.Why, v.Unused = whyOf(w)
	v.Life = lifetimeOf(w, on)
	v.Problem = problemOf(w)
	if v.Problem != nil && !v.Problem.Final {
		v.RetryAt, v.Attempt = w.RetryAt, w.ErrorCount
	}
	if v.Deleted {
		v.Since = *w.DeletedAt
		if on.grace > 0 && lifecycle.Restorable(w, false) { // whether its archive is going only the request finds
			v.RestoreUntil, _ = lifecycle.PurgeAt(w, on.grace)
		}
	}
	v.offer()
	return v
}

// toneOf is what a state is shown with.
func toneOf(s lifecycle.State) string {
	switch {
	case s.Busy():
		return toneBusy
	case s == lifecycle.StateRunning:
		return toneRunning
	case s == lifecycle.StateArchived:
		return toneArchived
	case s == lifecycle.StateError, s == lifecycle.StateDeleteFailed:
		return toneError
	}
	return toneIdle
}

func progressOf(p *workspace.Progress) *progress {
	if p == nil {
		return nil
	}
	out := &progress{
		Step: p.Step, Detail: p.Detail, Done: p.Done, Total: p.Total, Percent: -1,
		Files: int(p.Entries), FilesOf: int(p.EntriesTotal), Rate: p.Rate, Left: int(p.SecondsLeft),
	}
	switch {
	case p.Total > 0 && p.Done >= 0:
		out.Percent = min(100, int(float64(p.Done)/float64(p.Total)*100))
	case p.Total == 0 && p.EntriesTotal > 0 && p.Entries >= 0:
		out.Percent = min(100, int(float64(p.Entries)/float64(p.EntriesTotal)*100))
	}
	return out
}

// queuedOf names the state that is applied when the running operation finishes:
// a queued one, or a desired state beyond what the step leads to.
func queuedOf(w workspace.Workspace) string {
	if w.NextDesired != "" {
		return string(w.NextDesired)
	}
	switch w.Operation {
	case workspace.OpNone:
		// The step that comes first has not been claimed yet.
		switch {
		case w.Phase == workspace.PhaseRunning && w.DesiredState == workspace.DesiredArchived,
			w.Phase == workspace.PhaseArchived && w.DesiredState == workspace.DesiredRunning:
			return string(w.DesiredState)
		}
	case workspace.OpProvisioning, workspace.OpRestoring, workspace.OpStopping:
		switch w.DesiredState {
		case workspace.DesiredRunning, workspace.DesiredArchived:
			return string(w.DesiredState)
		}
	case workspace.OpStarting:
		switch w.DesiredState {
		case workspace.DesiredStandby, workspace.DesiredArchived:
			return string(w.DesiredState)
		}
	case workspace.OpArchiving, workspace.OpCreateEmptyArchive:
		switch w.DesiredState {
		case workspace.DesiredRunning, workspace.DesiredStandby:
			return string(w.DesiredState)
		}
	}
	return ""
}

// problemOf names what went wrong: a final reason, one that is being tried
// again, or a retry for no recorded reason.
func problemOf(w workspace.Workspace) *problem {
	switch {
	case w.ErrorReason != "":
		return &problem{Key: problemKey(w, w.ErrorReason), Final: w.ErrorReason.Final(), Detail: w.ErrorMessage}
	case w.Phase == workspace.PhaseError:
		// Not healthy, and the reason has not been recorded yet.
		c := w.Conditions.Get(workspace.Healthy)
		key := "Unknown"
		if r := workspace.ErrorReason(c.Reason); !c.True() && r.Final() && known(r) {
			key = problemKey(w, r)
		}
		return &problem{Key: key, Final: true, Detail: c.Message}
	}
	return nil
}

// archiveMissing is a DataLost whose home was in the archive.
const archiveMissing = "ArchiveMissing"

// obstructed is a failure because of a volume that is in the home's way.
const obstructed = "Obstructed"

// volumeKept is a lost archive of a home whose volume is still complete: to
// recover uses that, and nothing is lost.
const volumeKept = "VolumeKept"

func problemKey(w workspace.Workspace, r workspace.ErrorReason) string {
	if w.Obstructed() && (r == workspace.ErrRetryExceeded || r == workspace.ErrTimeout) {
		return obstructed
	}
	if lifecycle.VolumeKept(w) {
		return volumeKept
	}
	if r == workspace.ErrDataLost && w.Home.State != workspace.HomeLive && w.ArchiveKey != "" {
		return archiveMissing
	}
	return string(r)
}

// Lost reports whether the data is lost, so that something may be put in its
// place.
func (v view) Lost() bool { return v.Problem != nil && v.Problem.Final && lifecycle.LossOf(v.W) != "" }

// Offers reports whether the home may go on with that archive: data is lost,
// and not with it.
func (v view) Offers(g generation) bool {
	if !v.Lost() {
		return false
	}
	return !g.Current || !lifecycle.ArchiveLost(v.W)
}

// Working reports whether there is something to show the progress of. A step
// that is tried again has both its progress and what went wrong before.
func (v view) Working() bool {
	return v.Tone == toneBusy && (v.Problem == nil || !v.Problem.Final && v.Progress != nil)
}

// Moves reports whether what is under way moves a home, which takes as long as
// the home is large.
func (v view) Moves() bool { return v.State == "archiving" || v.State == "restoring" }

// AwaitsRoom reports whether it starts as soon as the limits allow: nothing
// else is in the way of a queued start.
func (v view) AwaitsRoom() bool {
	return !lifecycle.Restarting(v.W) && v.W.NextDesired == workspace.DesiredRunning && v.W.DesiredState != workspace.DesiredRunning &&
		v.Operation == workspace.OpNone && v.Phase != workspace.PhaseError && !v.Deleted
}

// Then names what comes afterwards, in the texts then.<Then>; empty for nothing.
func (v view) Then() string {
	if v.Operation == workspace.OpArchiving && (v.Queued == string(workspace.DesiredRunning) || v.Queued == string(workspace.DesiredStandby)) {
		return v.Queued + "_archiving"
	}
	if v.AwaitsRoom() {
		return v.Queued + "_limit"
	}
	return v.Queued
}

// Text is the name of an action's label.
func (a action) Text() string {
	if a.Label != "" {
		return a.Label
	}
	return a.Key
}

func known(r workspace.ErrorReason) bool {
	for _, k := range workspace.ErrorReasons() {
		if r == k {
			return true
		}
	}
	return false
}

// Card returns the view itself, for the templates of what embeds one.
func (v view) Card() view { return v }
