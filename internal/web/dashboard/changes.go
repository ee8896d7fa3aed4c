package dashboard

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// change makes a change that a user requests. note is the suffix of the confirmation's text,
// toast.<note>.
type change func(ctx context.Context, c workspace.Caller, id workspace.ID, r *http.Request) (note string, err error)

// carryOut makes the change and responds with the changed parts of the page. Without scripts it
// redirects to the page.
func (d *Dashboard) carryOut(w http.ResponseWriter, r *http.Request, c workspace.Caller, do change) {
	id, err := idOf(r)
	if err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	note, err := do(r.Context(), c, id, r)
	if err != nil {
		d.refuse(w, r, c, id, err)
		return
	}
	d.done(w, r, c, id, note)
}

// changeRoutes registers the changes of a workspace that need no form, and the dialogs of those
// that need one or are confirmed.
func (d *Dashboard) changeRoutes(loggedIn func(pattern string, h callerHandler)) {
	for _, name := range []string{"edit", "image", "size", "env", "timeouts", "keep-awake", "restart", "delete", "force-stop", "start-empty", "archive", "recover-archive", "set-aside", "share-port", "backup"} {
		loggedIn("GET /workspaces/{id}/"+name, d.dialog(name))
	}
	for name, do := range map[string]change{
		"start":          d.want(workspace.DesiredRunning, "start"),
		"archive":        d.want(workspace.DesiredArchived, "archive"),
		"restore":        d.want(workspace.DesiredStandby, "restore"), // without a start
		"restart":        d.restart,
		"force-stop":     d.requested("force_stop", (*postgres.DB).RequestForceStop),
		"update-image":   d.requested("update-image", (*postgres.DB).UpdateImage),
		"cancel":         d.cancel,
		"recover":        d.recovered("recover", workspace.RecoverAfresh),
		"set-aside":      d.recovered("set_aside", workspace.RecoverSetAside),
		"delete":         d.remove,
		"undelete":       d.requested("undelete", (*postgres.DB).UndeleteWorkspace),
		"cancel-restore": d.cancelRestore,
	} {
		loggedIn("POST /workspaces/{id}/"+name, func(w http.ResponseWriter, r *http.Request, c workspace.Caller) { d.carryOut(w, r, c, do) })
	}
}

// requested is a change that needs nothing but the workspace.
func (d *Dashboard) requested(note string, do func(*postgres.DB, context.Context, workspace.Caller, workspace.ID) (workspace.Workspace, error)) change {
	return func(ctx context.Context, c workspace.Caller, id workspace.ID, _ *http.Request) (string, error) {
		_, err := do(d.Store, ctx, c, id)
		return note, err
	}
}

func (d *Dashboard) recovered(note, action string) change {
	return d.requested(note, func(db *postgres.DB, ctx context.Context, c workspace.Caller, id workspace.ID) (workspace.Workspace, error) {
		return db.RequestRecover(ctx, c, id, action)
	})
}

func (d *Dashboard) want(s workspace.DesiredState, note string) change {
	return func(ctx context.Context, c workspace.Caller, id workspace.ID, r *http.Request) (string, error) {
		free := r.PostFormValue("free_space") != ""
		ws, err := d.Store.PatchWorkspace(ctx, c, id, postgres.Patch{Desired: &s, Queue: true, FreeSpace: free, TimeZone: timeZone(r)})
		if err == nil && ws.NextDesired == s {
			note += "_queued"
		}
		return note, err
	}
}

// stop asks first if an open IDE has unsaved files.
func (d *Dashboard) stop(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	if f := d.unsavedForm(r, c); f != nil {
		if isHTMX(r) {
			d.fragments(w, r, http.StatusConflict, part{"dialog-oob", f})
			return
		}
		d.showForm(w, r, c, http.StatusConflict, f)
		return
	}
	d.carryOut(w, r, c, d.want(workspace.DesiredStandby, "stop"))
}

// unsavedForm returns the question before a stop that leaves files unsaved, nil if there is
// nothing to ask. The pages of the running limit, on which the user chooses what to stop, do
// not ask.
func (d *Dashboard) unsavedForm(r *http.Request, c workspace.Caller) *form {
	if d.Unsaved == nil || r.FormValue("confirmed") != "" || r.FormValue("limit") != "" {
		return nil
	}
	ws, err := d.workspaceOf(r.Context(), r, c)
	if err != nil || lifecycle.OpeningOf(ws) != lifecycle.OpenNow {
		return nil // stop reports the error
	}
	n := d.Unsaved(ws.ID)
	if n == 0 {
		return nil
	}
	f := d.form("stop", r, &ws)
	f.Files = n
	return f
}

func (d *Dashboard) restart(ctx context.Context, c workspace.Caller, id workspace.ID, r *http.Request) (string, error) {
	if zone := timeZone(r); zone != "" {
		if _, err := d.Store.PatchWorkspace(ctx, c, id, postgres.Patch{TimeZone: zone}); err != nil {
			return "", err
		}
	}
	_, err := d.Store.Restart(ctx, c, id)
	return "restart", err
}

func (d *Dashboard) cancel(ctx context.Context, c workspace.Caller, id workspace.ID, _ *http.Request) (string, error) {
	before, err := d.Store.Workspace(ctx, c, id)
	if err != nil {
		return "", err
	}
	ws, err := d.Store.RequestCancel(ctx, c, id)
	if before.NextDesired != ws.NextDesired {
		return "cancel_queued", err
	}
	return "cancel", err
}

// startEmpty gives up lost data. The user confirms by typing the workspace's name.
func (d *Dashboard) startEmpty(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	ws, err := d.workspaceOf(r.Context(), r, c)
	if err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	if strings.TrimSpace(r.PostFormValue("confirm")) != strings.TrimSpace(ws.Name) {
		f := d.form("start-empty", r, &ws)
		f.fail("confirm", "field.confirm_mismatch")
		d.again(w, r, c, f)
		return
	}
	d.carryOut(w, r, c, d.recovered("start_empty", workspace.RecoverEmpty))
}

func (d *Dashboard) remove(ctx context.Context, c workspace.Caller, id workspace.ID, _ *http.Request) (string, error) {
	ws, err := d.Store.DeleteWorkspace(ctx, c, id, true)
	if err == nil && ws.DeletedAt == nil {
		return "delete_queued", nil
	}
	return "delete", err
}

// clean normalizes line endings (browsers send CRLF) and drops control characters and invalid
// UTF-8.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, ""))
}

// fromOf returns the page that the request's form was on.
func fromOf(r *http.Request) string {
	from := r.PostFormValue("from")
	if from == "" {
		from = r.URL.Query().Get("from")
	}
	if slices.Contains([]string{fromDetail, fromWait, fromAny, fromBackups}, from) {
		return from
	}
	return fromList
}

// backTo returns the address of the page that a form was on.
func backTo(from string, id workspace.ID) string {
	switch {
	case id == "" || from == fromList || from == fromAny:
		return "/"
	case from == fromWait:
		return "/w/" + string(id) + "/"
	case from == fromBackups:
		return "/workspaces/" + string(id) + "/backups"
	}
	return "/workspaces/" + string(id)
}

// notedAt returns the address of a page that shows the confirmation note.
func notedAt(path, note string, about workspace.ID) string {
	v := url.Values{"note": {note}}
	if about != "" {
		v.Set("about", string(about))
	}
	return path + "?" + v.Encode()
}

// noted returns the toast that the page's address requests after a redirect, as
// /?note=…&about=…, or nil.
func (d *Dashboard) noted(r *http.Request, c workspace.Caller) *toast {
	note, about := r.URL.Query().Get("note"), r.URL.Query().Get("about")
	if !d.set(r).lang.Has("toast." + note + ".unnamed") {
		return nil
	}
	return d.toast(r, c, note, workspace.ID(about), fromList)
}

// toast is a confirmation, with an undo where the change has one.
type toast struct {
	Text  string
	Error bool
	Undo  string // address to post to; empty for none
	ID    string // of the workspace that Undo changes
	From  string
}

func (d *Dashboard) toast(r *http.Request, c workspace.Caller, note string, id workspace.ID, from string) *toast {
	t := &toast{From: from}
	l := d.set(r).lang
	name := ""
	if workspace.ValidID(string(id)) {
		if ws, err := d.Store.Workspace(r.Context(), c, id); err == nil {
			name = ws.Name
			if v := d.viewOf(ws, from); note == "delete" && !v.RestoreUntil.IsZero() {
				t.Undo, t.ID = "/workspaces/"+string(id)+"/undelete", string(id)
			}
		}
	}
	if name == "" {
		t.Text = l.T("toast." + note + ".unnamed")
	} else {
		t.Text = l.T("toast."+note, name)
	}
	return t
}

// done responds to a change that was made.
func (d *Dashboard) done(w http.ResponseWriter, r *http.Request, c workspace.Caller, id workspace.ID, note string) {
	from := fromOf(r)
	if other := r.PostFormValue("for"); workspace.ValidID(other) {
		d.slotFreed(w, r, c, workspace.ID(other))
		return
	}
	back := backTo(from, id)
	gone := note == "delete"
	if gone && from != fromList {
		back = "/"
	}
	if !isHTMX(r) || asPage(r) || back != backTo(from, id) || (from == fromWait && (note == "start" || note == "start_queued")) {
		if from != fromWait || back == "/" {
			back = notedAt(back, note, id)
		} else {
			back = entryOf(r, id)
		}
		d.redirect(w, r, back)
		return
	}
	parts, err := d.redraw(r, c, from, id)
	if err != nil {
		d.refuse(w, r, c, id, err)
		return
	}
	parts = append(parts, part{"close-dialog", nil}, part{"toast-oob", d.toast(r, c, note, id, from)})
	d.fragments(w, r, http.StatusOK, parts...)
}

// redraw returns the part of the page that shows the workspace; from names the page.
func (d *Dashboard) redraw(r *http.Request, c workspace.Caller, from string, id workspace.ID) ([]part, error) {
	if from == fromAny {
		return nil, nil
	}
	if from == fromList || id == "" {
		q := listQuery{}
		if u, err := url.Parse(r.Header.Get("HX-Current-URL")); err == nil {
			q = listQueryOf(u.Query())
		}
		l, err := d.readList(r.Context(), c, q)
		if err != nil {
			return nil, err
		}
		l.OOB = true
		return []part{{"workspaces", l}}, nil
	}
	ws, err := d.Store.Workspace(r.Context(), c, id)
	if err != nil {
		return nil, err
	}
	if from == fromWait {
		v, err := d.waitOf(r.Context(), c, ws, false)
		v.OOB = true
		v.enters(entryOf(r, ws.ID))
		return []part{{"wait", v}}, err
	}
	if from == fromBackups {
		v, err := d.readBackups(r.Context(), c, ws, pageParam(r, "cursor"))
		v.OOB = true
		return []part{{"backup-actions", v}, {"backups-list", v}}, err
	}
	v, err := d.readDetail(r.Context(), c, ws, pageParam(r, "archives"))
	v.OOB, v.Connect.OOB = true, true
	v.Listed = d.readPorts(r.Context(), c, ws)
	return []part{{"panel", v}, {"connect-oob", v}, {"ports", v}, {"backups", v}, {"archives", v}, {"facts", v}}, err
}

// limitOf returns the details of a CodeLimitExceeded error.
func limitOf(e *workspace.Error) (perUser bool, maximum int) {
	perUser = e.Details["limit_type"] == "per_user"
	switch n := e.Details["max"].(type) {
	case int:
		maximum = n
	case int64:
		maximum = int(n)
	case float64:
		maximum = int(n)
	case string:
		maximum, _ = strconv.Atoi(n)
	}
	return perUser, maximum
}
