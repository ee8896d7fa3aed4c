package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// full returns w with all columns of the controller set.
func full(w workspace.Workspace) workspace.Workspace {
	at := soon(0)
	w.Home = workspace.Home{State: workspace.HomeLive, Claim: uuid.NewString(), Marker: "m"}
	w.Conditions = workspace.Conditions{}.With(workspace.ContainerReady, true, workspace.ReasonContainerReady, "", at).
		With(workspace.Healthy, true, workspace.ReasonHealthy, "", at)
	w.Phase = workspace.PhaseRunning
	w.Operation, w.OpID, w.OpStartedAt = workspace.OpStopping, uuid.NewString(), &at
	w.ArchiveOpID, w.ArchiveKey, w.ArchiveDigest, w.ArchiveSize = uuid.NewString(), "k", "d", 5
	w.ErrorReason, w.ErrorMessage, w.ErrorCount, w.RetryAt = workspace.ErrActionFailed, "e", 2, &at
	w.StopReason, w.Progress = "idle", &workspace.Progress{Step: "pull", Done: 1, Total: 2, Entries: 3, EntriesTotal: 4, Rate: 5, SecondsLeft: 6}
	return w
}

func apply(t testing.TB, c *postgres.Controller, changes ...postgres.Change) []bool {
	t.Helper()
	return must(c.Apply(t.Context(), changes))(t)
}

func TestCandidates(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	c := postgres.NewController(postgres.NewSession(e.conn()))
	ann := e.user("ann")
	n := newWorkspace("one", workspace.DesiredRunning)
	n.Description, n.Memo, n.StandbyTTL = "d", "m", ptr(1)
	one := must(e.CreateWorkspace(t.Context(), ann, n))(t)
	apply(t, c, postgres.Change{Seen: one, Next: full(one)})
	requests := soon(time.Minute)
	e.set(one.ID, state{
		"recover_requested_at": requests, "recover_action": "archive", "cancel_requested_at": requests,
		"recover_archive":         workspace.Archive{Key: "k", WorkspaceID: one.ID, OpID: "o", Digest: "d", Size: 1, Entries: 2, CreatedAt: requests, Found: true},
		"force_stop_requested_at": requests, "next_desired_state": "DELETED",
	})
	deleted := e.workspace(e.user("bob"), state{"phase": "DELETING", "deleted_at": time.Now()})
	e.workspace(ann, state{"phase": "DELETED", "deleted_at": time.Now()})

	got := must(c.Candidates(t.Context()))(t)
	var want []*workspace.Workspace
	for _, id := range []workspace.ID{one.ID, deleted.ID} {
		w := e.read(id)
		w.Description, w.Memo, w.LastAccessAt, w.LastAccess, w.KeepAwakeTil = "", "", nil, "", nil
		w.StandbyTTL, w.ArchiveTTL, w.UpdatedAt, w.GraceBegan = nil, nil, time.Time{}, nil
		want = append(want, &w)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if got[0].CreatedAt.Location() != time.UTC {
		t.Error("times are not in UTC")
	}
}

// After any change, Candidates returns the current rows, as a new Controller does.
func TestCandidatesFollowChanges(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	conn := e.conn()
	c := postgres.NewController(postgres.NewSession(e.conn()))
	ann := e.user("ann")
	r := rand.New(rand.NewPCG(3, 3))
	var ids []workspace.ID
	for range 40 {
		for range r.IntN(4) {
			switch n := r.IntN(8); {
			case n < 3 || len(ids) == 0:
				ids = append(ids, e.workspace(ann, nil).ID)
			case n == 3:
				i := r.IntN(len(ids))
				e.exec(`DELETE FROM workspaces WHERE id = $1`, ids[i])
				ids = slices.Delete(ids, i, i+1)
			case n == 4:
				e.set(ids[r.IntN(len(ids))], state{"phase": "DELETED", "deleted_at": time.Now()})
			case n == 5:
				e.set(ids[r.IntN(len(ids))], state{"phase": "DELETING", "deleted_at": time.Now()})
			default:
				e.set(ids[r.IntN(len(ids))], state{"error_count": r.IntN(1000), "conditions": container})
			}
		}
		got, want := must(c.Candidates(t.Context()))(t), must(postgres.NewController(postgres.NewSession(conn)).Candidates(t.Context()))(t)
		if d := cmp.Diff(want, got); d != "" {
			t.Fatal(d)
		}
		if !slices.IsSortedFunc(got, func(a, b *workspace.Workspace) int { return strings.Compare(string(a.ID), string(b.ID)) }) {
			t.Fatal("not by id")
		}
	}
}

func TestApplyWritesControllerColumns(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	c := postgres.NewController(postgres.NewSession(e.conn()))
	ann := e.user("ann")
	w := e.workspace(ann, nil)
	next := full(w)
	// Columns of the API layer are not written through the controller.
	theirs := next
	theirs.Name, theirs.DesiredState, theirs.OwnerID, theirs.Memo, theirs.StandbyTTL = "x", workspace.DesiredArchived, e.user("eve").UserID, "x", ptr(3)
	theirs.DeletedAt, theirs.LastAccessAt, theirs.NextDesired = ptr(soon(0)), ptr(soon(0)), workspace.DesiredRunning
	if landed := apply(t, c, postgres.Change{Seen: w, Next: theirs, Claim: true}); !landed[0] {
		t.Fatal("did not land")
	}
	got := e.read(w.ID)
	if !got.PhaseChangedAt.After(w.PhaseChangedAt) || !got.UpdatedAt.After(w.UpdatedAt) {
		t.Error("phase_changed_at or updated_at did not change")
	}
	next.PhaseChangedAt, next.UpdatedAt = got.PhaseChangedAt, got.UpdatedAt
	if d := cmp.Diff(next, got); d != "" {
		t.Error(d)
	}
	if s := query[string](e, `SELECT concat_ws(' ', observed_at > created_at, instance_backend, home_store_key) FROM workspaces WHERE id = $1`, w.ID); s != "t local-docker "+w.ID.VolumeName() {
		t.Error(s)
	}

	// All columns can be cleared again.
	back := w
	if landed := apply(t, c, postgres.Change{Seen: got, Next: back, Claim: true}); !landed[0] {
		t.Fatal("did not land")
	}
	now := e.read(w.ID)
	back.PhaseChangedAt, back.UpdatedAt = now.PhaseChangedAt, now.UpdatedAt
	if d := cmp.Diff(back, now); d != "" {
		t.Error(d)
	}

	// Only different columns are written: those that an executor wrote in the meantime stay.
	stale := e.read(w.ID)
	e.set(w.ID, state{"archive_key": "written meanwhile"})
	next = stale
	next.StopReason = "idle"
	apply(t, c, postgres.Change{Seen: stale, Next: next})
	if got := e.read(w.ID); got.ArchiveKey != "written meanwhile" || got.StopReason != "idle" || !got.PhaseChangedAt.Equal(stale.PhaseChangedAt) {
		t.Errorf("%+v", got)
	}
	// Progress alone does not change updated_at.
	stale = e.read(w.ID)
	next = stale
	next.Progress = &workspace.Progress{Step: "s"}
	apply(t, c, postgres.Change{Seen: stale, Next: next})
	if got := e.read(w.ID); !got.UpdatedAt.Equal(stale.UpdatedAt) || got.Progress == nil {
		t.Errorf("%+v", got)
	}
	// A change with nothing to write always lands.
	before := e.row(w.ID)
	stale = e.read(w.ID)
	if landed := apply(t, c, postgres.Change{Seen: stale, Next: stale, Claim: true, ClearCancel: true}); !landed[0] || e.row(w.ID) != before {
		t.Error("an empty change")
	}
	if landed := apply(t, c); len(landed) != 0 {
		t.Error(landed)
	}
}

// A claim is written only if what the decision used has not changed.
func TestApplyCompares(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	c := postgres.NewController(postgres.NewSession(e.conn()))
	ann := e.user("ann")
	at := soon(0)
	for _, x := range []struct {
		name   string
		before state
		change state // a change between the read and the write
		claim  bool  // a claim lands nevertheless
		other  bool  // any other change lands nevertheless
	}{
		{"nothing", nil, nil, true, true},
		{"operation", nil, state{"operation": "STARTING"}, false, false},
		{"operation, the same with another claim", state{"operation": "STARTING"}, state{"op_id": uuid.NewString()}, false, false},
		{"operation ended", state{"operation": "STARTING"}, state{"operation": "NONE"}, false, false},
		{"desired_state", nil, state{"desired_state": "RUNNING"}, false, true},
		{"next_desired_state", nil, state{"next_desired_state": "RUNNING"}, false, true},
		{"image_ref", nil, state{"image_ref": "another"}, false, true},
		{"deleted_at", nil, state{"deleted_at": at}, false, true},
		{"deleted_at cleared", state{"deleted_at": at}, state{"deleted_at": nil}, false, true},
		{"deleted_at again", state{"deleted_at": at}, state{"deleted_at": at.Add(time.Microsecond)}, false, true},
		{"error_reason", nil, state{"error_reason": "Timeout"}, false, true},
		{"archive_key", nil, state{"archive_key": "k"}, false, true},
		{"archive_key cleared", state{"archive_key": "k"}, state{"archive_key": nil}, false, true},
		{"home_ctx", nil, state{"home_ctx": `{"state": "live", "claim": "c"}`}, false, true},
		{"home_ctx, its claim", state{"home_ctx": `{"state": "live", "claim": "c"}`}, state{"home_ctx": `{"state": "live", "claim": "d"}`}, false, true},
		{"retry_at", nil, state{"retry_at": at}, false, true},
		{"recover_requested_at", nil, state{"recover_requested_at": at, "recover_action": "afresh"}, false, true},
		{"recover_action", state{"recover_requested_at": at, "recover_action": "afresh"}, state{"recover_action": "empty"}, false, true},
		{"recover_archive", state{"recover_requested_at": at, "recover_action": "archive", "recover_archive": `{"key": "a"}`}, state{"recover_archive": `{"key": "b"}`}, false, true},
		{"cancel_requested_at", nil, state{"cancel_requested_at": at}, false, true},
		{"force_stop_requested_at", nil, state{"force_stop_requested_at": at}, false, true},
		{"columns of the API layer", nil, state{"name": "renamed", "memo": "m", "last_access_at": at}, true, true},
	} {
		for _, claim := range []bool{true, false} {
			w := e.workspace(ann, x.before)
			next := w
			next.StopReason, next.ErrorCount = "decided", 1
			e.set(w.ID, x.change)
			before := e.row(w.ID)
			landed := apply(t, c, postgres.Change{Seen: w, Next: next, Claim: claim})[0]
			want := x.other
			if claim {
				want = x.claim
			}
			if wrote := before != e.row(w.ID); landed != want || wrote != want {
				t.Errorf("%s changed, claim %v: landed %v, wrote %v, want %v", x.name, claim, landed, wrote, want)
			}
			e.exec(`DELETE FROM workspaces WHERE id = $1`, w.ID)
		}
	}
	// An executor adds to the home, which a change of the home must not revert.
	w := e.workspace(ann, state{"home_ctx": `{"state": "filling", "claim": "c"}`})
	next := w
	next.Home.State = workspace.HomeLive
	e.set(w.ID, state{"home_ctx": `{"state": "filling", "claim": "c", "from_image": true}`})
	if apply(t, c, postgres.Change{Seen: w, Next: next})[0] {
		t.Error("a home that has changed was overwritten")
	}
	e.exec(`DELETE FROM workspaces WHERE id = $1`, w.ID)
	next = w
	next.ErrorCount = 1
	if apply(t, c, postgres.Change{Seen: w, Next: next})[0] {
		t.Error("landed on a row that does not exist")
	}
}

// A deletion that was undone in between is not completed: the controller would never read the
// row again.
func TestApplyKeepsUndeletedWorkspace(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	c := postgres.NewController(postgres.NewSession(e.conn()))
	w := e.workspace(e.user("ann"), state{"phase": "DELETING", "deleted_at": time.Now()})
	next := w
	next.Phase = workspace.PhaseDeleted
	e.set(w.ID, state{"deleted_at": nil})
	if apply(t, c, postgres.Change{Seen: w, Next: next})[0] {
		t.Fatal("buried")
	}
	e.set(w.ID, state{"deleted_at": *w.DeletedAt})
	if !apply(t, c, postgres.Change{Seen: w, Next: next})[0] {
		t.Fatal("not deleted")
	}
}

// A request is cleared if it is the one that was read; a later one stays.
func TestApplyClearsTheRequestItSaw(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	c := postgres.NewController(postgres.NewSession(e.conn()))
	ann := e.user("ann")
	first, second := soon(0), soon(time.Second)
	all := state{"recover_requested_at": first, "recover_action": "archive", "recover_archive": `{"key": "k"}`, "cancel_requested_at": first, "force_stop_requested_at": first}
	left := func(id workspace.ID) string {
		return query[string](e, `SELECT concat_ws(' ', CASE WHEN recover_requested_at IS NOT NULL THEN 'recover:' || recover_action END,
			CASE WHEN cancel_requested_at IS NOT NULL THEN 'cancel' END, CASE WHEN force_stop_requested_at IS NOT NULL THEN 'stop' END)
			FROM workspaces WHERE id = $1`, id)
	}
	for _, x := range []struct {
		name   string
		clear  postgres.Change
		change state
		want   string
	}{
		{"recover", postgres.Change{ClearRecover: true}, nil, "cancel stop"},
		{"cancel", postgres.Change{ClearCancel: true}, nil, "recover:archive stop"},
		{"stop", postgres.Change{ClearForceStop: true}, nil, "recover:archive cancel"},
		{"all", postgres.Change{ClearRecover: true, ClearCancel: true, ClearForceStop: true}, nil, ""},
		{"requested again", postgres.Change{ClearRecover: true, ClearCancel: true, ClearForceStop: true},
			state{"recover_requested_at": second, "recover_action": "empty", "recover_archive": nil, "cancel_requested_at": second, "force_stop_requested_at": second}, "recover:empty cancel stop"},
	} {
		w := e.workspace(ann, all)
		e.set(w.ID, x.change)
		x.clear.Seen, x.clear.Next = w, w
		x.clear.Next.StopReason = "s"
		if !apply(t, c, x.clear)[0] {
			t.Errorf("%s: did not land", x.name)
		}
		if got := left(w.ID); got != x.want {
			t.Errorf("%s: left %q, want %q", x.name, got, x.want)
		}
	}
	// A request that was not there at the read is not cleared.
	w := e.workspace(ann, nil)
	e.set(w.ID, all)
	apply(t, c, postgres.Change{Seen: w, Next: w, ClearRecover: true, ClearCancel: true, ClearForceStop: true})
	if got := left(w.ID); got != "recover:archive cancel stop" {
		t.Errorf("left %q", got)
	}
}

// A row that the database refuses delays no other, and messages of Docker with any bytes can be
// stored.
func TestApplyRefused(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	c := postgres.NewController(postgres.NewSession(e.conn()))
	ann := e.user("ann")
	good, bad, odd := e.workspace(ann, nil), e.workspace(ann, nil), e.workspace(ann, nil)
	next := func(w workspace.Workspace) workspace.Workspace { w.ErrorCount = 1; return w }
	broken := next(bad)
	broken.Phase, broken.Operation, broken.OpID = workspace.PhaseError, workspace.OpStarting, uuid.NewString()
	strange := next(odd)
	strange.ErrorMessage, strange.StopReason = "a\x00b\xffc", "\x00"
	strange.Conditions = workspace.Conditions{}.With(workspace.Healthy, false, "R", "nul \x00 \\u0000 \xff", soon(0))
	strange.Progress = &workspace.Progress{Step: "\x00s"}

	landed, err := c.Apply(t.Context(), []postgres.Change{{Seen: odd, Next: strange}, {Seen: bad, Next: broken}, {Seen: good, Next: next(good)}})
	var refused *postgres.Refused
	if !errors.As(err, &refused) || len(refused.Rows) != 1 || refused.Rows[bad.ID] == nil || !strings.Contains(err.Error(), string(bad.ID)) {
		t.Fatalf("got %v", err)
	}
	if d := cmp.Diff([]bool{true, false, true}, landed); d != "" {
		t.Error(d)
	}
	if got := e.read(bad.ID); got.ErrorCount != 0 || got.Phase != bad.Phase {
		t.Errorf("%+v", got)
	}
	got := e.read(odd.ID)
	if got.ErrorMessage != "ab\uFFFDc" || got.StopReason != "" || got.Progress.Step != "s" {
		t.Errorf("%+v", got)
	}
	if m := got.Conditions.Get(workspace.Healthy).Message; m != "nul  \\u0000 \uFFFD" {
		t.Errorf("message %q", m)
	}
}

// More rows than one transaction takes, in random order.
func TestApplyManyRows(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	c := postgres.NewController(postgres.NewSession(e.conn()))
	fill(e, 1100)
	rows := must(c.Candidates(t.Context()))(t)
	var changes []postgres.Change
	for i := len(rows) - 1; i >= 0; i-- {
		seen, next := *rows[i], *rows[i]
		next.Phase, next.ErrorCount = workspace.PhaseStandby, i
		if i%7 == 0 {
			seen.OpID, seen.Operation = uuid.NewString(), workspace.OpStarting // not the row's
		}
		changes = append(changes, postgres.Change{Seen: seen, Next: next, Claim: i%2 == 0})
	}
	for i, ok := range apply(t, c, changes...) {
		if n := len(rows) - 1 - i; ok != (n%7 != 0) {
			t.Fatalf("row %d: landed %v", n, ok)
		}
	}
	for i, w := range must(c.Candidates(t.Context()))(t) {
		if want := i; i%7 != 0 && w.ErrorCount != want {
			t.Fatalf("row %d has %d", i, w.ErrorCount)
		}
	}
}

// fill creates n workspaces in the usual mix of states.
func fill(e *env, n int) {
	e.Helper()
	owner := e.user("owner of many").UserID
	e.exec(`
		INSERT INTO workspaces (id, owner_user_id, name, image_ref, storage_backend, desired_state, home_ctx, conditions, phase)
		SELECT gen_random_uuid(), $1, 'w' || i, 'codehub/workspace:latest', 'docker-volume', 'STANDBY',
			jsonb_build_object('state', 'live', 'claim', gen_random_uuid()),
			(SELECT jsonb_object_agg(c, jsonb_build_object('status', 'True', 'reason', 'Ready', 'message', '', 'last_transition_time', now()))
				FROM unnest(ARRAY['storage.volume_ready', 'storage.archive_ready', 'infra.container_ready', 'policy.healthy']) c),
			'STANDBY'
		FROM generate_series(1, $2) i`, owner, n)
}

// A leader without its session cannot write.
func TestControllerWithoutSession(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	conn := e.conn()
	c := postgres.NewController(postgres.NewSession(conn))
	w := e.workspace(e.user("ann"), nil)
	e.exec(`SELECT pg_terminate_backend($1)`, conn.PgConn().PID())
	next := w
	next.ErrorCount = 1
	if landed, err := c.Apply(t.Context(), []postgres.Change{{Seen: w, Next: next}}); err == nil || landed != nil {
		t.Errorf("landed %v, %v", landed, err)
	}
	if _, err := c.Candidates(t.Context()); err == nil {
		t.Error("read without a session")
	}
	if got := e.read(w.ID); got.ErrorCount != 0 {
		t.Error("written without a session")
	}
}

// All users of the session take turns.
func TestControllerTakesTurns(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	c := postgres.NewController(postgres.NewSession(e.conn()))
	fill(e, 20)
	done := make(chan error)
	const each = 20
	for range each {
		go func() {
			_, err := c.Candidates(t.Context())
			done <- err
		}()
		go func() {
			done <- c.Do(t.Context(), func(ctx context.Context, conn *pgx.Conn) error {
				var n int
				err := conn.QueryRow(ctx, `SELECT count(*) FROM workspaces`).Scan(&n)
				if err == nil && n != 20 {
					err = fmt.Errorf("%d workspaces", n)
				}
				return err
			})
		}()
	}
	for range 2 * each {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Do(ctx, func(context.Context, *pgx.Conn) error { t.Error("ran"); return nil }); err == nil {
		t.Error("a turn after the end")
	}
}
