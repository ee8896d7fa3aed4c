package dashboard

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

const (
	// backupsShown is how many backups a page shows.
	backupsShown = 50
	// backupsRead is how many of the newest backups are read to find the last complete one.
	backupsRead = 20
	// maxForks is how many workspaces are created from a backup at once.
	maxForks = 20
)

// backupRow is a backup on a page.
type backupRow struct {
	workspace.Backup
	At     time.Time // the home is as of this time; of a waiting one, the time of the request
	Before bool      // there is a complete backup before it
	Newest bool      // of the complete ones
}

func rowOf(b workspace.Backup) backupRow {
	r := backupRow{Backup: b, At: b.CreatedAt}
	if b.BegunAt != nil {
		r.At = *b.BegunAt
	}
	return r
}

// Done reports that the backup is complete. Usable reports that it is also not known to be damaged.
func (b backupRow) Done() bool   { return b.State == workspace.BackupDone }
func (b backupRow) Usable() bool { return b.Done() && b.Damage == "" }

// Present reports that the backup is waiting or being made.
func (b backupRow) Present() bool {
	return b.State == workspace.BackupWaiting || b.State == workspace.BackupRunning
}

// Whole reports that all files are new, as in the first backup.
func (b backupRow) Whole() bool { return b.Added == b.Files && b.Modified == 0 && b.Removed == 0 }

// Same reports that no file has changed since the backup before.
func (b backupRow) Same() bool { return b.Added+b.Modified+b.Removed == 0 }

// figure is how many files were added, modified or removed, with the text backups.<Key>.
type figure struct {
	Key   string
	Files int64
}

// Figures are what has changed since the backup before.
func (b backupRow) Figures() []figure {
	all := []figure{{"added", b.Added}, {"modified", b.Modified}, {"removed", b.Removed}}
	return slices.DeleteFunc(all, func(f figure) bool { return f.Files == 0 })
}

// backupState is what the pages of a workspace show above its backups.
type backupState struct {
	ID      string
	From    string // the page
	Acts    bool   // the workspace is not deleted
	Makes   bool   // a backup can be requested
	Present *backupRow
	Latest  *backupRow // complete
	Failed  *backupRow // the newest one, if it failed
	// Restoring is the backup that is to replace the home; nil: none.
	Restoring *workspace.Archive
}

// readBackupState reads the state of a workspace's backups.
func (d *Dashboard) readBackupState(ctx context.Context, c workspace.Caller, w workspace.Workspace, from string) (backupState, error) {
	s := backupState{ID: string(w.ID), From: from, Acts: w.DeletedAt == nil, Restoring: w.RestoreFrom}
	list, _, err := d.Store.HomeBackups(ctx, c, w.ID, postgres.Page{Limit: backupsRead})
	for _, b := range list {
		r := rowOf(b)
		switch {
		case r.Present() && s.Present == nil:
			s.Present = &r
		case r.State == workspace.BackupFailed && s.Failed == nil && s.Latest == nil:
			s.Failed = &r
		case r.Done() && s.Latest == nil:
			s.Latest = &r
		}
	}
	s.Makes = s.Acts && w.Phase != workspace.PhasePending && w.Phase != workspace.PhaseArchived && (s.Present == nil || s.Present.State == workspace.BackupWaiting)
	return s, err
}

// backupDay is the backups of a day, the newest first.
type backupDay struct {
	At   time.Time // of the newest
	Rows []backupRow
}

// backupsView is the page of a workspace's backups.
type backupsView struct {
	backupState
	Name   string
	Space  workspace.BackupSpace
	Days   []backupDay
	Paging paging
	OOB    bool
}

func (d *Dashboard) readBackups(ctx context.Context, c workspace.Caller, w workspace.Workspace, cursor string) (v backupsView, err error) {
	v.Name = w.Name
	if v.backupState, err = d.readBackupState(ctx, c, w, fromBackups); err != nil {
		return v, err
	}
	if v.Space, err = d.Store.BackupSpace(ctx, c, w.ID); err != nil {
		return v, err
	}
	list, next, err := d.Store.HomeBackups(ctx, c, w.ID, postgres.Page{Limit: backupsShown, Cursor: cursor})
	v.Paging = pagingOf("/workspaces/"+v.ID+"/backups", "cursor", cursor, next)
	v.Days = daysOf(list, zoneOf(w), v.Latest, next != "")
	return v, err
}

// zoneOf is the time zone by which the backups of a workspace are grouped.
func zoneOf(w workspace.Workspace) *time.Location {
	if zone, err := time.LoadLocation(w.TimeZone); err == nil {
		return zone
	}
	return time.UTC
}

// daysOf groups backups, of which the newest is first. Those that wait or are being made are left
// out. more reports that there are older ones.
func daysOf(list []workspace.Backup, zone *time.Location, latest *backupRow, more bool) (out []backupDay) {
	before := more
	rows := make([]backupRow, 0, len(list))
	for _, b := range slices.Backward(list) {
		r := rowOf(b)
		if r.Present() {
			continue
		}
		if r.Done() {
			r.Before, before = before, true
			r.Newest = latest != nil && latest.ID == b.ID
		}
		rows = append(rows, r)
	}
	day := ""
	for _, r := range slices.Backward(rows) {
		if of := r.At.In(zone).Format(time.DateOnly); of != day {
			day = of
			out = append(out, backupDay{At: r.At})
		}
		last := &out[len(out)-1]
		last.Rows = append(last.Rows, r)
	}
	return out
}

func (d *Dashboard) backups(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	ws, err := d.workspaceOf(r.Context(), r, c)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	cursor := r.URL.Query().Get("cursor")
	v, err := d.readBackups(r.Context(), c, ws, cursor)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	p := d.newPage(r, &c, "", v)
	p.Title, p.Nav, p.Toast = d.set(r).lang.T("backups.title")+" · "+ws.Name, "workspaces", d.noted(r, c)
	query := url.Values{"workspace": {v.ID}, "backups": {"1"}}
	if cursor != "" {
		query.Set("cursor", cursor)
	}
	p.Stream = d.streamOf(r, "/dashboard/events?"+query.Encode(), liveBackups(v), p.Notices)
	d.render(w, r, http.StatusOK, "backups", p)
}

func liveBackups(v backupsView) livePage {
	v.OOB = true
	s := livePageOf(v, "backup-actions", "backups-list")
	s.busy = v.Present != nil || v.Restoring != nil
	return s
}

// followBackups reads the page of a workspace's backups again.
func (d *Dashboard) followBackups(c workspace.Caller, id workspace.ID, cursor string) func(context.Context) (livePage, error) {
	return func(ctx context.Context) (livePage, error) {
		ws, err := d.Store.Workspace(ctx, c, id)
		if err != nil {
			return liveLost(err)
		}
		v, err := d.readBackups(ctx, c, ws, cursor)
		return liveBackups(v), err
	}
}

// backupOf reads a workspace and the backup that the path names.
func (d *Dashboard) backupOf(r *http.Request, c workspace.Caller) (workspace.Workspace, backupRow, error) {
	ws, err := d.workspaceOf(r.Context(), r, c)
	if err != nil {
		return ws, backupRow{}, err
	}
	b, err := d.Store.HomeBackup(r.Context(), c, ws.ID, r.PathValue("backup"))
	return ws, rowOf(b), err
}

// failBackup is fail for a page of a backup.
func (d *Dashboard) failBackup(w http.ResponseWriter, r *http.Request, err error) {
	if workspace.CodeOf(err) == workspace.CodeNotFound {
		d.message(w, r, http.StatusNotFound, "backup_not_found")
		return
	}
	d.fail(w, r, err)
}

// requestBackup requests a backup, with the note of the form.
func (d *Dashboard) requestBackup(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	ws, err := d.workspaceOf(r.Context(), r, c)
	if err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	f := d.form("backup", r, &ws)
	f.line("note", maxNote, false)
	if f.bad() {
		d.again(w, r, c, f)
		return
	}
	if _, err := d.Store.RequestHomeBackup(r.Context(), c, ws.ID, f.Value["note"]); err != nil {
		d.refuseForm(w, r, c, f, err)
		return
	}
	d.done(w, r, c, ws.ID, "backup")
}

// maxNote is the length of a note in characters.
const maxNote = workspace.MaxBackupNote / utf8.UTFMax

// backupForm returns a form about a backup.
func (d *Dashboard) backupForm(name string, r *http.Request, c workspace.Caller) (*form, error) {
	ws, b, err := d.backupOf(r, c)
	if err != nil {
		return nil, err
	}
	f := d.form(name, r, &ws)
	f.Backup, f.From = &b, fromBackups
	f.Action = "/workspaces/" + string(ws.ID) + "/backups/" + b.ID + "/" + name
	f.Back = backTo(fromBackups, ws.ID)
	f.Value["count"] = "1"
	f.Value["start"] = ""
	if r.Method == http.MethodPost {
		f.Value["start"] = r.PostFormValue("start")
	} else if name == "restore" && ws.DesiredState == workspace.DesiredRunning {
		f.Value["start"] = "on"
	}
	return f, nil
}

func (d *Dashboard) backupDialog(name string) callerHandler {
	return func(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
		f, err := d.backupForm(name, r, c)
		if err != nil {
			d.refuse(w, r, c, "", err)
			return
		}
		d.showForm(w, r, c, http.StatusOK, f)
	}
}

// restoreBackup replaces the home by that of a backup.
func (d *Dashboard) restoreBackup(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	f, err := d.backupForm("restore", r, c)
	if err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	id := f.W.W.ID
	if _, err := d.Store.RequestRestore(r.Context(), c, id, f.Backup.ID, f.Value["start"] != ""); err != nil {
		d.refuseForm(w, r, c, f, err)
		return
	}
	d.redirect(w, r, notedAt("/workspaces/"+string(id), "restore_backup", id))
}

// fork creates workspaces from a backup.
func (d *Dashboard) fork(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	f, err := d.backupForm("fork", r, c)
	if err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	f.line("fork_name", workspace.MaxName, false)
	f.Value["count"] = r.PostFormValue("count")
	n, err := strconv.Atoi(f.Value["count"])
	if err != nil || n < 1 || n > maxForks {
		f.fail("count", "field.fork_count_range", maxForks)
	}
	if f.bad() {
		d.again(w, r, c, f)
		return
	}
	made, err := d.Store.Fork(r.Context(), c, f.W.W.ID, api.Fork{Backup: f.Backup.ID, Count: n, Name: f.Value["fork_name"], Start: f.Value["start"] != ""})
	switch {
	case err != nil:
		d.refuseForm(w, r, c, f, err)
	case len(made) == 1:
		d.redirect(w, r, notedAt("/workspaces/"+string(made[0].ID), "fork", made[0].ID))
	default:
		d.redirect(w, r, notedAt("/", "fork", ""))
	}
}

// cancelRestore drops a restore of a backup that has not replaced the home yet: a request for the
// desired state does.
func (d *Dashboard) cancelRestore(ctx context.Context, c workspace.Caller, id workspace.ID, r *http.Request) (string, error) {
	ws, err := d.Store.Workspace(ctx, c, id)
	if err != nil {
		return "", err
	}
	want := workspace.DesiredStandby
	if ws.DesiredState == workspace.DesiredRunning {
		want = workspace.DesiredRunning
	}
	_, err = d.Store.PatchWorkspace(ctx, c, id, postgres.Patch{Desired: &want, Queue: true, TimeZone: timeZone(r)})
	return "cancel_restore", err
}
