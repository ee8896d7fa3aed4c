package dashboard

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// generation is one archive of a workspace.
type generation struct {
	OpID    string
	At      time.Time // zero if unknown
	Size    int64     // bytes
	Files   int
	Skipped int  // sockets, FIFOs and devices of the home, which are not archived
	Current bool // a restore unpacks this one
	Latest  bool // the newest one, but the home has been used since
	Found   bool // found in the bucket, not yet in the database
}

// generations lists the archives that can be chosen and downloaded, newest first, and the
// cursor of the next page.
func (d *Dashboard) generations(ctx context.Context, c workspace.Caller, w workspace.Workspace, page postgres.Page) (out []generation, next string, err error) {
	list, next, err := d.Store.Archives(ctx, c, w.ID, page)
	if err != nil {
		return nil, "", err
	}
	for _, a := range list {
		out = append(out, generationOf(a, w))
	}
	return out, next, nil
}

func generationOf(a workspace.Archive, w workspace.Workspace) generation {
	return generation{
		OpID: a.OpID, At: a.CreatedAt, Size: a.Size, Files: int(a.Entries), Skipped: int(a.Skipped), Found: a.Found,
		Current: a.Key == w.ArchiveKey, Latest: a.Key == w.ArchiveKey && w.Home.State == workspace.HomeLive,
	}
}

// recoverArchive replaces lost data with an archive. As for startEmpty, the user confirms by
// typing the workspace's name.
func (d *Dashboard) recoverArchive(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	ws, err := d.workspaceOf(r.Context(), r, c)
	if err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	f, err := d.recoverForm(r, c, ws)
	if err != nil {
		d.refuse(w, r, c, ws.ID, err)
		return
	}
	chosen := r.PostFormValue("archive")
	f.Value["archive"] = chosen
	if !slices.ContainsFunc(f.Generations, func(g generation) bool { return g.OpID == chosen }) {
		f.fail("archive", "field.archive_unknown")
	}
	if strings.TrimSpace(r.PostFormValue("confirm")) != strings.TrimSpace(ws.Name) {
		f.fail("confirm", "field.confirm_mismatch")
	}
	switch {
	case !f.W.Lost():
		_, err := lifecycle.RequestRecover(ws, time.Time{}, workspace.RecoverEmpty)
		d.refuse(w, r, c, ws.ID, err)
		return
	case f.bad():
		d.again(w, r, c, f)
		return
	}
	d.carryOut(w, r, c, func(ctx context.Context, c workspace.Caller, id workspace.ID, _ *http.Request) (string, error) {
		_, err := d.Store.RequestRecoverArchive(ctx, c, id, chosen)
		return "recover_archive", err
	})
}

// recoverForm offers the newest archives, and the one that the request names. That one is
// selected, else the newest.
func (d *Dashboard) recoverForm(r *http.Request, c workspace.Caller, ws workspace.Workspace) (*form, error) {
	f := d.form("recover-archive", r, &ws)
	var err error
	if f.Generations, _, err = d.generations(r.Context(), c, ws, postgres.Page{Limit: postgres.MaxList}); err != nil {
		return nil, err
	}
	named := cmp.Or(r.URL.Query().Get("archive_op_id"), r.PostFormValue("archive"))
	if named != "" && !slices.ContainsFunc(f.Generations, func(g generation) bool { return g.OpID == named }) {
		a, err := d.Store.Archive(r.Context(), c, ws.ID, named)
		switch {
		case err == nil:
			f.Generations = append(f.Generations, generationOf(a, ws))
		case workspace.CodeOf(err) != workspace.CodeArchiveNotFound:
			return nil, err
		}
	}
	if f.W.Lost() {
		f.Generations = slices.DeleteFunc(f.Generations, func(g generation) bool { return !f.W.Offers(g) })
		backups, _, err := d.Store.HomeBackups(r.Context(), c, ws.ID, postgres.Page{Limit: postgres.MaxList})
		if err != nil {
			return nil, err
		}
		for _, b := range backups {
			if b.State == workspace.BackupDone && b.Damage == "" {
				f.Generations = append(f.Generations, generation{OpID: b.ID, At: b.Archive().CreatedAt, Size: b.Bytes, Files: int(b.Files), Skipped: int(b.Skipped)})
			}
		}
		slices.SortStableFunc(f.Generations, func(a, b generation) int { return b.At.Compare(a.At) })
	}
	f.Value["archive"] = r.URL.Query().Get("archive_op_id")
	if f.Value["archive"] == "" && len(f.Generations) > 0 {
		f.Value["archive"] = f.Generations[0].OpID
	}
	return f, nil
}

// bucketWithin bounds the bucket request that precedes a download.
const bucketWithin = 10 * time.Second

// download redirects to the API's download, or shows why it is not available.
func (d *Dashboard) download(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	ws, err := d.workspaceOf(r.Context(), r, c)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	opID := r.URL.Query().Get("archive_op_id")
	key := ws.ArchiveKey
	if opID != "" {
		a, err := d.Store.Archive(r.Context(), c, ws.ID, opID)
		if err != nil && workspace.CodeOf(err) != workspace.CodeArchiveNotFound {
			d.fail(w, r, err)
			return
		}
		key = a.Key // empty if there is no such archive
	}
	if key == "" || workspace.SharedArchive(ws.ID, key) {
		d.message(w, r, http.StatusNotFound, "archive_not_found")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), bucketWithin)
	defer cancel()
	switch _, err := d.Archives.Stat(ctx, key); {
	case errors.Is(err, store.ErrNotFound):
		d.message(w, r, http.StatusNotFound, "archive_not_found")
	case err != nil:
		d.Log.Warn("find an archive failed", "workspace", ws.ID, "err", err)
		d.message(w, r, http.StatusServiceUnavailable, "archive_unavailable")
	default:
		to := "/api/v1/workspaces/" + string(ws.ID) + "/archive"
		if opID != "" {
			to += "?" + url.Values{"archive_op_id": {opID}}.Encode()
		}
		d.redirect(w, r, to)
	}
}
