package postgres_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// Each request saves what lifecycle.TestRequests says, once, with an entry in the audit log,
// and returns what it has saved. A refused one saves nothing.
func TestRequestsAreSaved(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	ann := e.user("ann")
	desire := func(to workspace.DesiredState, queue bool) func(workspace.ID) (workspace.Workspace, error) {
		return func(id workspace.ID) (workspace.Workspace, error) {
			return e.PatchWorkspace(ctx, ann, id, postgres.Patch{Desired: &to, Queue: queue})
		}
	}
	remove := func(queue bool) func(workspace.ID) (workspace.Workspace, error) {
		return func(id workspace.ID) (workspace.Workspace, error) { return e.DeleteWorkspace(ctx, ann, id, queue) }
	}
	starting := state{"operation": "STARTING", "desired_state": "RUNNING"}
	for name, c := range map[string]struct {
		before state
		do     func(workspace.ID) (workspace.Workspace, error)
		code   workspace.Code
		after  string // an SQL condition
		action string // in the audit log, once; "": none
		again  bool   // the request can be repeated, and changes the row again
	}{
		"start":            {state{"phase": "STANDBY"}, desire("RUNNING", false), "", `desired_state = 'RUNNING'`, "workspace.desired_state", false},
		"a queued stop":    {starting, desire("STANDBY", true), "", `desired_state = 'RUNNING' AND next_desired_state = 'STANDBY'`, "workspace.desired_state", false},
		"the same state":   {starting, desire("RUNNING", false), "", `desired_state = 'RUNNING'`, "", false},
		"stop, too early":  {starting, desire("STANDBY", false), workspace.CodeOperationInProgress, `true`, "", false},
		"delete":           {state{"phase": "STANDBY", "next_desired_state": "RUNNING"}, remove(false), "", `deleted_at IS NOT NULL AND next_desired_state IS NULL`, "workspace.delete", false},
		"a queued delete":  {starting, remove(true), "", `deleted_at IS NULL AND next_desired_state = 'DELETED'`, "workspace.delete", false},
		"delete, in ERROR": {state{"phase": "ERROR", "error_reason": "DataLost"}, remove(false), "", `deleted_at IS NOT NULL AND recover_action = 'afresh'`, "workspace.delete", false},
		"cancel": {starting, func(id workspace.ID) (workspace.Workspace, error) { return e.RequestCancel(ctx, ann, id) }, "",
			`cancel_requested_at IS NOT NULL AND desired_state = 'STANDBY'`, "workspace.cancel", true},
		"force stop": {starting, func(id workspace.ID) (workspace.Workspace, error) { return e.RequestForceStop(ctx, ann, id) }, "",
			`force_stop_requested_at IS NOT NULL AND desired_state = 'STANDBY'`, "workspace.force_stop", true},
		"recover": {state{"phase": "ERROR", "error_reason": "DataLost"}, func(id workspace.ID) (workspace.Workspace, error) {
			return e.RequestRecover(ctx, ann, id, workspace.RecoverEmpty)
		}, "", `recover_requested_at IS NOT NULL AND recover_action = 'empty' AND error_reason = 'DataLost'`, "workspace.recover", true},
		"wake": {state{"phase": "STANDBY"}, func(id workspace.ID) (workspace.Workspace, error) {
			return e.Wake(ctx, ann, id)
		}, "", `desired_state = 'RUNNING' AND last_access_kind = 'open'`, "workspace.wake", true},
	} {
		w := e.workspace(ann, c.before)
		before := e.row(w.ID)
		got, err := c.do(w.ID)
		if workspace.CodeOf(err) != c.code || err != nil && (c.code == "" || e.row(w.ID) != before) {
			t.Errorf("%s: %v", name, err)
		}
		if !query[bool](e, `SELECT `+c.after+` FROM workspaces WHERE id = $1`, w.ID) {
			t.Errorf("%s: %s", name, e.row(w.ID))
		}
		if err == nil {
			if d := cmp.Diff(e.read(w.ID), got); d != "" {
				t.Errorf("%s: returned another row than it wrote: %s", name, d)
			}
		}
		if after := e.row(w.ID); err == nil && !c.again {
			must(c.do(w.ID))(t)
			if e.row(w.ID) != after {
				t.Errorf("%s, again: changed the row", name)
			}
		}
		want := []string{"ann workspace.create"}
		if c.action != "" {
			want = append(want, "ann "+c.action)
		}
		if d := cmp.Diff(want, e.audited(string(w.ID))); d != "" {
			t.Errorf("%s: audit: %s", name, d)
		}
	}
}

// What a request starts counts against the running limit, and a queued start waits for it.
func TestRequestsAtTheLimit(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Limits: postgres.Limits{PerUser: 1}})
	ctx := t.Context()
	ann, bob := e.user("ann"), e.user("bob")
	running := e.workspace(ann, state{"phase": "RUNNING", "desired_state": "RUNNING"})
	w := e.workspace(ann, state{"phase": "STANDBY", "next_desired_state": "RUNNING"})
	before := e.row(w.ID)
	_, err := e.Wake(ctx, ann, w.ID)
	wantCode(t, err, workspace.CodeLimitExceeded)
	if applied := must(e.ApplyQueued(ctx, w.ID))(t); applied || e.row(w.ID) != before {
		t.Errorf("applied %v, the row was %s and is %s", applied, before, e.row(w.ID))
	}
	must(e.Wake(ctx, ann, running.ID))(t) // a running workspace does not count against itself
	e.set(running.ID, state{"next_desired_state": "STANDBY"})
	if !must(e.ApplyQueued(ctx, running.ID))(t) {
		t.Error("a queued stop waits for the limit")
	}
	future := soon(time.Hour)
	e.set(running.ID, state{"last_access_at": future})
	must(e.Wake(ctx, ann, running.ID))(t)
	if got := e.read(running.ID); !got.LastAccessAt.Equal(future) {
		t.Errorf("the last access went back to %v", got.LastAccessAt)
	}
	e.set(running.ID, state{"phase": "STANDBY", "desired_state": "STANDBY"})
	if !must(e.ApplyQueued(ctx, w.ID))(t) || e.read(w.ID).DesiredState != workspace.DesiredRunning {
		t.Error("the queued start is not applied below the limit")
	}
	if applied, err := e.ApplyQueued(ctx, "0190b5a4-0000-7000-8000-000000000000"); applied || err != nil {
		t.Errorf("of none: %v %v", applied, err)
	}

	// A workspace that would run needs a slot; two that are recovered at once need two.
	broken := state{"phase": "ERROR", "error_reason": "Timeout", "desired_state": "RUNNING"}
	one, two := e.workspace(bob, broken), e.workspace(bob, broken)
	must(e.RequestRecover(ctx, bob, one.ID, workspace.RecoverAfresh))(t)
	must(e.RequestRecover(ctx, bob, one.ID, workspace.RecoverAfresh))(t)
	_, err = e.RequestRecover(ctx, bob, two.ID, workspace.RecoverAfresh)
	wantCode(t, err, workspace.CodeLimitExceeded)
	must(e.RequestForceStop(ctx, bob, two.ID))(t) // it will not run again
	must(e.RequestRecover(ctx, bob, two.ID, workspace.RecoverAfresh))(t)
}
