package dashboard

import (
	"context"
	"net/http"

	"codehub/internal/web/proxy"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// Kinds of the pages under /w/ for a workspace that cannot be entered.
const (
	waitLoading = "loading" // on its way; the page enters it when it is ready
	waitReady   = "ready"   // the page enters it now
	waitStart   = "start"   // never started
	waitStopped = "stopped" // at rest, as its owner requested
	waitRestore = "restore"
	waitFailed  = "failed"
	waitLimit   = "limit" // the running limit is reached
	waitSetup   = "setup" // it runs, and its repository is being cloned

	waitSetupFailed = "setup_failed"
	waitDeleted     = "deleted"
	waitGone        = "gone"
)

// waitView is a page under /w/. All kinds are one fragment, so that a stream can turn one into
// another.
type waitView struct {
	view
	Kind  string
	Limit limitView
	OOB   bool
	// Entry is the address that the page enters.
	Entry string
	// Without scripts: the page refreshes itself, and the address that checks again.
	Refreshes bool
	Check     string
	Stuck     bool // it was entered too often
	Setup     setupView
	Opens     string // see opens
	// OverBytes is the limit of bytes that prevents a start; nil: none.
	OverBytes *bytesView
	Lost      string // of waitGone: the message that says why (lostMessage)
}

// waitOf returns the page for a user who waits for the workspace. awaitsLimit: they opened it and
// the running limit was reached.
func (d *Dashboard) waitOf(ctx context.Context, c workspace.Caller, w workspace.Workspace, awaitsLimit bool) (waitView, error) {
	v := waitView{view: d.viewOf(w, fromWait).to(c), Kind: waitKind(w), Entry: entryPath(w.ID, "")}
	awaitsLimit = awaitsLimit && v.Kind == waitStopped
	if !awaitsLimit && !v.AwaitsLimit() {
		if v.Kind != waitStopped && v.Kind != waitRestore {
			return d.withSetup(ctx, w, v), nil
		}
		var err error
		v.OverBytes, err = d.overBytes(ctx, c, w.ID)
		return v, err
	}
	limit, err := d.readLimit(ctx, c, w, nil, fromWait)
	v.OverBytes = overBytes(err)
	switch {
	case v.OverBytes != nil:
		v.Kind = waitStopped
	case err != nil:
		return v, err
	case !limit.Allowed:
		limit.Live = true
		v.Kind, v.Limit = waitLimit, limit
	case awaitsLimit:
		v.Kind = waitReady // opening it again starts it
	}
	return v, nil
}

// waitKind returns the kind of page for a workspace, limits aside.
func waitKind(w workspace.Workspace) string {
	switch lifecycle.OpeningOf(w) {
	case lifecycle.OpenDeleted:
		return waitDeleted
	case lifecycle.OpenNow:
		return waitReady
	case lifecycle.OpenFails:
		return waitFailed
	case lifecycle.OpenRestores:
		return waitRestore
	case lifecycle.OpenCreates:
		return waitStart
	case lifecycle.OpenStarts:
		// The proxy requested a start before it showed the page. Without one, the workspace was
		// stopped again.
		if !lifecycle.StartRequested(w) {
			return waitStopped
		}
	}
	return waitLoading
}

var _ proxy.Pages = (*Dashboard)(nil)

// Loading is the page that waits for a workspace and enters it when it is ready. A queued start
// that waits for the running limit gets the page of the limit.
func (d *Dashboard) Loading(w http.ResponseWriter, r *http.Request, status int, p proxy.LoadingPage) {
	if v, err := d.waitOf(r.Context(), p.Caller, p.Workspace, false); err == nil && v.Kind == waitLimit {
		d.showWait(w, r, status, p.WorkspacePage, waitLimit, v.Limit)
		return
	}
	d.showWait(w, r, status, p.WorkspacePage, waitLoading, limitView{})
}

// RestoreNeeded is the page of an archived workspace.
func (d *Dashboard) RestoreNeeded(w http.ResponseWriter, r *http.Request, status int, p proxy.WorkspacePage) {
	v := waitView{view: d.viewOf(p.Workspace, fromWait).to(p.Caller), Kind: waitRestore, Entry: entryPath(p.Workspace.ID, p.Path)}
	var err error
	if v.OverBytes, err = d.overBytes(r.Context(), p.Caller, p.Workspace.ID); err != nil {
		d.logFailure(r, err) // the page's stream tries again
	}
	d.renderWait(w, r, status, p.Caller, v, 0)
}

// StartNeeded is the page of a workspace that was never started.
func (d *Dashboard) StartNeeded(w http.ResponseWriter, r *http.Request, status int, p proxy.WorkspacePage) {
	d.showWait(w, r, status, p, waitStart, limitView{})
}

// Failed is the page of a workspace in ERROR.
func (d *Dashboard) Failed(w http.ResponseWriter, r *http.Request, status int, p proxy.WorkspacePage) {
	d.showWait(w, r, status, p, waitFailed, limitView{})
}

// Deleted is the page of a deleted workspace.
func (d *Dashboard) Deleted(w http.ResponseWriter, r *http.Request, status int, p proxy.WorkspacePage) {
	d.showWait(w, r, status, p, waitDeleted, limitView{})
}

// LimitReached is the page that lists the running workspaces.
func (d *Dashboard) LimitReached(w http.ResponseWriter, r *http.Request, status int, p proxy.LimitPage) {
	l := limitView{W: d.viewOf(p.Workspace, fromWait), PerUser: p.Type != "global", Max: p.Max, From: fromWait, Live: true}
	for _, other := range p.Running {
		if other.ID != p.Workspace.ID {
			l.Running = append(l.Running, d.viewOf(other, fromWait))
		}
	}
	d.showWait(w, r, status, p.WorkspacePage, waitLimit, l)
}

func (d *Dashboard) showWait(w http.ResponseWriter, r *http.Request, status int, p proxy.WorkspacePage, kind string, l limitView) {
	v := waitView{view: d.viewOf(p.Workspace, fromWait).to(p.Caller), Kind: kind, Limit: l, Entry: entryPath(p.Workspace.ID, p.Path)}
	d.renderWait(w, r, status, p.Caller, v, 0)
}

// Unavailable is the page for an outage of the database or Docker.
func (d *Dashboard) Unavailable(w http.ResponseWriter, r *http.Request, status int, p proxy.PlainPage) {
	d.plain(w, r, status, "unavailable", p)
}

// Busy is the page for too many requests at a time.
func (d *Dashboard) Busy(w http.ResponseWriter, r *http.Request, status int, p proxy.PlainPage) {
	d.plain(w, r, status, "busy", p)
}

// Forbidden is the page for another user's workspace.
func (d *Dashboard) Forbidden(w http.ResponseWriter, r *http.Request, status int, p proxy.PlainPage) {
	d.plain(w, r, status, "forbidden", p)
}

// NotFound is the page for a workspace that does not exist.
func (d *Dashboard) NotFound(w http.ResponseWriter, r *http.Request, status int, p proxy.PlainPage) {
	d.plain(w, r, status, "not_found", p)
}

func (d *Dashboard) plain(w http.ResponseWriter, r *http.Request, status int, key string, p proxy.PlainPage) {
	n := notice{Key: key, Status: status}
	if key == "unavailable" || key == "busy" {
		n.Again = localPath(p.Path)
	}
	out := d.newPage(r, nil, "message."+key+".title", n)
	out.Plain = true
	d.render(w, r, status, "message", out)
}
