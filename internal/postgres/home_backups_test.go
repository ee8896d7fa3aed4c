package postgres_test

import (
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// homeBackup records a backup of a home, with the given columns, and returns its id.
func (e *env) homeBackup(id workspace.ID, s state) string {
	e.Helper()
	backup := uuid.Must(uuid.NewV7()).String()
	e.exec(`INSERT INTO home_backups (id, workspace_id, state, cause, key, digest, begun_at, ended_at) VALUES ($1, $2, 'done', 'schedule', $3, 'd', now(), now())`,
		backup, id, "installation/"+string(id)+"/backups/"+backup+".manifest.zst")
	for column, v := range s {
		e.exec(`UPDATE home_backups SET `+column+` = $2 WHERE id = $1`, backup, v)
	}
	return backup
}

func TestHomeBackups(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	ann, eve := e.user("ann"), e.user("eve")
	w, other := e.workspace(ann, nil), e.workspace(ann, nil)
	at := soon(0)
	ago := func(d time.Duration) time.Time { return at.Add(-d) }
	expired := e.homeBackup(w.ID, state{"expired_at": at})
	of := e.homeBackup(other.ID, nil)
	first := e.homeBackup(w.ID, state{"created_at": ago(3 * time.Hour), "note": "before", "entries": 4, "added": 3})
	failedOne := e.homeBackup(w.ID, state{"created_at": ago(2 * time.Hour), "state": "failed", "error": "no space"})
	same := []string{e.homeBackup(w.ID, state{"created_at": ago(time.Hour)}), e.homeBackup(w.ID, state{"created_at": ago(time.Hour)})}
	want := []string{same[1], same[0], failedOne, first}
	for size := range 5 {
		var got []string
		for _, b := range pages(t, size+1, func(p postgres.Page) ([]workspace.Backup, string, error) { return e.HomeBackups(ctx, ann, w.ID, p) }) {
			got = append(got, b.ID)
			if one := must(e.HomeBackup(ctx, ann, w.ID, b.ID))(t); one.ID != b.ID || one.WorkspaceID != w.ID || one.Key == "" {
				t.Errorf("%+v", one)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("in pages of %d: %v, not %v", size+1, got, want)
		}
	}
	got := must(e.HomeBackup(ctx, ann, w.ID, first))(t)
	if got.Note != "before" || got.Entries != 4 || got.Added != 3 || got.State != workspace.BackupDone || !got.CreatedAt.Equal(ago(3*time.Hour)) || got.BegunAt == nil {
		t.Errorf("%+v", got)
	}
	for _, id := range []string{expired, of, uuid.NewString(), "", "'; --"} {
		_, err := e.HomeBackup(ctx, ann, w.ID, id)
		wantCode(t, err, workspace.CodeNotFound)
	}
	if before := must(e.HomeBackupBefore(ctx, ann, must(e.HomeBackup(ctx, ann, w.ID, same[0]))(t)))(t); before.ID != first {
		t.Errorf("before the failed one: %+v", before)
	}
	_, err := e.HomeBackupBefore(ctx, ann, got)
	wantCode(t, err, workspace.CodeNotFound)
	_, err = e.HomeBackup(ctx, eve, w.ID, first)
	wantCode(t, err, workspace.CodeForbidden)
	_, err = e.HomeBackupBefore(ctx, eve, got)
	wantCode(t, err, workspace.CodeForbidden)
	_, _, err = e.HomeBackups(ctx, eve, w.ID, postgres.Page{})
	wantCode(t, err, workspace.CodeForbidden)
	_, _, err = e.AnyHomeBackups(ctx, eve, w.ID, postgres.Page{})
	wantCode(t, err, workspace.CodeForbidden)
	_, _, err = e.HomeBackups(ctx, ann, w.ID, postgres.Page{Cursor: "nonsense"})
	wantCode(t, err, workspace.CodeInvalid)
	e.exec(`UPDATE users SET admin = true WHERE id = $1`, eve.UserID)
	if list := page(e.AnyHomeBackups(ctx, eve, w.ID, postgres.Page{}))(t); len(list) != len(want) {
		t.Errorf("an administrator sees %d backups", len(list))
	}
}

func TestRequestHomeBackup(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	ann, eve := e.user("ann"), e.user("eve")
	w := e.workspace(ann, state{"phase": "RUNNING", "desired_state": "RUNNING"})
	first := must(e.RequestHomeBackup(ctx, ann, w.ID, " before the upgrade "))(t)
	if first.State != workspace.BackupWaiting || first.Cause != workspace.BackupRequested || first.Note != "before the upgrade" || first.BegunAt != nil || first.Key != "" {
		t.Errorf("%+v", first)
	}
	for note, want := range map[string]string{"": first.Note, "upgrade": first.Note} {
		if again := must(e.RequestHomeBackup(ctx, ann, w.ID, note))(t); again.ID != first.ID || again.Note != want {
			t.Errorf("%q: %+v", note, again)
		}
	}
	if again := must(e.RequestHomeBackup(ctx, ann, w.ID, "tests pass"))(t); again.ID != first.ID || again.Note != "before the upgrade; tests pass" {
		t.Errorf("%+v", again)
	}
	if details := query[string](e, `SELECT details ->> 'note' || ' ' || (details ->> 'backup') FROM audit_log WHERE action = 'workspace.backup' ORDER BY id LIMIT 1`); details != "before the upgrade "+first.ID {
		t.Errorf("the audit log has %q", details)
	}
	for _, note := range []string{strings.Repeat("x", workspace.MaxBackupNote+1), strings.Repeat("y", workspace.MaxBackupNote), "a\x00b", "a\x1bb", "\xff"} {
		_, err := e.RequestHomeBackup(ctx, ann, w.ID, note)
		wantCode(t, err, workspace.CodeInvalid)
	}
	e.exec(`UPDATE home_backups SET cause = 'schedule' WHERE id = $1`, first.ID)
	if again := must(e.RequestHomeBackup(ctx, ann, w.ID, ""))(t); again.Cause != workspace.BackupRequested {
		t.Errorf("%+v", again)
	}
	e.exec(`UPDATE home_backups SET state = 'running' WHERE id = $1`, first.ID)
	_, err := e.RequestHomeBackup(ctx, ann, w.ID, "")
	wantCode(t, err, workspace.CodeOperationInProgress)
	e.exec(`UPDATE home_backups SET state = 'failed' WHERE id = $1`, first.ID)
	if next := must(e.RequestHomeBackup(ctx, ann, w.ID, ""))(t); next.ID == first.ID {
		t.Error("a backup that ended is requested again")
	}

	_, err = e.RequestHomeBackup(ctx, eve, w.ID, "")
	wantCode(t, err, workspace.CodeForbidden)
	_, err = e.RequestAnyHomeBackup(ctx, eve, w.ID, "")
	wantCode(t, err, workspace.CodeForbidden)
	e.exec(`UPDATE users SET admin = true WHERE id = $1`, eve.UserID)
	_, err = e.RequestHomeBackup(ctx, eve, w.ID, "")
	wantCode(t, err, workspace.CodeForbidden)
	must(e.RequestAnyHomeBackup(ctx, eve, w.ID, "by the administrator"))(t)
	if last := e.audited(string(w.ID)); last[len(last)-1] != "eve workspace.backup" {
		t.Errorf("audit log: %v", last)
	}
	for phase, code := range map[string]workspace.Code{"ARCHIVED": workspace.CodeNotRunning, "PENDING": workspace.CodeNotRunning, "STANDBY": "", "ERROR": ""} {
		s := state{"phase": phase}
		if phase == "ERROR" {
			s["error_reason"] = "Timeout"
		}
		_, err := e.RequestHomeBackup(ctx, ann, e.workspace(ann, s).ID, "")
		wantCode(t, err, code)
	}
	_, err = e.RequestHomeBackup(ctx, ann, e.workspace(ann, state{"deleted_at": time.Now()}).ID, "")
	wantCode(t, err, workspace.CodeNotFound)
}

// Requests at once get the same backup.
func TestRequestHomeBackupAtOnce(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ann := e.user("ann")
	w := e.workspace(ann, state{"phase": "STANDBY"})
	var ids sync.Map
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			b, err := e.RequestHomeBackup(t.Context(), ann, w.ID, "same")
			if err != nil {
				t.Error(err)
			}
			ids.Store(b.ID, b.Note)
		})
	}
	all.Wait()
	n := 0
	ids.Range(func(_, note any) bool { n++; return note == "same" })
	if n != 1 {
		t.Errorf("%d backups", n)
	}
}

// At the limit a user's requests are refused, and an administrator's are not.
func TestBackupSpace(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Limits: postgres.Limits{BackupBytes: 1000}})
	ctx := t.Context()
	ann, boss := e.user("ann"), e.admin("boss")
	w, other := e.workspace(ann, state{"phase": "STANDBY"}), e.workspace(ann, state{"phase": "STANDBY"})
	e.homeBackup(w.ID, state{"stored": 500, "size": 99})
	e.homeBackup(w.ID, state{"stored": 300, "expired_at": time.Now()})
	if s := must(e.BackupSpace(ctx, ann, w.ID))(t); s != (workspace.BackupSpace{Workspace: 899, Used: 899, Limit: 1000}) || s.Full() {
		t.Errorf("%+v", s)
	}
	_, err := e.BackupSpace(ctx, boss, w.ID)
	wantCode(t, err, workspace.CodeForbidden)
	must(e.RequestHomeBackup(ctx, ann, w.ID, ""))(t)
	e.homeBackup(other.ID, state{"stored": 101})
	if s := must(e.BackupSpace(ctx, ann, other.ID))(t); s != (workspace.BackupSpace{Workspace: 101, Used: 1000, Limit: 1000}) || !s.Full() {
		t.Errorf("%+v", s)
	}
	_, err = e.RequestHomeBackup(ctx, ann, other.ID, "")
	wantCode(t, err, workspace.CodeQuotaExceeded)
	if !strings.Contains(err.Error(), "1000 B") {
		t.Error(err)
	}
	must(e.RequestHomeBackup(ctx, ann, w.ID, "a note for the one that waits"))(t)
	must(e.RequestAnyHomeBackup(ctx, boss, other.ID, ""))(t)
}

// A backup gets another manifest once. The former one expires as a backup that is not listed.
func TestReplaceHomeBackup(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	ann := e.user("ann")
	w := e.workspace(ann, nil)
	h := postgres.NewHomeBackups(postgres.NewSession(e.conn()))
	id := e.homeBackup(w.ID, state{"note": "before", "size": 7, "entries": 3, "stored": 5})
	former := must(e.HomeBackup(ctx, ann, w.ID, id))(t)
	if replaced := must(h.Replace(ctx, id, former.Key, former.Key+"2", "e", 8))(t); !replaced {
		t.Error("not replaced")
	}
	if replaced := must(h.Replace(ctx, id, former.Key, former.Key+"3", "f", 9))(t); replaced {
		t.Error("replaced twice")
	}
	want := former
	want.Key, want.Digest, want.Size = former.Key+"2", "e", 8
	list, _, err := e.HomeBackups(ctx, ann, w.ID, postgres.Page{})
	if err != nil || len(list) != 1 || !reflect.DeepEqual(list[0], want) {
		t.Errorf("%v, %+v", err, list)
	}
	rows, _, _, err := h.Stored(ctx, w.ID, time.Hour, 0)
	if err != nil || len(rows) != 2 {
		t.Fatalf("%v, %+v", err, rows)
	}
	for _, r := range rows {
		if first := r.ID == id; r.Listed != first || r.Removable == first || (r.Key == former.Key) == first {
			t.Errorf("%+v", r)
		}
	}
}
