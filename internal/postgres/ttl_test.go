package postgres_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/postgres"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// ends runs both statements of the leader until no workspace is due.
func (e *env) ends(server workspace.TTL, batch int) (stopped, archived []workspace.ID) {
	e.Helper()
	idle := postgres.NewIdleness(postgres.NewController(postgres.NewSession(e.conn())))
	for {
		a := must(idle.EndIdle(e.Context(), server.Standby, batch))(e)
		b := must(idle.EndUnused(e.Context(), server.Archive, batch))(e)
		stopped, archived = append(stopped, a...), append(archived, b...)
		if len(a) < batch && len(b) < batch {
			return stopped, archived
		}
	}
}

// watched sets the clock of activity.
func (e *env) watched(until time.Time) {
	e.Helper()
	e.exec(`UPDATE activity_clock SET watched_until = $1`, until)
}

// The statements apply the rule of lifecycle.EndIdle, for random rows of every kind.
func TestIdleStatementsMatchLifecycle(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ann := e.user("ann")
	r := rand.New(rand.NewPCG(1, 1))
	now := soon(0)
	// Few values of each, so that some are equal.
	ago := func() time.Time { return now.Add(-time.Duration(r.IntN(12)) * 10 * time.Minute) }
	maybe := func(v any) any {
		if r.IntN(3) > 0 {
			return nil
		}
		return v
	}
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	due, rounds := 0, 2
	if harness.Verifying() {
		rounds = 10
	}
	defer func() {
		if due == 0 {
			t.Error("no workspace was due") // in one round alone that is possible, if neither timeout is set
		}
	}()
	for range rounds {
		e.exec(`DELETE FROM workspaces`)
		e.exec(`DELETE FROM unwatched`)
		for m := 0; m < 120; m += 10 {
			if r.IntN(4) == 0 {
				e.exec(`INSERT INTO unwatched VALUES ($1, $2)`, now.Add(-time.Duration(m+7)*time.Minute), now.Add(-time.Duration(m)*time.Minute))
			}
		}
		until := now.Add(-time.Duration(r.IntN(3)) * 10 * time.Minute)
		e.watched(until)
		server := workspace.TTL{Standby: time.Duration(r.IntN(4)) * 10 * time.Minute, Archive: time.Duration(r.IntN(4)) * 10 * time.Minute}
		want := map[workspace.ID]string{}
		for range 80 {
			s := state{
				"phase":               pick("RUNNING", "STANDBY"),
				"phase_changed_at":    ago(),
				"last_access_at":      maybe(ago()),
				"keep_awake_until":    maybe(ago()),
				"standby_ttl_seconds": maybe(600 * r.IntN(5)), "archive_ttl_seconds": maybe(600 * r.IntN(5)),
			}
			s["desired_state"] = s["phase"]
			switch r.IntN(9) {
			case 0:
				s["next_desired_state"] = "RUNNING"
			case 1:
				s["deleted_at"] = now
			case 2:
				s["operation"] = "STOPPING"
			case 3:
				s["desired_state"] = pick("RUNNING", "STANDBY", "ARCHIVED")
			case 4:
				s["phase"] = pick("ERROR", "ARCHIVED", "DELETING", "PENDING")
			case 5:
				s["keep_awake_until"] = until
			}
			w := e.workspace(ann, s)
			if out := lifecycle.EndIdle(w, until, server); out.Changed {
				want[w.ID] = out.Workspace.DesiredCause
			}
		}
		stopped, archived := e.ends(server, 7)
		got := map[workspace.ID]string{}
		for _, id := range stopped {
			got[id] = workspace.CauseIdle
		}
		for _, id := range archived {
			if got[id] != "" {
				t.Errorf("%s was stopped and archived in one run", id)
			}
			got[id] = workspace.CauseUnused
		}
		due += len(want)
		if len(stopped)+len(archived) != len(got) {
			t.Errorf("ended %d times for %d workspaces, %d of which were due", len(stopped)+len(archived), len(got), len(want))
		}
		for id, cause := range want {
			if got[id] != cause {
				t.Errorf("%s is due (%s) and was skipped: %s", id, cause, e.row(id))
			}
		}
		listed := map[workspace.ID]string{}
		for _, s := range must(e.Overview(t.Context(), workspace.System))(t).IdleStops {
			listed[workspace.ID(s.WorkspaceID)] = s.Cause
		}
		if d := cmp.Diff(got, listed); d != "" {
			t.Errorf("listed for administrators: %s", d)
		}
		for id := range got {
			w := e.read(id)
			if want[id] == "" {
				t.Errorf("ended and not due: %s", e.row(id))
			}
			if wants := map[string]workspace.DesiredState{workspace.CauseIdle: workspace.DesiredStandby, workspace.CauseUnused: workspace.DesiredArchived}[want[id]]; w.DesiredState != wants || w.DesiredCause != want[id] {
				t.Errorf("desired %s for %q", w.DesiredState, w.DesiredCause)
			}
			if log := e.audited(string(id)); !slices.Contains(log, "system workspace.desired_state") {
				t.Errorf("the audit log has %q", log)
			}
		}
	}
}

// Without a clock of activity no idle time is known, and no workspace is stopped.
func TestUnobservedTimeEndsNothing(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ann := e.user("ann")
	long := soon(-100 * 24 * time.Hour)
	run := e.workspace(ann, state{"phase": "RUNNING", "desired_state": "RUNNING", "phase_changed_at": long})
	rest := e.workspace(ann, state{"phase": "STANDBY", "phase_changed_at": long})
	server := workspace.TTL{Standby: time.Second, Archive: time.Second}
	if a, b := e.ends(server, 10); len(a)+len(b) > 0 {
		t.Errorf("ended %v %v", a, b)
	}
	e.watched(soon(0))
	e.exec(`INSERT INTO unwatched VALUES ('-infinity', now())`)
	if a, b := e.ends(server, 10); len(a)+len(b) > 0 {
		t.Errorf("ended %v %v", a, b)
	}
	e.exec(`DELETE FROM unwatched`)
	if a, b := e.ends(server, 10); !slices.Equal(a, []workspace.ID{run.ID}) || !slices.Equal(b, []workspace.ID{rest.ID}) {
		t.Errorf("ended %v %v", a, b)
	}
}

// A locked row is skipped, and one that was changed while the statement waited for it is left
// as it is.
func TestEndIdleSkipsLockedRows(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ann := e.user("ann")
	w := e.workspace(ann, state{"phase": "RUNNING", "desired_state": "RUNNING", "phase_changed_at": soon(-time.Hour)})
	e.watched(soon(0))
	server := workspace.TTL{Standby: time.Minute}
	tx := must(e.raw.Begin(t.Context()))(t)
	must(tx.Exec(t.Context(), `UPDATE workspaces SET last_access_at = now() WHERE id = $1`, w.ID))(t)
	if a, _ := e.ends(server, 10); len(a) > 0 {
		t.Errorf("ended %v, which is being changed", a)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a, _ := e.ends(server, 10); len(a) > 0 {
		t.Errorf("ended %v, which was used", a)
	}
}

// Every change to a state of rest or to RUNNING gives a full idle timeout, also without a
// change of the phase.
func TestStateChangeRestartsIdleTimeout(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Limits: postgres.Limits{PerUser: 100}})
	ann := e.user("ann")
	ctx := t.Context()
	long := soon(-100 * time.Hour)
	running := func(more state) state {
		s := state{"phase": "RUNNING", "desired_state": "RUNNING", "conditions": container, "home_ctx": `{"state": "live"}`, "phase_changed_at": long, "last_access_at": long}
		for k, v := range more {
			s[k] = v
		}
		return s
	}
	standby := func(more state) state {
		s := running(state{"phase": "STANDBY", "desired_state": "STANDBY", "conditions": noContainer})
		for k, v := range more {
			s[k] = v
		}
		return s
	}
	patch := func(to workspace.DesiredState, queue bool) func(workspace.ID) error {
		return func(id workspace.ID) error {
			_, err := e.PatchWorkspace(ctx, ann, id, postgres.Patch{Desired: &to, Queue: queue})
			return err
		}
	}
	cancel := func(id workspace.ID) error { _, err := e.RequestCancel(ctx, ann, id); return err }
	rests := state{"operation": "NONE", "cancel_requested_at": nil, "force_stop_requested_at": nil}
	for _, c := range []struct {
		name string
		from state
		do   func(workspace.ID) error
		then state // the controller's write, without a change of phase
	}{
		{"a cancelled stop", running(state{"desired_state": "STANDBY"}), patch("RUNNING", false), nil},
		{"a cancelled idle stop", running(state{"desired_state": "STANDBY", "desired_cause": "idle"}), patch("RUNNING", false), nil},
		{"an archive request withdrawn before it began", standby(state{"desired_state": "ARCHIVED"}), patch("STANDBY", false), nil},
		{"a cancelled archive operation", standby(state{"desired_state": "ARCHIVED", "operation": "ARCHIVING"}), cancel, rests},
		{"an archive operation cancelled for a queued state", standby(state{"desired_state": "ARCHIVED", "operation": "ARCHIVING"}), patch("STANDBY", true),
			state{"operation": "NONE", "desired_state": "STANDBY", "next_desired_state": nil}},
		{"a cancelled start", standby(state{"desired_state": "RUNNING", "operation": "STARTING"}), cancel, rests},
		{"a start ended by a forced stop", standby(state{"desired_state": "RUNNING", "operation": "STARTING"}),
			func(id workspace.ID) error { _, err := e.RequestForceStop(ctx, ann, id); return err }, rests},
		{"a failed start that is no longer desired", standby(state{"desired_state": "RUNNING", "error_count": 1}), patch("STANDBY", false), nil},
		{"a start that is withdrawn", standby(nil), patch("RUNNING", false), state{"desired_state": "STANDBY"}},
		{"a wake that is withdrawn", standby(nil), func(id workspace.ID) error { _, err := e.Wake(ctx, ann, id); return err }, state{"desired_state": "STANDBY"}},
		{"a wake that cancels a stop", running(state{"desired_state": "STANDBY", "desired_cause": "idle"}),
			func(id workspace.ID) error { _, err := e.Wake(ctx, ann, id); return err }, nil},
		{"a deletion undone before a tick", standby(nil), func(id workspace.ID) error {
			if _, err := e.DeleteWorkspace(ctx, ann, id, false); err != nil {
				return err
			}
			_, err := e.UndeleteWorkspace(ctx, ann, id)
			return err
		}, nil},
		{"a stay", running(nil), func(id workspace.ID) error { _, err := e.Stay(ctx, ann, id); return err }, nil},
	} {
		w := e.workspace(ann, c.from)
		if err := c.do(w.ID); err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		e.set(w.ID, c.then)
		w = e.read(w.ID)
		now := query[time.Time](e, `SELECT clock_timestamp()`)
		at, ok := lifecycle.EndsAt(w, workspace.TTL{Standby: time.Hour, Archive: time.Hour})
		if left := at.Sub(now); !ok || left < 59*time.Minute || left > time.Hour {
			t.Errorf("%s: ends in %s (%v): %s", c.name, left, ok, e.row(w.ID))
		}
	}
}

// Requests that do not ask for a workspace to stay are no activity.
func TestRequestsWithoutActivity(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Limits: postgres.Limits{PerUser: 100}})
	ann := e.user("ann")
	ctx := t.Context()
	long := soon(-100 * time.Hour)
	for name, do := range map[string]func(workspace.ID) error{
		"edited": func(id workspace.ID) error {
			_, err := e.PatchWorkspace(ctx, ann, id, postgres.Patch{Edit: workspace.Edit{Memo: ptr("m")}})
			return err
		},
		"stopped": func(id workspace.ID) error {
			_, err := e.PatchWorkspace(ctx, ann, id, postgres.Patch{Desired: ptr(workspace.DesiredStandby)})
			return err
		},
		"the same desired state": func(id workspace.ID) error {
			_, err := e.PatchWorkspace(ctx, ann, id, postgres.Patch{Desired: ptr(workspace.DesiredRunning)})
			return err
		},
	} {
		w := e.workspace(ann, state{"phase": "RUNNING", "desired_state": "RUNNING", "phase_changed_at": long, "last_access_at": long, "last_access_kind": "open"})
		if err := do(w.ID); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := e.read(w.ID); !got.LastAccessAt.Equal(long) || got.LastAccess != "open" {
			t.Errorf("%s: last used %s", name, lastUse(got))
		}
	}
}

func TestStay(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Limits: postgres.Limits{PerUser: 1}})
	ann, eve := e.user("ann"), e.user("eve")
	ctx := t.Context()
	long := soon(-100 * time.Hour)
	w := e.workspace(ann, state{"phase": "RUNNING", "desired_state": "RUNNING", "phase_changed_at": long})
	got := must(e.Stay(ctx, ann, w.ID))(t)
	if got.LastAccess != "stay" || got.LastAccessAt == nil || time.Since(*got.LastAccessAt) > time.Minute || !got.UpdatedAt.Equal(w.UpdatedAt) {
		t.Errorf("%s, updated at %s", lastUse(got), got.UpdatedAt)
	}
	// A stop for idleness that has just begun is undone; one that the owner requested is not.
	e.set(w.ID, state{"desired_state": "STANDBY", "desired_cause": "idle"})
	if got := must(e.Stay(ctx, ann, w.ID))(t); got.DesiredState != workspace.DesiredRunning || got.DesiredCause != "" {
		t.Errorf("desired %s for %q", got.DesiredState, got.DesiredCause)
	}
	if log := e.audited(string(w.ID)); !slices.Equal(log, []string{"ann workspace.create", "ann workspace.desired_state"}) {
		t.Errorf("%q", log)
	}
	e.set(w.ID, state{"desired_state": "STANDBY", "desired_cause": nil})
	if got := must(e.Stay(ctx, ann, w.ID))(t); got.DesiredState != workspace.DesiredStandby {
		t.Errorf("desired %s", got.DesiredState)
	}
	_, err := e.Stay(ctx, eve, w.ID)
	wantCode(t, err, workspace.CodeForbidden)
	e.set(w.ID, state{"operation": "STOPPING"})
	_, err = e.Stay(ctx, ann, w.ID)
	wantCode(t, err, workspace.CodeOperationInProgress)
	e.set(w.ID, state{"operation": "NONE", "phase": "STANDBY"})
	_, err = e.Stay(ctx, ann, w.ID)
	wantCode(t, err, workspace.CodeNotRunning)
	e.set(w.ID, state{"phase": "RUNNING", "deleted_at": soon(0)})
	_, err = e.Stay(ctx, ann, w.ID)
	wantCode(t, err, workspace.CodeNotFound)
}
