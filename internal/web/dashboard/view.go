package dashboard

import (
	"time"

	"codehub/internal/workspace"
	"codehub/internal/workspace/imageref"
	"codehub/internal/workspace/lifecycle"
)

// A tone selects the colour and motion of a state.
const (
	toneRunning  = "running"
	toneBusy     = "busy" // an operation is running
	toneIdle     = "idle"
	toneArchived = "archived"
	toneError    = "error"
)

// The page that a form was sent from. It decides which parts the response redraws, and the
// redirect without scripts.
const (
	fromList   = "list"
	fromDetail = "detail"
	fromWait   = "wait" // the proxy's pages under /w/
	fromAny    = "any"  // any page; its stream redraws it
	// fromBackups is the page of a workspace's backups.
	fromBackups = "backups"
)

// action is one thing that the user can do now. Exactly one of Href (a link), Dialog (a link
// that opens a dialog, and works as a page) and Post is set.
type action struct {
	Key    string // the label is the text action.<Key>
	Label  string // the label is action.<Label> instead, if set
	Href   string
	Dialog string
	Post   string
	Icon   string
	Danger bool
	NewTab bool
}

// problem is an error, with the texts problem.<Key>.title and .body.
type problem struct {
	Key     string
	Final   bool // in ERROR, not being retried
	Detail  string
	Raw     bool // Detail may have an error in the words of Docker or others
	Actions []action
}

// progress is how far an operation is. Percent is -1 if unknown, the other fields 0.
type progress struct {
	Step, Detail   string
	Done, Total    int64 // bytes
	Percent        int
	Files, FilesOf int
	Rate           int64 // bytes per second
	Left           int   // seconds
	Ended          []endedStep
}

// endedStep is an earlier step of the running operation.
type endedStep struct {
	Step string
	Done int64 // bytes
	Took time.Duration
}

// view is a workspace as the pages show it: its state and the user's actions. It holds keys of
// texts, not texts.
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
	Request  string        // the text request.<Request>: a request that is still pending
	Why      string        // the text cause.<Why>: why it is at rest, or about to be
	Unused   time.Duration // how long it had been idle, if Why says so
	Life     lifetime
	ToAdmin  bool // an administrator sees the view
	Problem  *problem
	RetryAt  *time.Time
	Attempt  int

	Primary *action
	Actions []action // in addition to the primary one
	Menu    []action
	// ImageUpdate reports that a newer image is available; see lifecycle.UpdateAvailable.
	ImageUpdate bool
	ToArchive   *action // a separate button on the workspace's page, elsewhere a menu item
	KeepAwake   *action // on the workspace's page alone

	// TemplateUpdate reports that the template has changed for the workspace.
	TemplateUpdate bool

	Deleted      bool
	RestoreUntil time.Time // of a deleted one; zero if it can no longer be undeleted

	W    workspace.Workspace
	From string
	Now  time.Time
}

// Enterable reports whether the proxy lets the user in now.
func (v view) Enterable() bool {
	return lifecycle.OpeningOf(v.W) == lifecycle.OpenNow
}

// terms are the other inputs of a view.
type terms struct {
	grace  time.Duration    // for which a deletion can be undone
	ttl    workspace.TTL    // of workspaces without custom idle timeouts
	images imageref.Allowed // that workspaces may use
	now    time.Time
	// updates reports that a template has an update for a workspace; nil: none has.
	updates func(workspace.Workspace) bool
}

func (d *Dashboard) viewOf(w workspace.Workspace, from string) view {
	return viewOf(w, from, terms{grace: d.DeleteGrace, ttl: d.TTL(), images: d.Images, now: d.Now(), updates: d.updates})
}

// to returns the view as a user sees it: only administrators see the words of Docker and others.
func (v view) to(c workspace.Caller) view {
	v.ToAdmin = c.Admin
	return v
}

// viewOf returns the view of w. It is pure: everything it depends on is an argument.
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
		v.Queued = string(lifecycle.QueuedState(w))
		v.Request = w.PendingRequest()
	}
	v.ImageUpdate = !v.Deleted && lifecycle.UpdateAvailable(w)
	v.TemplateUpdate = !v.Deleted && on.updates != nil && on.updates(w)
	v.Why, v.Unused = whyOf(w)
	v.Life = lifetimeOf(w, on)
	v.Problem = problemOf(w)
	if err := on.images.CheckStart(w.ImageRef); err != nil && v.Problem == nil && !v.Deleted {
		// Its next start will be refused.
		v.Problem = &problem{Key: string(workspace.ErrImageNotAllowed), Detail: err.Error()}
	}
	if v.Problem != nil && !v.Problem.Final {
		v.RetryAt, v.Attempt = w.RetryAt, w.ErrorCount
	}
	if v.Deleted {
		v.Since = *w.DeletedAt
		if on.grace > 0 && lifecycle.Restorable(w, false) { // only the request checks whether its archive is being removed
			v.RestoreUntil, _ = lifecycle.PurgeAt(w, on.grace)
		}
	}
	v.offer()
	return v
}

// toneOf returns the tone of a state.
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
	for i := 1; i < len(p.Steps); i++ {
		s := p.Steps[i-1]
		out.Ended = append(out.Ended, endedStep{s.Step, s.Done, max(0, p.Steps[i].BeganAt.Sub(s.BeganAt).Round(time.Second))})
	}
	switch {
	case p.Total > 0 && p.Done >= 0:
		out.Percent = min(100, int(float64(p.Done)/float64(p.Total)*100))
	case p.Total == 0 && p.EntriesTotal > 0 && p.Entries >= 0:
		out.Percent = min(100, int(float64(p.Entries)/float64(p.EntriesTotal)*100))
	}
	return out
}

// problemOf returns the error: a final one, one that is being retried, or a retry without a
// recorded reason.
func problemOf(w workspace.Workspace) *problem {
	switch {
	case w.ErrorReason != "":
		return &problem{Key: problemKey(w, w.ErrorReason), Final: w.ErrorReason.Final(), Detail: w.ErrorMessage, Raw: w.ErrorReason.IsRaw() || lifecycle.StateOf(w) == lifecycle.StateDeleteFailed}
	case w.Phase == workspace.PhaseError:
		// Not healthy, before the reason is recorded.
		c := w.Conditions.Get(workspace.Healthy)
		key := "Unknown"
		if r := workspace.ErrorReason(c.Reason); !c.True() && r.Final() && known(r) {
			key = problemKey(w, r)
		}
		return &problem{Key: key, Final: true, Detail: c.Message}
	}
	if c := w.Conditions.Get(workspace.ContainerReady); c.Reason == workspace.ReasonNodeUnreachable {
		return &problem{Key: workspace.ReasonNodeUnreachable, Detail: c.Message}
	}
	return nil
}

// archiveMissing is a DataLost whose home was archived.
const archiveMissing = "ArchiveMissing"

// obstructed is a failure because a volume blocks the home.
const obstructed = "Obstructed"

// volumeKept is a lost archive of a home whose volume is still complete. To recover uses the
// volume, so nothing is lost.
const volumeKept = "VolumeKept"

// vanishing is a home whose volume goes once the container ends.
const vanishing = "Vanishing"

// deletionFailed is a deletion that its owner has to repeat.
const deletionFailed = "DeletionFailed"

func problemKey(w workspace.Workspace, r workspace.ErrorReason) string {
	if w.DeletedAt != nil && r.Final() {
		return deletionFailed
	}
	if w.Obstructed() && (r == workspace.ErrRetryExceeded || r == workspace.ErrTimeout) {
		return obstructed
	}
	if lifecycle.Vanishing(w) {
		return vanishing
	}
	if lifecycle.VolumeKept(w) {
		return volumeKept
	}
	if r == workspace.ErrDataLost && lifecycle.ArchiveLost(w) {
		return archiveMissing
	}
	return string(r)
}

// Lost reports that the data is lost, so that the user may replace it.
func (v view) Lost() bool { return v.Problem != nil && v.Problem.Final && lifecycle.LossOf(v.W) != "" }

// Offers reports whether the archive g can replace the lost data.
func (v view) Offers(g generation) bool {
	if !v.Lost() {
		return false
	}
	return !g.Current || !lifecycle.ArchiveLost(v.W)
}

// Working reports whether there is progress to show. A retried operation has both its progress
// and its previous error.
func (v view) Working() bool {
	return v.Tone == toneBusy && (v.Problem == nil || !v.Problem.Final && v.Progress != nil)
}

// Moves reports whether the operation moves a home, which takes longer the larger the home is.
func (v view) Moves() bool { return v.State == "archiving" || v.State == "restoring" }

// AwaitsLimit reports whether only the owner's limits delay a queued start.
func (v view) AwaitsLimit() bool {
	return lifecycle.AwaitsLimit(v.W)
}

// Then names the following state, in the texts then.<Then>; empty for none.
func (v view) Then() string {
	if v.Operation == workspace.OpArchiving && (v.Queued == string(workspace.DesiredRunning) || v.Queued == string(workspace.DesiredStandby)) {
		return v.Queued + "_archiving"
	}
	if v.AwaitsLimit() {
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

// Card returns the view itself, for templates whose data embeds one.
func (v view) Card() view { return v }
