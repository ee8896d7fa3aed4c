package postgres_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

func TestRequestRecover(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Limits: postgres.Limits{PerUser: 1}})
	ctx := t.Context()
	ann := e.user("ann")
	for name, s := range map[string]state{
		"idle": nil, "running": {"phase": "RUNNING"}, "retrying": {"phase": "STANDBY", "error_reason": "ActionFailed"},
		"deleted": {"phase": "DELETING", "deleted_at": time.Now()},
	} {
		w := e.workspace(ann, s)
		_, err := e.RequestRecover(ctx, ann, w.ID, workspace.RecoverAfresh)
		if workspace.CodeOf(err) != workspace.CodeNotInError {
			t.Errorf("%s: %v", name, err)
		}
		e.exec(`DELETE FROM workspaces WHERE id = $1`, w.ID)
	}
	for _, action := range []string{workspace.RecoverAfresh, workspace.RecoverEmpty} {
		for name, s := range map[string]state{
			"in ERROR":       {"phase": "ERROR", "error_reason": "DataLost"},
			"stuck deletion": {"phase": "DELETING", "deleted_at": time.Now(), "error_reason": "Timeout"},
		} {
			w := e.workspace(ann, s)
			if w.DeletedAt != nil && action == workspace.RecoverEmpty {
				_, err := e.RequestRecover(ctx, ann, w.ID, action) // there is no home to replace
				wantCode(t, err, workspace.CodeNotLost)
				continue
			}
			got := must(e.RequestRecover(ctx, ann, w.ID, action))(t)
			if got.RecoverRequestedAt == nil || got.RecoverAction != action || got.ErrorReason != w.ErrorReason {
				t.Errorf("%s: %+v", name, got)
			}
			if d := cmp.Diff([]string{"ann workspace.create", "ann workspace.recover"}, e.audited(string(w.ID))); d != "" {
				t.Errorf("%s: %s", name, d)
			}
		}
	}
	w := e.workspace(ann, state{"phase": "ERROR", "error_reason": "DataLost"})
	_, err := e.RequestRecover(ctx, ann, w.ID, "hope")
	wantCode(t, err, workspace.CodeInvalid)

	// A workspace that would run needs a slot; two that are recovered at once need two.
	one := e.workspace(ann, state{"phase": "ERROR", "error_reason": "Timeout", "desired_state": "RUNNING"})
	two := e.workspace(ann, state{"phase": "ERROR", "error_reason": "Timeout", "desired_state": "RUNNING"})
	must(e.RequestRecover(ctx, ann, one.ID, workspace.RecoverAfresh))(t)
	must(e.RequestRecover(ctx, ann, one.ID, workspace.RecoverAfresh))(t)
	_, err = e.RequestRecover(ctx, ann, two.ID, workspace.RecoverAfresh)
	wantCode(t, err, workspace.CodeLimitExceeded)
	must(e.RequestForceStop(ctx, ann, two.ID))(t) // it will not run again
	must(e.RequestRecover(ctx, ann, two.ID, workspace.RecoverAfresh))(t)
}

func TestRequestCancel(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	ann := e.user("ann")
	for _, c := range []struct {
		name  string
		state state
		back  workspace.DesiredState // "": refused
	}{
		{"no operation", state{"phase": "STANDBY"}, ""},
		{"STARTING", state{"operation": "STARTING", "desired_state": "RUNNING", "next_desired_state": "ARCHIVED"}, workspace.DesiredStandby},
		{"RESTORING", state{"operation": "RESTORING", "desired_state": "RUNNING"}, workspace.DesiredArchived},
		{"ARCHIVING", state{"operation": "ARCHIVING", "desired_state": "ARCHIVED", "home_ctx": `{"state": "live"}`}, workspace.DesiredStandby},
		{"ARCHIVING, the home being removed", state{"operation": "ARCHIVING", "desired_state": "ARCHIVED", "home_ctx": `{"state": "archived"}`}, ""},
		{"PROVISIONING", state{"operation": "PROVISIONING"}, workspace.DesiredArchived},
		{"CREATE_EMPTY_ARCHIVE", state{"operation": "CREATE_EMPTY_ARCHIVE"}, ""},
		{"STOPPING", state{"operation": "STOPPING"}, ""},
		{"DELETING", state{"operation": "DELETING"}, ""},
	} {
		w := e.workspace(ann, c.state)
		got, err := e.RequestCancel(ctx, ann, w.ID)
		if c.back == "" {
			if workspace.CodeOf(err) != workspace.CodeNotCancellable {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if err != nil || got.DesiredState != c.back || got.NextDesired != "" || got.CancelRequestedAt == nil || got.Operation != w.Operation {
			t.Errorf("%s: %v %+v", c.name, err, got)
		}
		if d := cmp.Diff([]string{"ann workspace.create", "ann workspace.cancel"}, e.audited(string(w.ID))); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
}

func TestRequestForceStop(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	ann := e.user("ann")
	for _, c := range []struct {
		name          string
		state         state
		desired, next workspace.DesiredState
	}{
		{"running", state{"phase": "RUNNING", "desired_state": "RUNNING"}, workspace.DesiredStandby, ""},
		{"in ERROR", state{"phase": "ERROR", "error_reason": "Timeout", "desired_state": "RUNNING"}, workspace.DesiredStandby, ""},
		{"starting", state{"operation": "STARTING", "desired_state": "RUNNING", "next_desired_state": "RUNNING"}, workspace.DesiredStandby, ""},
		{"stopping, archive desired", state{"operation": "STOPPING", "desired_state": "ARCHIVED", "next_desired_state": "DELETED"}, workspace.DesiredArchived, workspace.DesiredDeleted},
	} {
		w := e.workspace(ann, c.state)
		got := must(e.RequestForceStop(ctx, ann, w.ID))(t)
		if got.ForceStopRequestedAt == nil || got.DesiredState != c.desired || got.NextDesired != c.next {
			t.Errorf("%s: %+v", c.name, got)
		}
		if d := cmp.Diff([]string{"ann workspace.create", "ann workspace.force_stop"}, e.audited(string(w.ID))); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
	w := e.workspace(ann, state{"deleted_at": time.Now()})
	_, err := e.RequestForceStop(ctx, ann, w.ID)
	wantCode(t, err, workspace.CodeNotFound)
}

func TestWake(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Limits: postgres.Limits{PerUser: 1}})
	ctx := t.Context()
	const run, standby, archived, deleted = workspace.DesiredRunning, workspace.DesiredStandby, workspace.DesiredArchived, workspace.DesiredDeleted
	type outcome struct {
		Changed       bool
		Desired, Next workspace.DesiredState
	}
	for _, c := range []struct {
		name  string
		state state
		out   outcome
	}{
		{"at rest", state{"phase": "STANDBY"}, outcome{true, run, ""}},
		{"at rest, archive desired", state{"phase": "STANDBY", "desired_state": "ARCHIVED"}, outcome{true, run, ""}},
		{"at rest, already woken", state{"phase": "STANDBY", "desired_state": "RUNNING"}, outcome{false, run, ""}},
		{"at rest, a stop queued", state{"phase": "STANDBY", "desired_state": "RUNNING", "next_desired_state": "STANDBY"}, outcome{true, run, ""}},
		{"at rest, a deletion queued", state{"phase": "STANDBY", "next_desired_state": "DELETED"}, outcome{false, standby, deleted}},
		{"running", state{"phase": "RUNNING", "desired_state": "RUNNING"}, outcome{false, run, ""}},
		{"running, stop desired", state{"phase": "RUNNING"}, outcome{true, run, ""}},
		{"starting", state{"phase": "STANDBY", "operation": "STARTING", "desired_state": "RUNNING"}, outcome{false, run, ""}},
		{"start being cancelled", state{"phase": "STANDBY", "operation": "STARTING"}, outcome{true, standby, run}},
		{"provisioning to run", state{"operation": "PROVISIONING", "desired_state": "RUNNING"}, outcome{false, run, ""}},
		{"restoring only", state{"phase": "ARCHIVED", "operation": "RESTORING"}, outcome{true, standby, run}},
		{"stopping", state{"phase": "RUNNING", "operation": "STOPPING"}, outcome{true, standby, run}},
		{"stopping, already woken", state{"phase": "RUNNING", "operation": "STOPPING", "next_desired_state": "RUNNING"}, outcome{false, standby, run}},
		{"stopping, a deletion queued", state{"phase": "RUNNING", "operation": "STOPPING", "next_desired_state": "DELETED"}, outcome{false, standby, deleted}},
		{"archiving", state{"phase": "STANDBY", "operation": "ARCHIVING", "desired_state": "ARCHIVED"}, outcome{true, archived, run}},
		{"archived", state{"phase": "ARCHIVED", "desired_state": "ARCHIVED"}, outcome{false, archived, ""}},
		{"pending", nil, outcome{false, standby, ""}},
		{"in ERROR", state{"phase": "ERROR", "error_reason": "Timeout"}, outcome{false, standby, ""}},
	} {
		who := e.user(c.name)
		w := e.workspace(who, c.state)
		got := must(e.Wake(ctx, who, w.ID))(t)
		now := e.read(w.ID)
		if d := cmp.Diff(c.out, outcome{got.Changed, now.DesiredState, now.NextDesired}); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
		if d := cmp.Diff(now, got.Workspace); d != "" {
			t.Errorf("%s: returned another row than it wrote: %s", c.name, d)
		}
		if now.LastAccessAt == nil || now.LastAccess != "open" {
			t.Errorf("%s: the activity was not recorded", c.name)
		}
		if now.UpdatedAt.After(w.UpdatedAt) != c.out.Changed {
			t.Errorf("%s: updated_at went from %v to %v", c.name, w.UpdatedAt, now.UpdatedAt)
		}
	}

	ann := e.user("ann")
	running := e.workspace(ann, state{"phase": "RUNNING", "desired_state": "RUNNING"})
	w := e.workspace(ann, state{"phase": "STANDBY"})
	before := e.row(w.ID)
	_, err := e.Wake(ctx, ann, w.ID)
	wantCode(t, err, workspace.CodeLimitExceeded)
	if d := cmp.Diff(before, e.row(w.ID)); d != "" {
		t.Errorf("refused, but the row was changed: %s", d)
	}
	must(e.Wake(ctx, ann, running.ID))(t) // a running workspace does not count against itself

	future := soon(time.Hour)
	e.set(running.ID, state{"last_access_at": future})
	must(e.Wake(ctx, ann, running.ID))(t)
	if got := e.read(running.ID); !got.LastAccessAt.Equal(future) {
		t.Errorf("the last access went back to %v", got.LastAccessAt)
	}
	e.set(w.ID, state{"deleted_at": time.Now()})
	_, err = e.Wake(ctx, ann, w.ID)
	wantCode(t, err, workspace.CodeNotFound)
}
