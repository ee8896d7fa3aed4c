package dashboard

import (
	"context"
	"errors"
	"net/http"
	"path"
	"slices"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// limitView is the running limit that a start exceeds, and the workspaces that can be stopped
// for it.
type limitView struct {
	W       view   // the workspace that is to start
	Running []view // the owner's own that count, except W
	Max     int
	PerUser bool
	Allowed bool // the limit now allows the start
	// Live reports that the page's stream checks the limit and enters W. Otherwise this list
	// polls, and starts W.
	Live  bool
	Entry string // the address of W that was opened, if Live
	From  string
	OOB   bool
	Page  bool // the page is a form or the limit's own, so a change leads back to the list
	// Dialog: the list is in a dialog, on a page with a heading of its own.
	Dialog bool
}

// Where the limit's list is that a request was sent from: the parameter limit.
const (
	limitOnPage   = "page"
	limitInDialog = "dialog"
)

// Where is the parameter limit of the requests that the list sends.
func (l limitView) Where() string {
	if l.Dialog {
		return limitInDialog
	}
	return limitOnPage
}

// Again is the address that opens W again.
func (l limitView) Again() string {
	if l.Entry != "" {
		return l.Entry
	}
	return l.W.URL
}

// Title names the heading, in the texts limit.<Title>.
func (l limitView) Title() string {
	switch {
	case l.Allowed:
		return "available_title"
	case l.PerUser:
		return "title"
	}
	return "title_global"
}

// StopPath is the address that stops this workspace, "" if it is stopping already.
func (v view) StopPath() string {
	path := "/workspaces/" + v.ID
	switch {
	case v.Queued == string(workspace.DesiredStandby) || v.Request == "cancel" || v.Request == "force_stop":
	case v.Phase == workspace.PhaseError:
		return path + "/force-stop"
	case v.Operation == workspace.OpStarting:
		return path + "/cancel"
	case v.State == "running" || v.State == "starting" || v.State == "preparing" || v.State == "restoring":
		return path + "/stop"
	}
	return ""
}

// RetryPath is the address that repeats what the limit refused.
func (l limitView) RetryPath() string {
	switch {
	case l.W.Deleted:
		return "/workspaces/" + l.W.ID + "/undelete"
	case l.W.Phase == workspace.PhaseError:
		return "/workspaces/" + l.W.ID + "/recover"
	}
	return "/workspaces/" + l.W.ID + "/start"
}

// readLimit reads the caller's workspaces that count against the limit. full is the refusal;
// nil to check without one.
func (d *Dashboard) readLimit(ctx context.Context, c workspace.Caller, w workspace.Workspace, full *workspace.Error, from string) (limitView, error) {
	v := limitView{W: d.viewOf(w, from), From: from}
	if full == nil {
		err := d.Store.MayRun(ctx, c, w.ID)
		if !errors.As(err, &full) || full.Code != workspace.CodeLimitExceeded {
			v.Allowed = err == nil
			return v, err
		}
	}
	v.PerUser, v.Max = limitOf(full)
	rows, err := d.Store.RunningOf(ctx, c.UserID)
	if err != nil {
		return v, err
	}
	for _, other := range rows {
		if other.ID != w.ID {
			v.Running = append(v.Running, d.viewOf(other, from))
		}
	}
	return v, nil
}

// limitFor is readLimit for the page that sent r.
func (d *Dashboard) limitFor(r *http.Request, c workspace.Caller, id workspace.ID, full *workspace.Error) (limitView, error) {
	ws, err := d.Store.Workspace(r.Context(), c, id)
	if err != nil {
		return limitView{}, err
	}
	v, err := d.readLimit(r.Context(), c, ws, full, fromOf(r))
	v.Page, v.Dialog = asPage(r), r.FormValue("limit") == limitInDialog
	return v, err
}

func (d *Dashboard) refuseLimit(w http.ResponseWriter, r *http.Request, c workspace.Caller, id workspace.ID, e *workspace.Error) {
	v, err := d.limitFor(r, c, id, e)
	switch {
	case err != nil:
		d.fail(w, r, err)
	case !isHTMX(r):
		v.Page, v.Dialog = true, false
		d.render(w, r, http.StatusTooManyRequests, "limit", d.newPage(r, &c, "limit."+v.Title(), v))
	case r.FormValue("limit") == limitOnPage: // the page has the list already
		v.OOB = true
		d.fragments(w, r, http.StatusTooManyRequests, part{"limit-list", v})
	default:
		v.Dialog = true
		d.fragments(w, r, http.StatusTooManyRequests, part{"limit-dialog", v})
	}
}

// readNewLimit adds the limit that a new workspace would exceed to its form, with the caller's
// workspaces that can be stopped for it.
func (d *Dashboard) readNewLimit(r *http.Request, c workspace.Caller, f *form) error {
	v, err := d.readLimit(r.Context(), c, workspace.Workspace{}, nil, fromList)
	var e *workspace.Error
	if errors.As(err, &e) && e.Code == workspace.CodeQuotaExceeded {
		f.Problem = quotaProblem(f.lang, e)
		return nil
	}
	if err != nil || v.Allowed {
		return err
	}
	v.Running = slices.DeleteFunc(v.Running, func(v view) bool { return v.StopPath() == "" })
	f.Limit = &v
	return nil
}

// freeSlot stops one of the caller's workspaces, as its button on the page of the limit does
// (StopPath).
func (d *Dashboard) freeSlot(ctx context.Context, c workspace.Caller, id workspace.ID) error {
	ws, err := d.Store.Workspace(ctx, c, id)
	if err != nil {
		return err
	}
	switch v := d.viewOf(ws, fromList); path.Base(v.StopPath()) {
	case "force-stop":
		_, err = d.Store.RequestForceStop(ctx, c, id)
	case "cancel":
		_, err = d.Store.RequestCancel(ctx, c, id)
	case "stop":
		standby := workspace.DesiredStandby
		_, err = d.Store.PatchWorkspace(ctx, c, id, postgres.Patch{Desired: &standby, Queue: true})
	}
	return err
}

// limitState is the fragment that the limit's dialog polls until the limit allows the start. It is
// no part of the page's stream, which ends while the tab is hidden.
func (d *Dashboard) limitState(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	id, err := idOf(r)
	var v limitView
	if err == nil {
		v, err = d.limitFor(r, c, id, nil)
	}
	if err != nil {
		d.fail(w, r, err)
		return
	}
	d.fragments(w, r, http.StatusOK, part{"limit-list", v})
}

// slotFreed responds after one workspace was stopped so that another, id, can start.
func (d *Dashboard) slotFreed(w http.ResponseWriter, r *http.Request, c workspace.Caller, id workspace.ID) {
	if !isHTMX(r) {
		d.redirect(w, r, backTo(fromOf(r), id))
		return
	}
	v, err := d.limitFor(r, c, id, nil)
	if err != nil {
		d.refuse(w, r, c, id, err)
		return
	}
	v.OOB, v.Live = true, r.PostFormValue("live") != ""
	if v.From == fromWait {
		v.Entry = entryOf(r, id)
	}
	d.fragments(w, r, http.StatusOK, part{"limit-list", v})
}
