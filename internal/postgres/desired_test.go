package postgres_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

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
	if out := must(e.Wake(ctx, bob, w.ID))(t); out.DesiredState != workspace.DesiredRunning {
		t.Errorf("opened without measurements: %s", out.DesiredState)
	}
}
