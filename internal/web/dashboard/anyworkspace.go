package dashboard

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// anyForms are the forms by which administrators act on the workspaces of all users. Each has
// the texts dialog.any-<name>.title, .body and .submit.
var anyForms = []string{"stop", "archive", "cancel", "recover", "set-aside", "start-empty", "recover-archive", "delete", "undelete", "timeouts", "size", "message", "hand-over", "withdraw", "backup", "restore"}

// anyAction is one thing that an administrator can do with a workspace now.
type anyAction struct {
	Key, Icon string // the text any.<Key>
	Danger    bool
}

// anyActionsOf are those of a workspace. sizes reports that its size can be changed, asked that a
// hand-over is requested.
func anyActionsOf(w workspace.Workspace, v view, sizes, asked bool) (out []anyAction) {
	add := func(key, icon string, danger bool) { out = append(out, anyAction{key, icon, danger}) }
	now := v.Now
	if w.DeletedAt != nil {
		if lifecycle.Restorable(w, false) {
			add("undelete", "undo", false)
		}
		if w.ErrorReason.Final() {
			add("delete", "retry", true)
		}
		add("message", "info", false)
		return out
	}
	if out, err := lifecycle.Halt(w, now, false); err == nil && out.Changed {
		add("stop", "stop", false)
	}
	if lifecycle.Cancellable(w) {
		add("cancel", "x", false)
	}
	if w.Phase == workspace.PhaseError && w.PendingRequest() == "" {
		add("recover", "retry", false)
		if w.Obstructed() {
			add("set-aside", "box", false)
		}
		if lifecycle.LossOf(w) != "" {
			add("recover-archive", "undo", false)
			add("start-empty", "sparkle", true)
		}
	} else if w.Phase == workspace.PhaseRunning || w.Phase == workspace.PhaseStandby {
		if w.DesiredState != workspace.DesiredArchived {
			add("archive", "box", false)
		}
	}
	if w.Phase != workspace.PhasePending && w.Phase != workspace.PhaseArchived {
		add("backup", "clock", false)
	}
	add("timeouts", "hourglass", false)
	if sizes {
		add("size", "pencil", false)
	}
	add("message", "info", false)
	add("hand-over", "people", false)
	if asked {
		add("withdraw", "x", false)
	}
	add("delete", "trash", true)
	return out
}

// anyView is the administrators' page of a workspace.
type anyView struct {
	allRow
	Acts []anyAction
	// Size, SizeGone and SizeWaits are as on the owner's page (detailView).
	Size                workspace.Size
	SizeGone, SizeWaits bool

	// Backups are those of the home, the newest first, without their content.
	Backups  []backupRow
	Space    workspace.BackupSpace
	Restores bool // a backup can replace the home

	Days []postgres.UsageDay // of the last days, the newest first
	Log  string              // address of the audit log of it
	OOB  bool
}

// DayCPU and DayMemory are the use of a day, as numbers.
func (anyView) DayCPU(d postgres.UsageDay) float64    { return d.CPUSeconds / 3600 }
func (anyView) DayMemory(d postgres.UsageDay) float64 { return d.MemorySeconds / 3600 / (1 << 30) }

// DayRunning is the time that the workspace ran on a day.
func (anyView) DayRunning(d postgres.UsageDay) time.Duration {
	return time.Duration(d.RunningSeconds) * time.Second
}

func (d *Dashboard) readAny(ctx context.Context, c workspace.Caller, id workspace.ID) (anyView, error) {
	w, err := d.Store.AnyWorkspace(ctx, c, id)
	if err != nil {
		return anyView{}, err
	}
	v := anyView{allRow: d.allRowOf(w), Log: "/admin/audit?" + url.Values{"target": {string(id)}}.Encode()}
	v.Size, v.SizeGone, v.SizeWaits = d.Sizes.Of(w.Size), !d.Sizes.Has(w.Size), lifecycle.SizeWaits(w.Workspace, d.Sizes)
	v.Acts = anyActionsOf(w.Workspace, v.view, len(d.Sizes.Offered) > 0 || w.Size != "", w.Asked != nil)
	backups, _, err := d.Store.AnyHomeBackups(ctx, c, id, postgres.Page{Limit: postgres.MaxList})
	if err != nil {
		return anyView{}, err
	}
	for _, b := range backups {
		v.Backups = append(v.Backups, rowOf(b))
	}
	v.Restores = w.DeletedAt == nil && w.Phase != workspace.PhaseError
	if v.Space, err = d.Store.BackupSpace(ctx, workspace.System, id); err != nil {
		return anyView{}, err
	}
	today := d.Now().UTC().Truncate(24 * time.Hour)
	err = d.Store.UsageOf(ctx, c, id, today.AddDate(0, 0, 1-postgres.UsageDays), today, func(day postgres.UsageDay) error {
		v.Days = append(v.Days, day)
		return nil
	})
	slices.Reverse(v.Days)
	return v, err
}

func (d *Dashboard) anyWorkspace(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	id, err := idOf(r)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	v, err := d.readAny(r.Context(), c, id)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	p := d.newPage(r, &c, "", v)
	p.Title, p.Nav = v.view.Name, "admin"
	p.Stream = d.streamOf(r, "/dashboard/events?"+url.Values{"any": {string(id)}}.Encode(), liveAny(v), p.Notices)
	p.Toast = d.noted(r, c)
	d.render(w, r, http.StatusOK, "any", p)
}

// followAny reads the administrators' page of a workspace again.
func (d *Dashboard) followAny(c workspace.Caller, id workspace.ID) func(context.Context) (livePage, error) {
	return func(ctx context.Context) (livePage, error) {
		v, err := d.readAny(ctx, c, id)
		switch {
		case workspace.CodeOf(err) == workspace.CodeNotFound:
			return liveLost(err)
		case err != nil:
			return liveOver(err)
		}
		return liveAny(v), nil
	}
}

func liveAny(v anyView) livePage {
	v.view, v.OOB = timeless(v.view), true
	s := livePageOf(v, "any-panel")
	s.views = []view{v.view}
	return s
}

// anyActions shows what can be done with a workspace, as a dialog; without scripts its page
// does.
func (d *Dashboard) anyActions(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	id, err := idOf(r)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	if !isHTMX(r) {
		d.redirect(w, r, "/admin/workspaces/"+string(id))
		return
	}
	v, err := d.readAny(r.Context(), c, id)
	if err != nil {
		d.refuseUser(w, r, c, err)
		return
	}
	d.fragments(w, r, http.StatusOK, part{"any-menu", v})
}

// anyLogs is the part of the page with the log of the container.
func (d *Dashboard) anyLogs(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	id, err := idOf(r)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	ws, err := d.Store.ReadAnyLog(r.Context(), c, id)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	d.fragments(w, r, http.StatusOK, part{"log", d.readLog(r.Context(), c, ws.Workspace)})
}

// anyForm returns a form about a workspace of any user.
func (d *Dashboard) anyForm(name string, r *http.Request, c workspace.Caller) (*form, error) {
	id, err := idOf(r)
	if err != nil {
		return nil, err
	}
	ws, err := d.Store.AnyWorkspace(r.Context(), c, id)
	if err != nil {
		return nil, err
	}
	f := d.form("any-"+name, r, nil)
	f.Any = &ws
	f.From = fromAny
	f.Action, f.Back = "/admin/workspaces/"+string(id)+"/"+name, "/admin/workspaces/"+string(id)
	f.Danger = name == "delete" || name == "start-empty" || name == "recover-archive"
	for _, field := range []string{"message", "force", "confirm", "to", "archive"} {
		f.Value[field] = r.PostFormValue(field)
	}
	switch name {
	case "restore":
		b, err := d.Store.HomeBackup(r.Context(), workspace.System, id, r.FormValue("backup"))
		if err != nil {
			return nil, err
		}
		row := rowOf(b)
		f.Backup, f.Value["start"] = &row, r.PostFormValue("start")
	case "timeouts":
		f.showTTL("standby", ws.StandbyTTL)
		f.showTTL("archive", ws.ArchiveTTL)
	case "size":
		f.Value["size"] = ws.Size
	case "hand-over":
		f.Value["name"] = ws.Name
	case "recover-archive":
		list, _, err := d.Store.AnyArchives(r.Context(), c, id, postgres.Page{Limit: postgres.MaxList})
		if err != nil {
			return nil, err
		}
		v := d.viewOf(ws.Workspace, fromAny)
		for _, a := range list {
			if g := generationOf(a, ws.Workspace); v.Offers(g) {
				f.Generations = append(f.Generations, g)
			}
		}
		if f.Value["archive"] == "" && len(f.Generations) > 0 {
			f.Value["archive"] = f.Generations[0].OpID
		}
	}
	return f, nil
}

func (d *Dashboard) anyDialog(name string) callerHandler {
	return func(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
		f, err := d.anyForm(name, r, c)
		if err != nil {
			d.refuseUser(w, r, c, err)
			return
		}
		d.showForm(w, r, c, http.StatusOK, f)
	}
}

// message reads the message for the owner.
func (f *form) message(required bool) string {
	s := strings.TrimSpace(clean(f.r.PostFormValue("message")))
	f.Value["message"] = s
	switch {
	case required && s == "":
		f.fail("message", "field.required")
	case postgres.CheckMessage("message", s) != nil:
		f.fail("message", "field.too_long", postgres.MaxMessage)
	}
	return s
}

// administer handles the form with that name.
func (d *Dashboard) administer(name string) callerHandler {
	return func(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
		f, err := d.anyForm(name, r, c)
		if err != nil {
			d.refuseUser(w, r, c, err)
			return
		}
		var ws postgres.AnyWorkspace
		switch name {
		case "hand-over":
			ws, err = d.handOver(r.Context(), c, f)
		case "withdraw":
			ws, err = d.Store.WithdrawHandOver(r.Context(), c, f.Any.ID)
		case "backup":
			f.line("note", maxNote, false)
			if !f.bad() {
				ws = *f.Any
				_, err = d.Store.RequestAnyHomeBackup(r.Context(), c, ws.ID, f.Value["note"])
			}
		default:
			do := f.administration(name)
			if !f.bad() {
				ws, err = d.Store.Administer(r.Context(), c, f.Any.ID, do)
			}
		}
		switch {
		case f.bad():
			d.again(w, r, c, f)
		case err != nil:
			d.refuseAny(w, r, c, f, err)
		default:
			d.anyChanged(w, r, c, name, ws)
		}
	}
}

// administration reads what the form requests.
func (f *form) administration(name string) postgres.Administration {
	do := postgres.Administration{Do: name, Message: f.message(name == "message")}
	switch name {
	case "stop":
		do.Force = f.Value["force"] != ""
	case "timeouts":
		do.StandbyTTL, do.ArchiveTTL = f.ttl("standby"), f.ttl("archive")
	case "size":
		do.Size = f.newSize()
	case "restore":
		do.Backup, do.Start = f.Backup.ID, f.Value["start"] != ""
	case "recover":
		do.Recover = workspace.RecoverAfresh
	case "set-aside":
		do.Do, do.Recover = postgres.DoRecover, workspace.RecoverSetAside
	case "start-empty", "recover-archive":
		do.Do, do.Recover, do.Confirm = postgres.DoRecover, workspace.RecoverEmpty, f.Any.Name
		if name == "recover-archive" {
			do.Recover, do.Archive = workspace.RecoverArchive, f.Value["archive"]
			if !slices.ContainsFunc(f.Generations, func(g generation) bool { return g.OpID == do.Archive }) {
				f.fail("archive", "field.archive_unknown")
			}
		}
		if strings.TrimSpace(f.Value["confirm"]) != strings.TrimSpace(f.Any.Name) {
			f.fail("confirm", "field.confirm_mismatch")
		}
	}
	return do
}

func (d *Dashboard) handOver(ctx context.Context, c workspace.Caller, f *form) (ws postgres.AnyWorkspace, err error) {
	h := postgres.HandOver{Message: f.message(false)}
	f.line("to", 255, true)
	f.line("name", workspace.MaxName, true)
	h.Name = f.Value["name"]
	if !f.bad() {
		if h.To, err = d.userNamed(ctx, f.Value["to"]); err != nil {
			if workspace.CodeOf(err) != workspace.CodeNotFound {
				return ws, err
			}
			f.fail("to", "field.no_user")
		}
	}
	if f.bad() {
		return ws, nil
	}
	return d.Store.HandOver(ctx, c, f.Any.ID, h)
}

// userNamed returns the id of a user.
func (d *Dashboard) userNamed(ctx context.Context, name string) (string, error) {
	u, err := d.Store.UserByName(ctx, name)
	return u.ID, err
}

// refuseAny responds to a refused form: in the form, if the administrator can correct it there.
func (d *Dashboard) refuseAny(w http.ResponseWriter, r *http.Request, c workspace.Caller, f *form, err error) {
	var e *workspace.Error
	if !errors.As(err, &e) || e.Code == workspace.CodeForbidden || e.Code == workspace.CodeNotFound || e.Code == workspace.CodeUnavailable {
		d.refuseUser(w, r, c, err)
		return
	}
	switch {
	case e.Code == workspace.CodeNameTaken:
		f.fail("name", "field.name_taken_there")
	case e.Code == workspace.CodeInvalid && f.Name == "any-hand-over":
		f.fail("to", "field.cannot_receive")
	case e.Code == workspace.CodeQuotaExceeded && e.Details["limit_type"] == lifecycle.LimitBytes:
		v := bytesOf(e)
		f.Problem = f.lang.T("any.limit_bytes", f.lang.Bytes(v.Used), f.lang.Bytes(v.Max))
	case e.Code == workspace.CodeQuotaExceeded && f.Name == "any-size":
		f.Problem = quotaProblem(f.lang, e)
	case e.Code == workspace.CodeLimitExceeded:
		f.Problem = f.lang.T("any.limit")
	default:
		f.Problem = f.lang.T("err.internal")
		if key := f.errorText(e.Code); f.lang.Has(key) {
			f.Problem = f.lang.T(key)
		}
	}
	d.again(w, r, c, f)
}

// anyChanged responds to a change that was made, with what the open page shows of it.
func (d *Dashboard) anyChanged(w http.ResponseWriter, r *http.Request, c workspace.Caller, name string, ws postgres.AnyWorkspace) {
	text := d.set(r).lang.T("any_toast."+strings.ReplaceAll(name, "-", "_"), ws.Name, ws.Owner)
	if name == "hand-over" && ws.Asked != nil {
		text = d.set(r).lang.T("any_toast.asked", ws.Name, ws.Owner)
	}
	if !isHTMX(r) || asPage(r) {
		d.redirect(w, r, notedAt("/admin/workspaces/"+string(ws.ID), "any", ""))
		return
	}
	parts := []part{{"close-dialog", nil}, {"toast-oob", &toast{Text: text}}}
	at, err := url.Parse(r.Header.Get("HX-Current-URL"))
	switch {
	case err != nil:
	case at.Path == "/admin/workspaces":
		row := d.allRowOf(ws)
		row.OOB = true
		parts = append([]part{{"all-row", row}}, parts...)
	case at.Path == "/admin/workspaces/"+string(ws.ID):
		if v, err := d.readAny(r.Context(), c, ws.ID); err == nil {
			v.OOB = true
			parts = append([]part{{"any-panel", v}}, parts...)
		}
	}
	d.fragments(w, r, http.StatusOK, parts...)
}
