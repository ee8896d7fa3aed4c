package dashboard

import (
	"context"
	"net/http"
	"strconv"

	"codehub/internal/workspace"
)

// limitView is the limit that a start ran into, and the workspaces that could
// make room.
type limitView struct {
	W       view   // the workspace that is to start
	Running []view // the owner's own that count, W left out
	Max     int
	PerUser bool
	Room    bool // one has stopped since
	Queued  bool // W starts by itself once there is room
	From    string
	OOB     bool
}

// StopPath is where to post to make this workspace give up its place, ""
// while it is on the way to that already.
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

// RetryPath is where to post to have done what the limit refused.
func (l limitView) RetryPath() string {
	switch {
	case l.W.Deleted:
		return "/workspaces/" + l.W.ID + "/undelete"
	case l.W.Phase == workspace.PhaseError:
		return "/workspaces/" + l.W.ID + "/recover"
	}
	return "/workspaces/" + l.W.ID + "/start"
}

// readLimit reads who takes up the caller's places now.
func (d *Dashboard) readLimit(ctx context.Context, c workspace.Caller, w workspace.Workspace, perUser bool, maximum int, from string) (limitView, error) {
	v := limitView{W: d.viewOf(w, from), Max: maximum, PerUser: perUser, From: from}
	rows, err := d.Store.RunningOf(ctx, c.UserID)
	if err != nil {
		return v, err
	}
	for _, other := range rows {
		if other.ID != w.ID {
			v.Running = append(v.Running, d.viewOf(other, from))
		}
	}
	v.Room = perUser && len(v.Running) < maximum
	return v, nil
}

func (d *Dashboard) refuseLimit(w http.ResponseWriter, r *http.Request, c workspace.Caller, id workspace.ID, e *workspace.Error) {
	ws, err := d.Store.Workspace(r.Context(), c, id)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	perUser, maximum := limitOf(e)
	v, err := d.readLimit(r.Context(), c, ws, perUser, maximum, fromOf(r))
	if err != nil {
		d.fail(w, r, err)
		return
	}
	if isHTMX(r) {
		d.fragments(w, r, http.StatusTooManyRequests, part{"limit-dialog", v})
		return
	}
	d.render(w, r, http.StatusTooManyRequests, "limit", d.newPage(r, &c, "limit.title", v))
}

// limitState is what the limit's dialog asks for until there is room again.
func (d *Dashboard) limitState(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	ws, err := d.workspaceOf(r.Context(), r, c)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	maximum, _ := strconv.Atoi(r.URL.Query().Get("max")) // for display alone
	v, err := d.readLimit(r.Context(), c, ws, true, maximum, fromOf(r))
	if err != nil {
		d.fail(w, r, err)
		return
	}
	d.fragments(w, r, http.StatusOK, part{"limit-list", v})
}

// madeRoom answers after one workspace was stopped so that another, id, can start.
func (d *Dashboard) madeRoom(w http.ResponseWriter, r *http.Request, c workspace.Caller, id workspace.ID) {
	from := fromOf(r)
	if !isHTMX(r) {
		d.redirect(w, r, backTo(from, id))
		return
	}
	ws, err := d.Store.Workspace(r.Context(), c, id)
	if err != nil {
		d.refuse(w, r, c, id, err)
		return
	}
	maximum, _ := strconv.Atoi(r.PostFormValue("max"))
	v, err := d.readLimit(r.Context(), c, ws, true, maximum, from)
	if err != nil {
		d.refuse(w, r, c, id, err)
		return
	}
	v.OOB = true
	d.fragments(w, r, http.StatusOK, part{"limit-list", v})
}
