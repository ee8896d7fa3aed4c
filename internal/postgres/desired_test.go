package postgres_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// The result of a request in every situation: the response, and the desired and queued states
// afterwards.
func TestPatchDesired(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	ann := e.user("ann")
	const run, standby, archived, deleted = workspace.DesiredRunning, workspace.DesiredStandby, workspace.DesiredArchived, workspace.DesiredDeleted
	type outcome struct {
		Code          workspace.Code
		Desired, Next workspace.DesiredState
	}
	for _, c := range []struct {
		name  string
		state state
		want  workspace.DesiredState
		queue bool
		out   outcome
	}{
		{"start", state{"phase": "STANDBY"}, run, false, outcome{"", run, ""}},
		{"start of a new workspace", nil, run, false, outcome{"", run, ""}},
		{"stop", state{"phase": "RUNNING", "desired_state": "RUNNING"}, standby, false, outcome{"", standby, ""}},
		{"archive", state{"phase": "RUNNING", "desired_state": "RUNNING"}, archived, false, outcome{"", archived, ""}},
		{"the same state", state{"phase": "RUNNING", "desired_state": "RUNNING"}, run, false, outcome{"", run, ""}},
		{"the same state during an operation", state{"phase": "STANDBY", "operation": "STARTING", "desired_state": "RUNNING"}, run, false, outcome{"", run, ""}},
		{"the same state clears the queue", state{"operation": "STARTING", "desired_state": "RUNNING", "next_desired_state": "STANDBY"}, run, false, outcome{"", run, ""}},
		{"queued without an operation", state{"phase": "STANDBY"}, run, true, outcome{"", run, ""}},
		{"without a queue, over a queued state", state{"phase": "STANDBY", "next_desired_state": "ARCHIVED"}, run, false, outcome{"", run, ""}},
		{"during an operation", state{"operation": "STOPPING"}, run, false, outcome{workspace.CodeOperationInProgress, standby, ""}},
		{"queued during an operation", state{"operation": "STOPPING"}, run, true, outcome{"", standby, run}},
		{"queued again", state{"operation": "STOPPING", "next_desired_state": "RUNNING"}, run, true, outcome{"", standby, run}},
		{"queued over another state", state{"operation": "STOPPING", "next_desired_state": "DELETED"}, archived, true, outcome{"", standby, archived}},
		{"in ERROR", state{"phase": "ERROR", "error_reason": "Timeout"}, run, false, outcome{workspace.CodeRecoveryRequired, standby, ""}},
		{"in ERROR, queued", state{"phase": "ERROR", "error_reason": "Timeout"}, run, true, outcome{workspace.CodeRecoveryRequired, standby, ""}},
		{"in ERROR, the same state", state{"phase": "ERROR", "error_reason": "Timeout"}, standby, false, outcome{workspace.CodeRecoveryRequired, standby, ""}},
		{"deleted", state{"deleted_at": time.Now()}, run, false, outcome{workspace.CodeNotFound, standby, ""}},
		{"a deletion", nil, deleted, false, outcome{workspace.CodeInvalid, standby, ""}},
	} {
		w := e.workspace(ann, c.state)
		before := e.row(w.ID)
		got, err := e.PatchWorkspace(ctx, ann, w.ID, postgres.Patch{Desired: &c.want, Queue: c.queue})
		now := e.read(w.ID)
		if d := cmp.Diff(c.out, outcome{workspace.CodeOf(err), now.DesiredState, now.NextDesired}); d != "" {
			t.Errorf("%s: %v %s", c.name, err, d)
		}
		if err != nil && before != e.row(w.ID) {
			t.Errorf("%s: refused, but the row was changed", c.name)
		}
		if err == nil {
			if d := cmp.Diff(now, got); d != "" {
				t.Errorf("%s: returned another row than it wrote: %s", c.name, d)
			}
		}
		changed := w.DesiredState != now.DesiredState || w.NextDesired != now.NextDesired
		want := []string{"ann workspace.create"}
		if changed {
			want = append(want, "ann workspace.desired_state")
		}
		if d := cmp.Diff(want, e.audited(string(w.ID))); d != "" {
			t.Errorf("%s: audit: %s", c.name, d)
		}
	}
}

// A change without a new desired state adds no audit entry for it.
func TestPatchWithPresentDesiredState(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ann := e.user("ann")
	w := e.workspace(ann, state{"phase": "RUNNING", "desired_state": "RUNNING"})
	run := workspace.DesiredRunning
	got := must(e.PatchWorkspace(t.Context(), ann, w.ID, postgres.Patch{Edit: workspace.Edit{Memo: ptr("noted")}, Desired: &run}))(t)
	if got.Memo != "noted" || !got.UpdatedAt.After(w.UpdatedAt) {
		t.Errorf("%+v", got)
	}
	if d := cmp.Diff([]string{"ann workspace.create", "ann workspace.change"}, e.audited(string(w.ID))); d != "" {
		t.Error(d)
	}
}

func TestDelete(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	ann := e.user("ann")

	w := e.workspace(ann, state{"phase": "RUNNING", "desired_state": "RUNNING", "next_desired_state": "STANDBY", "conditions": container})
	first := must(e.DeleteWorkspace(ctx, ann, w.ID, false))(t)
	if first.DeletedAt == nil || first.NextDesired != "" || first.RecoverRequestedAt != nil {
		t.Fatalf("%+v", first)
	}
	again := must(e.DeleteWorkspace(ctx, ann, w.ID, true))(t)
	if d := cmp.Diff(first, again); d != "" {
		t.Errorf("again: %s", d)
	}
	if d := cmp.Diff([]string{"ann workspace.create", "ann workspace.delete"}, e.audited(string(w.ID))); d != "" {
		t.Error(d)
	}

	busy := e.workspace(ann, state{"operation": "STARTING", "desired_state": "RUNNING"})
	_, err := e.DeleteWorkspace(ctx, ann, busy.ID, false)
	wantCode(t, err, workspace.CodeOperationInProgress)
	for range 2 {
		got := must(e.DeleteWorkspace(ctx, ann, busy.ID, true))(t)
		if got.DeletedAt != nil || got.NextDesired != workspace.DesiredDeleted || got.DesiredState != workspace.DesiredRunning {
			t.Errorf("queued: %+v", got)
		}
	}
	if d := cmp.Diff([]string{"ann workspace.create", "ann workspace.delete"}, e.audited(string(busy.ID))); d != "" {
		t.Error(d)
	}

	// An error would delay the deletion, now and later.
	broken := e.workspace(ann, state{"phase": "ERROR", "error_reason": "DataLost"})
	got := must(e.DeleteWorkspace(ctx, ann, broken.ID, false))(t)
	if got.DeletedAt == nil || got.RecoverRequestedAt == nil || got.RecoverAction != workspace.RecoverAfresh {
		t.Errorf("in ERROR: %+v", got)
	}
	stuck := e.workspace(ann, state{"phase": "DELETING", "deleted_at": time.Now(), "error_reason": "RetryExceeded"})
	got = must(e.DeleteWorkspace(ctx, ann, stuck.ID, false))(t)
	if got.RecoverRequestedAt == nil || !got.DeletedAt.Equal(*stuck.DeletedAt) {
		t.Errorf("stuck: %+v", got)
	}
	if d := cmp.Diff(got, must(e.DeleteWorkspace(ctx, ann, stuck.ID, false))(t)); d != "" {
		t.Errorf("stuck, again: %s", d)
	}
	retrying := e.workspace(ann, state{"phase": "DELETING", "deleted_at": time.Now(), "error_reason": "ActionFailed"})
	if got := must(e.DeleteWorkspace(ctx, ann, retrying.ID, false))(t); got.RecoverRequestedAt != nil {
		t.Errorf("a recovery was requested for an error that is retried anyway")
	}
}

func TestUndelete(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Limits: postgres.Limits{PerUser: 1}})
	ctx := t.Context()
	now := time.Now() // TestRestorableMatchesUndelete has every state of a home
	for _, c := range []struct {
		name    string
		state   state
		code    workspace.Code
		desired workspace.DesiredState
	}{
		{"not deleted", nil, workspace.CodeNotDeleted, ""},
		{"with its volume", state{"deleted_at": now, "phase": "DELETING", "conditions": noContainer, "desired_state": "RUNNING", "home_ctx": `{"state": "live"}`}, "", workspace.DesiredStandby},
		{"with a container", state{"deleted_at": now, "phase": "DELETING", "conditions": container, "operation": "DELETING", "home_ctx": `{"state": "live"}`}, "", workspace.DesiredStandby},
		{"archived", state{"deleted_at": now, "phase": "DELETING", "conditions": nothing, "archive_key": "k"}, "", workspace.DesiredArchived},
		{"removed", state{"deleted_at": now, "phase": "DELETED", "archive_key": "k"}, workspace.CodeGone, ""},
	} {
		who := e.user(c.name)
		w := e.workspace(who, c.state)
		got, err := e.UndeleteWorkspace(ctx, who, w.ID)
		if workspace.CodeOf(err) != c.code || (err == nil) != (c.code == "") {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if err == nil && (got.DeletedAt != nil || got.DesiredState != c.desired || got.NextDesired != "") {
			t.Errorf("%s: %+v", c.name, got)
		}
		if err == nil {
			if d := cmp.Diff([]string{c.name + " workspace.create", c.name + " workspace.undelete"}, e.audited(string(w.ID))); d != "" {
				t.Errorf("%s: %s", c.name, d)
			}
		}
	}

	ann := e.user("ann")
	w := e.workspace(ann, state{"deleted_at": now, "phase": "DELETING", "conditions": noContainer, "home_ctx": `{"state": "live"}`})
	n := newWorkspace(w.Name, workspace.DesiredStandby)
	taken := must(e.CreateWorkspace(ctx, ann, n))(t)
	_, err := e.UndeleteWorkspace(ctx, ann, w.ID)
	wantCode(t, err, workspace.CodeNameTaken)
	must(e.PatchWorkspace(ctx, ann, taken.ID, postgres.Patch{Edit: workspace.Edit{Name: ptr("another")}}))(t)
	must(e.UndeleteWorkspace(ctx, ann, w.ID))(t)

	// A workspace whose container still exists would run in addition to the one that took its
	// slot.
	w = e.workspace(ann, state{"deleted_at": now, "phase": "DELETING", "conditions": container, "home_ctx": `{"state": "live"}`})
	must(e.PatchWorkspace(ctx, ann, taken.ID, postgres.Patch{Desired: ptr(workspace.DesiredRunning)}))(t)
	_, err = e.UndeleteWorkspace(ctx, ann, w.ID)
	wantCode(t, err, workspace.CodeLimitExceeded)
	e.set(w.ID, state{"conditions": noContainer})
	must(e.UndeleteWorkspace(ctx, ann, w.ID))(t)
}

// A start that was queued while the workspace stopped does not start it over the limit of its
// home, unless homes are not measured.
func TestQueuedStartOverLimit(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	sizes := workspace.Sizes{Default: workspace.Size{Name: workspace.DefaultSize, Disk: 1000}}
	stopped := state{"phase": "STANDBY", "next_desired_state": "RUNNING", "home_bytes": 2000, "home_ctx": `{"state": "live"}`}
	limits := postgres.Limits{Bytes: 10}
	e := open(t, postgres.Options{Sizes: sizes, Limits: limits})
	ann := e.user("ann")
	w := e.workspace(ann, stopped)
	before := e.audited(string(w.ID))
	applied := must(e.ApplyQueued(ctx, w.ID))(t)
	if now := e.read(w.ID); !applied || now.DesiredState != workspace.DesiredStandby || now.NextDesired != "" {
		t.Errorf("dropped %v: %s, then %q", applied, now.DesiredState, now.NextDesired)
	}
	if d := cmp.Diff(before, e.audited(string(w.ID))); d != "" {
		t.Error(d)
	}
	if applied := must(e.ApplyQueued(ctx, w.ID))(t); applied {
		t.Error("it is tried again")
	}
	_, err := e.Wake(ctx, ann, w.ID)
	wantCode(t, err, workspace.CodeQuotaExceeded) // what the owner sees at the next opening

	// The limit of all that the owner has makes a start wait.
	small := e.workspace(e.user("carol"), state{"phase": "STANDBY", "next_desired_state": "RUNNING", "home_bytes": 20})
	if applied := must(e.ApplyQueued(ctx, small.ID))(t); applied || e.read(small.ID).NextDesired != workspace.DesiredRunning {
		t.Errorf("over the owner's limit: %v", applied)
	}
	// Not that of a restart, which would only stop the workspace.
	restarts := e.workspace(e.user("dave"), state{"phase": "STANDBY", "next_desired_state": "RUNNING", "desired_cause": "restart", "home_bytes": 20})
	if applied := must(e.ApplyQueued(ctx, restarts.ID))(t); !applied || e.read(restarts.ID).DesiredState != workspace.DesiredRunning {
		t.Errorf("a restart over the owner's limit: %v", applied)
	}
	// Once its start is no longer queued, the owner asks for another one.
	e.set(restarts.ID, state{"desired_state": "STANDBY", "desired_cause": "restart"})
	_, err = e.Wake(ctx, workspace.Caller{UserID: e.read(restarts.ID).OwnerID}, restarts.ID)
	wantCode(t, err, workspace.CodeQuotaExceeded)

	sizes.Unmeasured = true
	e = open(t, postgres.Options{Sizes: sizes, Limits: limits})
	bob := e.user("bob")
	w = e.workspace(bob, stopped)
	if applied := must(e.ApplyQueued(ctx, w.ID))(t); !applied || e.read(w.ID).DesiredState != workspace.DesiredRunning {
		t.Errorf("not measured: %v", applied)
	}
	w = e.workspace(bob, stopped)
	e.set(w.ID, state{"next_desired_state": nil})
	if out := must(e.Wake(ctx, bob, w.ID))(t); out.Workspace.DesiredState != workspace.DesiredRunning {
		t.Errorf("opened without measurements: %s", out.Workspace.DesiredState)
	}
}

func TestApplyQueued(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Limits: postgres.Limits{PerUser: 1}})
	ctx := t.Context()
	const run, standby, archived = workspace.DesiredRunning, workspace.DesiredStandby, workspace.DesiredArchived
	type outcome struct {
		Applied       bool
		Desired, Next workspace.DesiredState
		Deleted       bool
	}
	for _, c := range []struct {
		name  string
		state state
		full  bool // the limit is reached
		out   outcome
	}{
		{"nothing queued", nil, false, outcome{false, standby, "", false}},
		{"an operation runs", state{"operation": "STOPPING", "next_desired_state": "RUNNING"}, false, outcome{false, standby, run, false}},
		{"start", state{"phase": "STANDBY", "next_desired_state": "RUNNING"}, false, outcome{true, run, "", false}},
		{"start at the limit", state{"phase": "STANDBY", "next_desired_state": "RUNNING"}, true, outcome{false, standby, run, false}},
		{"start at the limit, already desired", state{"phase": "STANDBY", "next_desired_state": "RUNNING", "desired_state": "RUNNING"}, true, outcome{true, run, "", false}},
		{"stop at the limit", state{"phase": "RUNNING", "next_desired_state": "STANDBY", "desired_state": "RUNNING"}, true, outcome{true, standby, "", false}},
		{"archive", state{"phase": "STANDBY", "next_desired_state": "ARCHIVED"}, false, outcome{true, archived, "", false}},
		{"delete", state{"phase": "STANDBY", "next_desired_state": "DELETED"}, false, outcome{true, standby, "", true}},
		{"start in ERROR", state{"phase": "ERROR", "error_reason": "Timeout", "next_desired_state": "RUNNING"}, false, outcome{false, standby, run, false}},
		{"delete in ERROR", state{"phase": "ERROR", "error_reason": "Timeout", "next_desired_state": "DELETED"}, false, outcome{true, standby, "", true}},
		{"deleted in the meantime", state{"deleted_at": time.Now(), "next_desired_state": "RUNNING"}, false, outcome{false, standby, run, true}},
	} {
		who := e.user(c.name)
		if c.full {
			e.workspace(who, state{"phase": "RUNNING"})
		}
		w := e.workspace(who, c.state)
		applied, err := e.ApplyQueued(ctx, w.ID)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		now := e.read(w.ID)
		if d := cmp.Diff(c.out, outcome{applied, now.DesiredState, now.NextDesired, now.DeletedAt != nil}); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
		if c.name == "delete in ERROR" && now.RecoverRequestedAt == nil {
			t.Error("the error will delay the deletion")
		}
	}
	if applied, err := e.ApplyQueued(ctx, "0190b5a4-0000-7000-8000-000000000000"); applied || err != nil {
		t.Errorf("of none: %v %v", applied, err)
	}
}
