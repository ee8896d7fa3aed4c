package postgres_test

import (
	"testing"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// A request that waits for a row while its user is disabled, and their workspaces are stopped or
// deleted, has no effect.
func TestRequestOfDisabledUserHasNoEffect(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	deleted := `UPDATE users SET removed_at = now(), disabled = true WHERE id = '`
	for name, c := range map[string]struct {
		before  state
		changes string // of the workspace, in the transaction that ends the access
		user    string // the change of the user
		request func(workspace.Caller, workspace.ID) error
	}{
		"start": {state{"phase": "RUNNING", "desired_state": "RUNNING"}, `desired_state = 'STANDBY'`, `UPDATE users SET disabled = true WHERE id = '`,
			func(c workspace.Caller, id workspace.ID) error {
				return second(e.PatchWorkspace(ctx, c, id, postgres.Patch{Desired: ptr(workspace.DesiredRunning)}))
			}},
		"wake": {state{"phase": "STANDBY"}, `next_desired_state = NULL`, `UPDATE users SET suspended_for = 'unreachable' WHERE id = '`,
			func(c workspace.Caller, id workspace.ID) error { return second(e.Wake(ctx, c, id)) }},
		"share": {state{"phase": "RUNNING", "desired_state": "RUNNING"}, `desired_state = 'STANDBY'`, `UPDATE users SET disabled = true WHERE id = '`,
			func(c workspace.Caller, id workspace.ID) error {
				return second(e.SharePort(ctx, c, id, 3000, workspace.VisibleUsers, 0))
			}},
		"undelete": {state{"phase": "STANDBY", "home_ctx": `{"state": "live", "claim": "c"}`, "conditions": noContainer, "deleted_at": soon(0)}, `next_desired_state = NULL`, deleted,
			func(c workspace.Caller, id workspace.ID) error { return second(e.UndeleteWorkspace(ctx, c, id)) }},
	} {
		ann := e.user(name)
		w := e.workspace(ann, c.before)
		var err error
		e.during(func() { err = c.request(ann, w.ID) },
			c.user+ann.UserID+`'`, `UPDATE workspaces SET `+c.changes+` WHERE id = '`+string(w.ID)+`'`)
		if workspace.CodeOf(err) != workspace.CodeForbidden {
			t.Errorf("%s: %v", name, err)
		}
		if !query[bool](e, `SELECT desired_state = 'STANDBY' AND next_desired_state IS NULL AND (deleted_at IS NOT NULL) = $2 FROM workspaces WHERE id = $1`, w.ID, name == "undelete") {
			t.Errorf("%s: %s", name, e.row(w.ID))
		}
	}
	if n := query[int](e, `SELECT count(*) FROM port_shares`); n != 0 {
		t.Errorf("%d shares", n)
	}
}

// Nothing starts a workspace whose owner is disabled: a queued start waits until the owner is
// enabled, and an administrator's recovery stops at STANDBY.
func TestNoStartForDisabledOwner(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	boss, ann := e.admin("boss"), e.user("ann")
	queued := e.workspace(ann, state{"phase": "STANDBY", "next_desired_state": "RUNNING", "conditions": noContainer})
	broken := e.workspace(ann, state{"phase": "ERROR", "error_reason": "Timeout", "desired_state": "RUNNING", "home_ctx": `{"state": "live", "claim": "c"}`})
	// Its container is still to be removed, so it needs a slot without a start.
	deleted := e.workspace(ann, state{"phase": "RUNNING", "conditions": container, "home_ctx": `{"state": "live", "claim": "c"}`, "deleted_at": soon(0)})
	e.exec(`UPDATE users SET disabled = true WHERE id = $1`, ann.UserID)
	if applied, err := e.ApplyQueued(ctx, queued.ID); applied || err != nil {
		t.Errorf("a queued start: %v, %v", applied, err)
	}
	must(e.Administer(ctx, boss, broken.ID, postgres.Administration{Do: postgres.DoRecover, Recover: workspace.RecoverAfresh}))(t)
	if w := e.read(broken.ID); w.DesiredState != workspace.DesiredStandby || w.RecoverRequestedAt == nil {
		t.Errorf("the recovered workspace: %s, recovery requested at %v", w.DesiredState, w.RecoverRequestedAt)
	}
	must(e.Administer(ctx, boss, deleted.ID, postgres.Administration{Do: postgres.DoUndelete}))(t)
	e.exec(`UPDATE users SET disabled = false WHERE id = $1`, ann.UserID)
	if applied, err := e.ApplyQueued(ctx, queued.ID); !applied || err != nil {
		t.Errorf("a queued start of an enabled owner: %v, %v", applied, err)
	}
}

// An administrator who is suspended while a request waits administers nothing.
func TestSuspendedAdministratorAdministersNothing(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	boss := e.admin("boss")
	w := e.workspace(e.user("ann"), state{"phase": "RUNNING", "desired_state": "RUNNING"})
	var err error
	e.during(func() {
		_, err = e.Administer(t.Context(), boss, w.ID, postgres.Administration{Do: postgres.DoStop})
	}, `SELECT FROM workspaces WHERE id = '`+string(w.ID)+`' FOR UPDATE`, `UPDATE users SET suspended_for = 'unreachable' WHERE id = '`+boss.UserID+`'`)
	wantCode(t, err, workspace.CodeForbidden)
}

// Undeleting counts against the limit of workspaces; an administrator may exceed it.
func TestUndeleteCountsAgainstLimit(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Limits: postgres.Limits{Workspaces: 2}, MaxConns: 4})
	ctx := t.Context()
	boss, ann := e.admin("boss"), e.user("ann")
	gone := state{"phase": "STANDBY", "home_ctx": `{"state": "live", "claim": "c"}`, "conditions": noContainer, "deleted_at": soon(0)}
	a, b := e.workspace(ann, gone), e.workspace(ann, gone)
	e.workspace(ann, nil) // one place is free
	errs := make(chan error, 2)
	for _, w := range []workspace.Workspace{a, b} {
		go func() { errs <- second(e.UndeleteWorkspace(ctx, ann, w.ID)) }()
	}
	codes := map[workspace.Code]int{}
	for range 2 {
		codes[workspace.CodeOf(<-errs)]++
	}
	if codes[""] != 1 || codes[workspace.CodeQuotaExceeded] != 1 {
		t.Fatalf("two undeletions for one place: %v", codes)
	}
	rest := query[workspace.ID](e, `SELECT id FROM workspaces WHERE deleted_at IS NOT NULL`)
	must(e.Administer(ctx, boss, rest, postgres.Administration{Do: postgres.DoUndelete}))(t)
}
