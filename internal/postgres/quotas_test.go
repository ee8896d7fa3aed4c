package postgres_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

func TestWorkspaceQuota(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Limits: postgres.Limits{Workspaces: 3}})
	ann, bob := e.user("ann"), e.user("bob")
	create := func(c workspace.Caller, name string) (workspace.Workspace, error) {
		return e.CreateWorkspace(t.Context(), c, newWorkspace(name, workspace.DesiredStandby))
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var made []workspace.Workspace
	for i := range 12 {
		wg.Go(func() {
			w, err := create(ann, fmt.Sprint("w", i))
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				made = append(made, w)
			} else if workspace.CodeOf(err) != workspace.CodeQuotaExceeded {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(made) != 3 {
		t.Fatalf("%d of 12 concurrent creations succeeded, want 3", len(made))
	}
	if q := must(e.Quotas(t.Context(), ann))(t); q.Workspaces != 3 || q.MaxWorkspaces != 3 {
		t.Errorf("quotas %+v", q)
	}
	if _, err := create(bob, "one"); err != nil {
		t.Errorf("another user: %v", err)
	}
	// A deletion makes room, but not in a loop.
	created := 0
	for i := range 10 {
		must(e.DeleteWorkspace(t.Context(), ann, made[len(made)-1].ID, true))(t)
		w, err := create(ann, fmt.Sprint("again", i))
		if err != nil {
			wantCode(t, err, workspace.CodeQuotaExceeded)
			break
		}
		made = append(made, w)
		created++
	}
	if created != 3 {
		t.Errorf("%d workspaces could be created after deletions, want 3", created)
	}
}

func TestTokenQuota(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Limits: postgres.Limits{Tokens: 3}})
	ann := e.user("ann")
	n := 0
	create := func(expires *time.Time) error {
		n++
		_, err := e.CreateToken(t.Context(), ann, postgres.Token{Name: "ci", Hash: fmt.Appendf(nil, "%032d", n), ExpiresAt: expires})
		return err
	}
	soon := time.Now().Add(time.Hour)
	for range 3 {
		if err := create(&soon); err != nil {
			t.Fatal(err)
		}
	}
	wantCode(t, create(nil), workspace.CodeQuotaExceeded)
	e.exec(`UPDATE api_tokens SET expires_at = now() - interval '1 second' WHERE hash = $1`, fmt.Appendf(nil, "%032d", 1))
	if err := create(nil); err != nil {
		t.Errorf("with an expired token: %v", err)
	}
	wantCode(t, create(nil), workspace.CodeQuotaExceeded)
	if q := must(e.Quotas(t.Context(), ann))(t); q.Tokens != 3 || q.MaxTokens != 3 {
		t.Errorf("quotas %+v", q)
	}
}

// usedBytes is a stopped workspace that uses so many bytes.
func usedBytes(n int64) state {
	return state{"phase": "STANDBY", "home_ctx": `{"state": "live"}`, "home_bytes": n, "conditions": noContainer}
}

// Of an owner at the limit of bytes, a workspace starts to free space: once until its home is
// smaller. Opening it, a plain start and a new workspace are refused.
func TestStartToFreeSpaceAtLimitOfBytes(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Limits: postgres.Limits{Bytes: 20 << 20}})
	ctx := t.Context()
	ann := e.user("ann")
	w := e.workspace(ann, usedBytes(21<<20))
	start := func(free bool) (workspace.Workspace, error) {
		return e.PatchWorkspace(ctx, ann, w.ID, postgres.Patch{Desired: ptr(workspace.DesiredRunning), FreeSpace: free})
	}
	refused := func(err error, may bool) {
		t.Helper()
		wantCode(t, err, workspace.CodeQuotaExceeded)
		if d := asError(t, err).Details; d["limit_type"] != "bytes" || d["free_space"] != may {
			t.Errorf("%+v, want free_space %v", d, may)
		}
	}
	stop := func(bytes int64) { e.set(w.ID, state{"desired_state": "STANDBY", "home_bytes": bytes}) }
	_, err := start(false)
	refused(err, true)
	refused(e.MayRun(ctx, ann, w.ID), true)
	refused(second(e.Wake(ctx, ann, w.ID)), true)
	wantCode(t, second(e.CreateWorkspace(ctx, ann, newWorkspace("new", workspace.DesiredRunning))), workspace.CodeQuotaExceeded)
	if freed := must(start(true))(t); freed.DesiredState != workspace.DesiredRunning || freed.FreeingAt == nil || freed.FreeingFrom != 21<<20 {
		t.Errorf("%+v", freed)
	}
	stop(21 << 20)
	_, err = start(true)
	refused(err, false)
	refused(e.MayRun(ctx, ann, w.ID), false)
	stop(20 << 20) // some files were deleted
	must(start(true))(t)
	stop(20<<20 - 1)
	must(start(false))(t)
}

// The server's own archives do not bring an owner over the limit of bytes: an archive counts while
// it is the home. Over the limit, an archived workspace is restored and started to free space.
func TestArchivesAtLimitOfBytes(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Limits: postgres.Limits{Bytes: 20}})
	ctx := t.Context()
	ann := e.user("ann")
	w := e.workspace(ann, usedBytes(12))
	e.set(w.ID, state{"archive_key": "k", "archive_size": 9, "archives_bytes": 18})
	start := func(free bool) error {
		return second(e.PatchWorkspace(ctx, ann, w.ID, postgres.Patch{Desired: ptr(workspace.DesiredRunning), FreeSpace: free}))
	}
	used := func(name string, want int64) {
		t.Helper()
		if q := must(e.Quotas(ctx, ann))(t); q.Bytes != want {
			t.Errorf("%s: %d bytes, want %d", name, q.Bytes, want)
		}
	}
	used("restored", 12)
	if err := start(false); err != nil {
		t.Errorf("restored: %v", err)
	}
	e.set(w.ID, state{"phase": "ARCHIVED", "desired_state": "ARCHIVED", "home_ctx": `{"state": "absent"}`})
	used("archived", 9) // the size of the home was measured before
	e.set(w.ID, state{"home_bytes": 0})
	used("archived and measured", 9)
	e.set(w.ID, state{"phase": "STANDBY", "home_ctx": `{"state": "live"}`})
	used("restored and not measured", 9)

	e.set(w.ID, state{"phase": "ARCHIVED", "desired_state": "ARCHIVED", "home_ctx": `{"state": "absent"}`, "archive_size": 25})
	wantCode(t, start(false), workspace.CodeQuotaExceeded)
	must(e.PatchWorkspace(ctx, ann, w.ID, postgres.Patch{Desired: ptr(workspace.DesiredStandby)}))(t)
	e.set(w.ID, state{"desired_state": "ARCHIVED"})
	if err := start(true); err != nil {
		t.Errorf("restored to free space: %v", err)
	}
	// The size of its home is known only afterwards, so the next start to free space compares none.
	e.set(w.ID, state{"phase": "STANDBY", "desired_state": "STANDBY", "home_ctx": `{"state": "live"}`, "home_bytes": 30})
	if err := start(true); err != nil {
		t.Errorf("once more, of the restored home: %v", err)
	}
	e.set(w.ID, state{"desired_state": "STANDBY"})
	wantCode(t, start(true), workspace.CodeQuotaExceeded)
}

// At the limit of bytes a workspace that runs goes on, and one in ERROR recovers; one that was
// never started has nothing to free.
func TestLimitOfBytesEndsNoUse(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Limits: postgres.Limits{Bytes: 20}})
	ctx := t.Context()
	ann := e.user("ann")
	idle := e.workspace(ann, state{"phase": "RUNNING", "desired_cause": "idle", "conditions": container})
	failed := e.workspace(ann, state{"phase": "ERROR", "desired_state": "RUNNING", "error_reason": "Timeout"})
	fresh := e.workspace(ann, nil)
	e.set(idle.ID, state{"home_bytes": 30})
	if w, err := e.Stay(ctx, ann, idle.ID); err != nil || w.DesiredState != workspace.DesiredRunning {
		t.Errorf("stay: %s, %v", w.DesiredState, err)
	}
	if _, err := e.RequestRecover(ctx, ann, failed.ID, workspace.RecoverAfresh); err != nil {
		t.Errorf("recover: %v", err)
	}
	_, err := e.PatchWorkspace(ctx, ann, fresh.ID, postgres.Patch{Desired: ptr(workspace.DesiredRunning), FreeSpace: true})
	wantCode(t, err, workspace.CodeQuotaExceeded)
	if free, offered := asError(t, err).Details["free_space"]; offered {
		t.Errorf("free_space is %v", free)
	}
}

// Old entries of the audit log are removed in batches, with an entry about each; the others stay.
func TestAuditRetention(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ann := e.user("ann")
	aged := func(age string) {
		t.Helper()
		e.exec(`ALTER TABLE audit_log DISABLE TRIGGER USER`)
		e.exec(`UPDATE audit_log SET at = now() - $1::interval WHERE action IN ('login', 'user.create')`, age)
		e.exec(`ALTER TABLE audit_log ENABLE TRIGGER USER`)
	}
	e.exec(`INSERT INTO audit_log (username, action) SELECT 'old', 'login' FROM generate_series(1, 24)`)
	aged("2 days")
	for _, want := range []int64{10, 10, 5, 0} {
		if n := must(e.DeleteOldAudit(t.Context(), 24*time.Hour, 10))(t); n != want {
			t.Errorf("%d entries removed, want %d", n, want)
		}
	}
	if n := query[int](e, `SELECT sum((details ->> 'entries')::int) FROM audit_log WHERE action = 'audit.remove' AND username = 'system'`); n != 25 {
		t.Errorf("%d removed entries are recorded", n)
	}
	e.exec(`INSERT INTO audit_log (username, action) VALUES ('old', 'login')`)
	aged("25 hours")
	if n := must(e.DeleteOldAudit(t.Context(), 26*time.Hour, 10))(t); n != 0 {
		t.Errorf("%d entries removed that are kept", n)
	}
	if n := must(e.DeleteOldAudit(t.Context(), 24*time.Hour, 10))(t); n != 1 {
		t.Errorf("%d entries removed: one of %s's is kept for ever", n, ann.Username)
	}
}

// The database's role can only add to the audit log: neither change an entry, nor remove a young
// one, nor give it another time.
func TestAuditLogIsAppendOnly(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	e.user("ann")
	for _, sql := range []string{
		`UPDATE audit_log SET username = 'eve'`, `UPDATE audit_log SET at = now() - interval '1 year'`, `DELETE FROM audit_log`, `TRUNCATE audit_log`,
		`INSERT INTO audit_log (username, action) VALUES ('x', 'y') ON CONFLICT DO NOTHING RETURNING 1/0`,
	} {
		if _, err := e.raw.Exec(t.Context(), sql); err == nil {
			t.Errorf("%s is allowed", sql)
		}
	}
	e.exec(`INSERT INTO audit_log (at, username, action) VALUES (now() - interval '2 years', 'x', 'antedated')`)
	if age := query[float64](e, `SELECT extract(epoch FROM clock_timestamp() - at)::float8 FROM audit_log WHERE action = 'antedated'`); age > 3600 {
		t.Errorf("an entry is antedated by %v s", age)
	}
	if n := query[int](e, `SELECT count(*) FROM audit_log WHERE username = 'ann'`); n == 0 {
		t.Error("an entry is gone")
	}
}
