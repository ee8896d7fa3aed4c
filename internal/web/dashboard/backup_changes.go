package dashboard

import (
	"context"
	"errors"
	"net/http"

	"codehub/internal/archive"
	"codehub/internal/postgres"
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
)

const (
	// changesShown and changesBytes bound a page of changed files: their number, and the bytes of
	// their names.
	changesShown = 1000
	changesBytes = filesBytes
	// newestBackup is the last complete backup, in the place of an id.
	newestBackup = "newest"
)

// changesView is the page of the files that differ between two backups.
type changesView struct {
	ID           workspace.ID
	Name         string
	Older, Newer backupRow
	Rows         []changeRow
	More         bool // there are more than Rows
	Damaged      bool // a backup cannot be read
}

// changeRow is a file that differs: Kind is added, changed or removed.
type changeRow struct {
	fileRow
	Kind string
}

// Full is the path, as pages show it.
func (r changeRow) Full() string { return shownName(r.Path) }

func kindOf(d archive.Difference) string {
	switch d.Kind {
	case archive.Added:
		return "added"
	case archive.Removed:
		return "removed"
	}
	return "changed"
}

// compared returns the backup that the path names and the one that since names, by default the one
// before. CodeNotFound.
func (d *Dashboard) compared(r *http.Request, c workspace.Caller, id workspace.ID) (older, newer workspace.Backup, err error) {
	ctx := r.Context()
	if r.PathValue("backup") == newestBackup {
		newer, err = d.newestBackup(ctx, c, id)
	} else {
		newer, err = d.Store.HomeBackup(ctx, c, id, r.PathValue("backup"))
	}
	if err != nil {
		return older, newer, err
	}
	if since := r.URL.Query().Get("since"); since != "" {
		older, err = d.Store.HomeBackup(ctx, c, id, since)
	} else {
		older, err = d.Store.HomeBackupBefore(ctx, c, newer)
	}
	if err == nil && (newer.State != workspace.BackupDone || older.State != workspace.BackupDone) {
		err = workspace.NotFound("backup")
	}
	return older, newer, err
}

// newestBackup returns the last complete backup of a workspace. CodeNotFound.
func (d *Dashboard) newestBackup(ctx context.Context, c workspace.Caller, id workspace.ID) (workspace.Backup, error) {
	list, _, err := d.Store.HomeBackups(ctx, c, id, postgres.Page{Limit: backupsRead})
	if err != nil {
		return workspace.Backup{}, err
	}
	for _, b := range list {
		if b.State == workspace.BackupDone {
			return b, nil
		}
	}
	return workspace.Backup{}, workspace.NotFound("backup")
}

// backupChanges is the page of the files that differ between two backups.
func (d *Dashboard) backupChanges(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	ws, err := d.workspaceOf(r.Context(), r, c)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	older, newer, err := d.compared(r, c, ws.ID)
	if err != nil {
		d.failBackup(w, r, err)
		return
	}
	if !d.browsing.add(c.UserID) {
		d.message(w, r, http.StatusTooManyRequests, "reading")
		return
	}
	defer d.browsing.remove(c.UserID)
	release, ok := d.Archives.ReserveManifests(c.UserID, older.Size+newer.Size)
	if !ok {
		d.message(w, r, http.StatusTooManyRequests, "reading")
		return
	}
	defer release()
	ctx, cancel := context.WithTimeout(r.Context(), filesWithin)
	defer cancel()
	v := changesView{ID: ws.ID, Name: ws.Name, Older: rowOf(older), Newer: rowOf(newer)}
	err = d.readChanges(ctx, &v)
	switch {
	case err == nil:
	case errors.Is(err, store.ErrNotFound):
		d.message(w, r, http.StatusNotFound, "backup_not_found")
		return
	case errors.Is(err, store.ErrUnavailable), ctx.Err() != nil:
		d.Log.Warn("compare backups failed", "workspace", ws.ID, "err", err)
		d.message(w, r, http.StatusServiceUnavailable, "archive_unavailable")
		return
	case errors.Is(err, archive.ErrCorrupted):
		v.Rows, v.Damaged = nil, true
	default:
		d.fail(w, r, err)
		return
	}
	p := d.newPage(r, &c, "", v)
	p.Title, p.Nav = d.set(r).lang.T("changes.title")+" · "+ws.Name, "workspaces"
	d.render(w, r, http.StatusOK, "changes", p)
}

// readChanges reads the files that differ, at most changesShown.
func (d *Dashboard) readChanges(ctx context.Context, v *changesView) error {
	before, _, err := d.Archives.Generation(ctx, v.Older.Key)
	if err != nil {
		return err
	}
	after, _, err := d.Archives.Generation(ctx, v.Newer.Key)
	if err != nil {
		return err
	}
	bytes := 0
	for diff, err := range after.Differences(before) {
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		}
		if bytes += len(diff.Entry.Name); len(v.Rows) == changesShown || bytes > changesBytes {
			v.More = true
			return nil
		}
		at := archivePlace{ID: v.ID, Backup: v.Newer.ID}
		if diff.Kind == archive.Removed {
			at.Backup = v.Older.ID
		}
		v.Rows = append(v.Rows, changeRow{at.row(diff.Entry), kindOf(diff)})
	}
	return nil
}
