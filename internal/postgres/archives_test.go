package postgres_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// archive records an archive of a workspace, with the given columns, and returns its
// archive_op_id.
func (e *env) archive(id workspace.ID, s state) (key, opID string) {
	e.Helper()
	opID = uuid.Must(uuid.NewV7()).String()
	key = "installation/" + string(id) + "/" + opID + "/home.tar.zst"
	e.exec(`INSERT INTO archives (key, workspace_id, archive_op_id, digest, size, entries) VALUES ($1, $2, $3, $4, 5, 6)`, key, id, opID, "digest of "+opID)
	for column, v := range s {
		e.exec(`UPDATE archives SET `+column+` = $2 WHERE key = $1`, key, v)
	}
	return key, opID
}

func TestArchives(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	ann, eve := e.user("ann"), e.user("eve")
	w, other := e.workspace(ann, nil), e.workspace(ann, nil)
	at := soon(0)
	ago := func(d time.Duration) time.Time { return at.Add(-d) }
	e.archive(w.ID, nil) // not complete yet
	e.archive(w.ID, state{"verified_at": at, "deleting_at": at})
	e.archive(w.ID, state{"verified_at": at, "missing_since": at})
	e.archive(other.ID, state{"verified_at": at})
	_, older := e.archive(w.ID, state{"verified_at": at, "created_at": ago(3 * time.Hour), "superseded_at": ago(time.Hour), "unprotected_since": at, "skipped": 4})
	_, current := e.archive(w.ID, state{"verified_at": at, "created_at": ago(time.Hour)})
	_, found := e.archive(w.ID, state{"origin": "found", "complete_at": at, "created_at": ago(2 * time.Hour)})

	list := page(e.Archives(ctx, ann, w.ID, postgres.Page{}))(t)
	want := []workspace.Archive{}
	for _, a := range []struct {
		opID    string
		at      time.Time
		found   bool
		skipped int64
	}{{current, ago(time.Hour), false, 0}, {found, ago(2 * time.Hour), true, 0}, {older, ago(3 * time.Hour), false, 4}} {
		want = append(want, workspace.Archive{
			Key: "installation/" + string(w.ID) + "/" + a.opID + "/home.tar.zst", WorkspaceID: w.ID, OpID: a.opID,
			Digest: "digest of " + a.opID, Size: 5, Entries: 6, Skipped: a.skipped, CreatedAt: a.at, Found: a.found,
		})
	}
	if d := cmp.Diff(want, list); d != "" {
		t.Error(d)
	}
	for size := range 4 {
		paged := pages(t, size+1, func(p postgres.Page) ([]workspace.Archive, string, error) { return e.Archives(ctx, ann, w.ID, p) })
		if d := cmp.Diff(want, paged); d != "" {
			t.Errorf("in pages of %d: %s", size+1, d)
		}
	}
	for _, a := range want {
		if got := must(e.Archive(ctx, ann, w.ID, a.OpID))(t); got != a {
			t.Errorf("archive %s: %+v", a.OpID, got)
		}
	}
	_, err := e.Archive(ctx, ann, w.ID, uuid.NewString())
	wantCode(t, err, workspace.CodeArchiveNotFound)
	_, err = e.Archive(ctx, eve, w.ID, current)
	wantCode(t, err, workspace.CodeForbidden)
	_, _, err = e.Archives(ctx, eve, w.ID, postgres.Page{})
	wantCode(t, err, workspace.CodeForbidden)
	_, _, err = e.Archives(ctx, ann, workspace.ID(uuid.NewString()), postgres.Page{})
	wantCode(t, err, workspace.CodeNotFound)
}

func TestRequestRecoverArchive(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Limits: postgres.Limits{PerUser: 1}})
	ctx := t.Context()
	ann := e.user("ann")
	lost := state{"phase": "ERROR", "error_reason": "DataLost"}
	w := e.workspace(ann, lost)
	key, opID := e.archive(w.ID, state{"verified_at": time.Now(), "unprotected_since": time.Now()})

	got := must(e.RequestRecoverArchive(ctx, ann, w.ID, opID))(t)
	want := page(e.Archives(ctx, ann, w.ID, postgres.Page{}))(t)[0]
	if got.RecoverRequestedAt == nil || got.RecoverAction != workspace.RecoverArchive {
		t.Errorf("%+v", got)
	}
	if d := cmp.Diff(&want, got.RecoverFrom); d != "" || want.Key != key {
		t.Error(d)
	}
	if query[bool](e, `SELECT unprotected_since IS NOT NULL FROM archives WHERE key = $1`, key) {
		t.Error("the chosen archive still waits for its removal")
	}
	if d := cmp.Diff([]string{"ann workspace.create", "ann workspace.recover"}, e.audited(string(w.ID))); d != "" {
		t.Error(d)
	}
	if recorded := query[string](e, `SELECT details ->> 'archive_key' FROM audit_log WHERE action = 'workspace.recover'`); recorded != key {
		t.Errorf("the audit log has %q", recorded)
	}
	// Another recovery replaces the request.
	if got = must(e.RequestRecover(ctx, ann, w.ID, workspace.RecoverAfresh))(t); got.RecoverFrom != nil {
		t.Errorf("%+v", got.RecoverFrom)
	}

	other := e.workspace(ann, lost)
	_, of := e.archive(other.ID, state{"verified_at": time.Now()})
	_, making := e.archive(w.ID, nil)
	_, going := e.archive(w.ID, state{"verified_at": time.Now(), "deleting_at": time.Now()})
	for name, opID := range map[string]string{
		"another workspace's": of, "one being made": making, "one being removed": going, "none": uuid.NewString(), "nonsense": "'; --", "nothing": "",
	} {
		before := e.row(w.ID)
		_, err := e.RequestRecoverArchive(ctx, ann, w.ID, opID)
		if workspace.CodeOf(err) != workspace.CodeArchiveNotFound || before != e.row(w.ID) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The current archive can be chosen unless it is the lost one.
	e.set(w.ID, state{"archive_key": key})
	_, err := e.RequestRecoverArchive(ctx, ann, w.ID, opID)
	wantCode(t, err, workspace.CodeArchiveNotFound)
	e.set(w.ID, state{"home_ctx": map[string]any{"state": "live", "claim": uuid.NewString()}})
	if got = must(e.RequestRecoverArchive(ctx, ann, w.ID, opID))(t); got.RecoverFrom == nil || got.RecoverFrom.Key != key {
		t.Errorf("in place of a lost volume: %+v", got.RecoverFrom)
	}
	// Otherwise the rules of every recovery hold.
	_, err = e.RequestRecoverArchive(ctx, e.user("eve"), w.ID, opID)
	wantCode(t, err, workspace.CodeForbidden)
	e.set(w.ID, state{"desired_state": "RUNNING"})
	e.workspace(ann, state{"phase": "RUNNING"})
	_, err = e.RequestRecoverArchive(ctx, ann, w.ID, opID)
	wantCode(t, err, workspace.CodeLimitExceeded)
	e.set(w.ID, state{"desired_state": "STANDBY", "phase": "STANDBY", "error_reason": nil})
	_, err = e.RequestRecoverArchive(ctx, ann, w.ID, opID)
	wantCode(t, err, workspace.CodeNotInError)
	e.set(w.ID, state{"deleted_at": time.Now(), "phase": "DELETING", "error_reason": "Timeout"})
	_, err = e.RequestRecoverArchive(ctx, ann, w.ID, opID)
	wantCode(t, err, workspace.CodeNotFound)
}

// The schema itself refuses references to an archive that is being removed.
func TestArchiveBeingRemovedIsNotReferenced(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ann := e.user("ann")
	w := e.workspace(ann, nil)
	going, _ := e.archive(w.ID, state{"verified_at": time.Now(), "deleting_at": time.Now()})
	kept, _ := e.archive(w.ID, state{"verified_at": time.Now()})
	named := e.workspace(ann, state{"deleted_at": time.Now(), "archive_key": kept})
	e.exec(`UPDATE archives SET deleting_at = now() WHERE key = $1`, kept)
	for name, sql := range map[string]string{
		"archive_key":     `UPDATE workspaces SET archive_key = '` + going + `' WHERE id = $1`,
		"recover_archive": `UPDATE workspaces SET recover_requested_at = now(), recover_action = 'archive', recover_archive = '{"key": "` + going + `"}' WHERE id = $1`,
		"undeleted":       `UPDATE workspaces SET deleted_at = NULL WHERE id = '` + string(named.ID) + `' AND id <> $1`,
		"a workspace that references it": `INSERT INTO workspaces (id, owner_user_id, name, image_ref, storage_backend, desired_state, archive_key)
			SELECT gen_random_uuid(), owner_user_id, 'copy', image_ref, storage_backend, desired_state, '` + going + `' FROM workspaces WHERE id = $1`,
	} {
		_, err := e.raw.Exec(t.Context(), sql, w.ID)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.ConstraintName != "workspaces_archive_is_kept" {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Other changes of the row are possible.
	e.set(named.ID, state{"stop_reason": "requested", "archive_key": nil})
	e.set(named.ID, state{"deleted_at": nil})
}
