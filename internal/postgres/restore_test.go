package postgres_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// keptBackup is homeBackup with a size of 7 and 3 entries. It returns the key, too.
func (e *env) keptBackup(id workspace.ID) (backup, key string) {
	e.Helper()
	backup = e.homeBackup(id, state{"size": 7, "entries": 3})
	return backup, "installation/" + string(id) + "/backups/" + backup + ".manifest.zst"
}

func TestRequestRestore(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Limits: postgres.Limits{PerUser: 1}})
	ctx := t.Context()
	ann, eve := e.user("ann"), e.user("eve")
	w := e.workspace(ann, state{"phase": "STANDBY"})
	backup, key := e.keptBackup(w.ID)

	got := must(e.RequestRestore(ctx, ann, w.ID, backup, false))(t)
	if from := got.RestoreFrom; from == nil || from.Key != key || from.OpID != backup || from.Digest != "d" || from.Size != 7 || from.Entries != 3 ||
		got.DesiredState != workspace.DesiredStandby || got.PendingRequest() != "restore" {
		t.Fatalf("%+v", got)
	}
	if d := cmp.Diff([]string{"ann workspace.create", "ann workspace.restore"}, e.audited(string(w.ID))); d != "" {
		t.Error(d)
	}
	for name, id := range map[string]string{"another workspace's": first(e.keptBackup(e.workspace(ann, nil).ID)), "none": uuid.NewString(), "nonsense": "'; --"} {
		if _, err := e.RequestRestore(ctx, ann, w.ID, id, false); workspace.CodeOf(err) != workspace.CodeNotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
	for column, code := range map[string]workspace.Code{"expired_at = now()": workspace.CodeNotFound, "damage = 'a pack is missing'": workspace.CodeNotSupported, "state = 'failed'": workspace.CodeNotFound} {
		other, _ := e.keptBackup(w.ID)
		e.exec(`UPDATE home_backups SET `+column+` WHERE id = $1`, other)
		_, err := e.RequestRestore(ctx, ann, w.ID, other, false)
		wantCode(t, err, code)
	}
	_, err := e.RequestRestore(ctx, eve, w.ID, backup, false)
	wantCode(t, err, workspace.CodeForbidden)

	// The request for a state drops it.
	standby := workspace.DesiredStandby
	if got = must(e.PatchWorkspace(ctx, ann, w.ID, postgres.Patch{Desired: &standby}))(t); got.RestoreFrom != nil {
		t.Errorf("%+v", got.RestoreFrom)
	}
	// A start needs a slot.
	running := e.workspace(ann, state{"phase": "RUNNING", "desired_state": "RUNNING"})
	_, err = e.RequestRestore(ctx, ann, w.ID, backup, true)
	wantCode(t, err, workspace.CodeLimitExceeded)
	of, _ := e.keptBackup(running.ID)
	if got = must(e.RequestRestore(ctx, ann, running.ID, of, false))(t); got.DesiredState != workspace.DesiredRunning || got.RestoreFrom == nil {
		t.Errorf("a running one: %+v", got)
	}
}

// A backup replaces a lost home as an archive does.
func TestRecoverFromBackup(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ann := e.user("ann")
	w := e.workspace(ann, state{"phase": "ERROR", "error_reason": "DataLost"})
	backup, key := e.keptBackup(w.ID)
	if got := must(e.RequestRecoverArchive(t.Context(), ann, w.ID, backup))(t); got.RecoverFrom == nil || got.RecoverFrom.Key != key || got.RecoverFrom.OpID != backup {
		t.Errorf("%+v", got.RecoverFrom)
	}
}

func first(s, _ string) string { return s }

// The controller ends exactly the restore that it saw, with an audit entry of its own.
func TestControllerEndsRestore(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	ann := e.user("ann")
	w := e.workspace(ann, state{"phase": "ARCHIVED", "archive_key": "before"})
	one, key := e.keptBackup(w.ID)
	two, _ := e.keptBackup(w.ID)
	c := postgres.NewController(postgres.NewSession(e.conn()))
	seen := must(e.RequestRestore(ctx, ann, w.ID, one, false))(t)
	next := seen
	next.ArchiveKey, next.ArchiveDigest, next.ArchiveSize = key, "d", 7
	change := postgres.Change{Seen: seen, Next: next, Claim: true, ClearRestore: true,
		Audit: &lifecycle.Entry{Action: lifecycle.AuditRestoreDone, Details: map[string]any{"backup": one}}}

	must(e.RequestRestore(ctx, ann, w.ID, two, false))(t)
	if landed := must(c.Apply(ctx, []postgres.Change{change}))(t); landed[0] || e.read(w.ID).RestoreFrom.OpID != two {
		t.Errorf("a newer request is gone: %v", landed)
	}
	change.Seen = must(e.RequestRestore(ctx, ann, w.ID, one, false))(t)
	if landed := must(c.Apply(ctx, []postgres.Change{change}))(t); !landed[0] {
		t.Error("did not land")
	}
	if got := e.read(w.ID); got.RestoreFrom != nil || got.ArchiveKey != key || got.ArchiveSize != 7 {
		t.Errorf("%+v", got)
	}
	if d := cmp.Diff([]string{"ann workspace.create", "ann workspace.restore", "ann workspace.restore", "ann workspace.restore", "system workspace.restore_done"}, e.audited(string(w.ID))); d != "" {
		t.Error(d)
	}
}

func TestFork(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Limits: postgres.Limits{PerUser: 1, Workspaces: 6}})
	ctx := t.Context()
	ann, eve := e.user("ann"), e.user("eve")
	n := newWorkspace("one", workspace.DesiredStandby)
	n.Env, n.Memo, n.TimeZone, n.BackupKeep = map[string]string{"A": "1"}, "mine", "Asia/Seoul", "3d"
	w := must(e.CreateWorkspace(ctx, ann, n))(t)
	backup, key := e.keptBackup(w.ID)
	taken := newWorkspace("one 2", workspace.DesiredStandby)
	must(e.CreateWorkspace(ctx, ann, taken))(t)

	made := must(e.Fork(ctx, ann, w.ID, api.Fork{Backup: backup, Count: 2}))(t)
	names := []string{}
	for _, f := range made {
		names = append(names, f.Name)
		if f.ArchiveKey != key || f.ArchiveDigest != "d" || f.ArchiveSize != 7 || f.DesiredState != workspace.DesiredArchived || f.OwnerID != ann.UserID ||
			f.Env["A"] != "1" || f.Memo != "" || f.TimeZone != "Asia/Seoul" || f.BackupKeep != "3d" || f.ImageRef != w.ImageRef || f.Home.State != workspace.HomeAbsent {
			t.Errorf("%+v", f)
		}
		if d := cmp.Diff([]string{"ann workspace.fork"}, e.audited(string(f.ID))); d != "" {
			t.Error(d)
		}
	}
	if d := cmp.Diff([]string{"one 3", "one 4"}, names); d != "" {
		t.Error(d)
	}
	_, err := e.Fork(ctx, ann, w.ID, api.Fork{Backup: backup, Name: "one 3"})
	wantCode(t, err, workspace.CodeNameTaken)
	_, err = e.Fork(ctx, ann, w.ID, api.Fork{Backup: backup, Count: 21})
	wantCode(t, err, workspace.CodeInvalid)
	_, err = e.Fork(ctx, ann, w.ID, api.Fork{Backup: uuid.NewString()})
	wantCode(t, err, workspace.CodeNotFound)
	_, err = e.Fork(ctx, eve, w.ID, api.Fork{Backup: backup})
	wantCode(t, err, workspace.CodeForbidden)

	// Without a backup only from the archive of an archived workspace.
	_, err = e.Fork(ctx, ann, w.ID, api.Fork{})
	wantCode(t, err, workspace.CodeInvalid)

	// All of them or none.
	_, err = e.Fork(ctx, ann, w.ID, api.Fork{Backup: backup, Count: 3})
	wantCode(t, err, workspace.CodeQuotaExceeded)
	_, err = e.Fork(ctx, ann, w.ID, api.Fork{Backup: backup, Count: 2, Start: true})
	wantCode(t, err, workspace.CodeLimitExceeded)
	if n := query[int](e, `SELECT count(*) FROM workspaces`); n != 4 {
		t.Errorf("%d workspaces", n)
	}
	started := must(e.Fork(ctx, ann, w.ID, api.Fork{Backup: backup, Name: "mine", Start: true}))(t)
	if len(started) != 1 || started[0].Name != "mine" || started[0].DesiredState != workspace.DesiredRunning || time.Since(started[0].CreatedAt) > time.Hour {
		t.Errorf("%+v", started)
	}
}
