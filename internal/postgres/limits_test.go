package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"codehub/internal/postgres"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// The column holds_slot has the rule of lifecycle.HoldsSlot, for every combination of what it
// depends on.
func TestSlotColumnMatchesLifecycle(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ann := e.user("ann")
	e.exec(`ALTER TABLE workspaces DISABLE TRIGGER USER`)
	e.exec(`
		INSERT INTO workspaces (id, owner_user_id, name, image_ref, storage_backend, phase, operation, op_id, desired_state, conditions, deleted_at, recover_requested_at, recover_action)
		SELECT gen_random_uuid(), $1, 'w' || row_number() OVER (), 'i', 'docker-volume', p, o, CASE WHEN o <> 'NONE' THEN gen_random_uuid() END, d, c::jsonb,
			CASE WHEN x THEN now() END, CASE WHEN r THEN now() END, CASE WHEN r THEN 'afresh' END
		FROM unnest($2::text[]) p, unnest($3::text[]) o, unnest($4::text[]) d, unnest($5::text[]) c, unnest('{true,false}'::bool[]) x, unnest('{true,false}'::bool[]) r
		WHERE (p <> 'ERROR' OR o = 'NONE') AND (x OR p <> 'DELETED')`,
		ann.UserID, workspace.Phases(), []string{"NONE", "STARTING", "STOPPING", "RESTORING"}, []string{"ARCHIVED", "STANDBY", "RUNNING"},
		[]string{"{}", container, noContainer, exited, nothing})
	rows := must(e.raw.Query(t.Context(), `SELECT holds_slot, phase, operation, desired_state, conditions, deleted_at, recover_requested_at FROM workspaces`))(t)
	defer rows.Close()
	n := map[bool]int{}
	for rows.Next() {
		var got bool
		var w workspace.Workspace
		if err := rows.Scan(&got, &w.Phase, &w.Operation, &w.DesiredState, &w.Conditions, &w.DeletedAt, &w.RecoverRequestedAt); err != nil {
			t.Fatal(err)
		}
		if n[got]++; got != lifecycle.HoldsSlot(w) {
			t.Fatalf("holds_slot is %v: %+v", got, w)
		}
	}
	if rows.Err() != nil || n[true] < 100 || n[false] < 100 {
		t.Errorf("%v, %v", n, rows.Err())
	}
}

// Which states count against the limits.
func TestSlotByState(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ann := e.user("ann")
	now := time.Now()
	for _, c := range []struct {
		name  string
		state state
		want  bool
	}{
		{"at rest", state{"phase": "STANDBY"}, false},
		{"wanted", state{"phase": "STANDBY", "desired_state": "RUNNING"}, true},
		{"new, start desired", state{"desired_state": "RUNNING"}, true},
		{"running", state{"phase": "RUNNING"}, true},
		{"running, stop desired", state{"phase": "RUNNING", "operation": "STOPPING"}, true},
		{"starting, stop desired", state{"phase": "STANDBY", "operation": "STARTING"}, true},
		{"start cancelled, container exists", state{"phase": "STANDBY", "conditions": container}, true},
		{"stopping, container exited", state{"phase": "STANDBY", "operation": "STOPPING", "conditions": exited}, true},
		{"stopped", state{"phase": "STANDBY", "operation": "STOPPING", "conditions": noContainer}, false},
		{"start queued", state{"phase": "STANDBY", "operation": "ARCHIVING", "next_desired_state": "RUNNING"}, false},
		{"ERROR", state{"phase": "ERROR", "desired_state": "RUNNING", "conditions": noContainer}, false},
		{"ERROR, not observed", state{"phase": "ERROR", "desired_state": "RUNNING"}, false},
		{"ERROR, with a container", state{"phase": "ERROR", "desired_state": "RUNNING", "conditions": container}, true},
		{"ERROR, with a container, stop desired", state{"phase": "ERROR", "conditions": container}, true},
		{"ERROR, with an exited container", state{"phase": "ERROR", "desired_state": "RUNNING", "conditions": exited}, true},
		{"ERROR, recovery to RUNNING requested", state{"phase": "ERROR", "desired_state": "RUNNING", "recover_requested_at": now, "recover_action": "afresh"}, true},
		{"ERROR, recovery to STANDBY requested", state{"phase": "ERROR", "recover_requested_at": now, "recover_action": "afresh"}, false},
		{"deleted", state{"phase": "RUNNING", "desired_state": "RUNNING", "deleted_at": now}, false},
		{"undeleted, container exists", state{"phase": "DELETING", "conditions": container}, true},
		{"undeleted", state{"phase": "DELETING", "conditions": noContainer}, false},
	} {
		w := e.workspace(ann, c.state)
		running := must(e.RunningOf(t.Context(), ann.UserID))(t)
		if got := len(running) == 1 && running[0].ID == w.ID; got != c.want || len(running) > 1 {
			t.Errorf("%s: counts %v, want %v", c.name, names(running), c.want)
		}
		e.exec(`DELETE FROM workspaces WHERE id = $1`, w.ID)
	}
	_, err := e.RunningOf(t.Context(), "nobody")
	wantCode(t, err, workspace.CodeNotFound)
}

func TestLimitDetails(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Limits: postgres.Limits{PerUser: 2, Global: 4}})
	ctx := t.Context()
	start := func(who workspace.Caller, name string) (workspace.Workspace, error) {
		return e.CreateWorkspace(ctx, who, newWorkspace(name, workspace.DesiredRunning))
	}
	details := func(err error) map[string]any {
		t.Helper()
		wantCode(t, err, workspace.CodeLimitExceeded)
		return asError(t, err).Details
	}
	ann, bob, eve := e.user("ann"), e.user("bob"), e.user("eve")
	one, two := must(start(ann, "one"))(t), must(start(ann, "two"))(t)
	_, err := start(ann, "three")
	if d := cmp.Diff(map[string]any{
		"limit_type": "per_user", "current": 2, "max": 2,
		"running_workspaces": []map[string]any{{"id": string(two.ID), "name": "two"}, {"id": string(one.ID), "name": "one"}},
	}, details(err)); d != "" {
		t.Error(d)
	}
	if n := query[int](e, `SELECT count(*) FROM workspaces`); n != 2 {
		t.Errorf("%d workspaces: one was created above the limit", n)
	}
	if n := query[int](e, `SELECT count(*) FROM audit_log WHERE action = 'workspace.create'`); n != 2 {
		t.Errorf("%d creations recorded", n)
	}

	// The custom limit may be above or below, and 0 is no limit.
	for limit, want := range map[int]bool{3: true, 2: false, 1: false, 0: true} {
		e.exec(`UPDATE users SET max_running = $2 WHERE id = $1`, ann.UserID, limit)
		w, err := start(ann, "three")
		if (err == nil) != want {
			t.Errorf("with an override of %d: %v", limit, err)
		}
		if err == nil {
			e.exec(`DELETE FROM workspaces WHERE id = $1`, w.ID)
		}
	}
	e.exec(`UPDATE users SET max_running = NULL`)

	must(start(bob, "one"))(t)
	must(start(bob, "two"))(t)
	_, err = start(eve, "one")
	if d := cmp.Diff(map[string]any{"limit_type": "global", "current": 4, "max": 4}, details(err)); d != "" {
		t.Error(d)
	}
	// A workspace that does not run is created at the limit.
	must(e.CreateWorkspace(ctx, eve, newWorkspace("rest", workspace.DesiredStandby)))(t)
	// A workspace that counts already is not counted twice.
	e.set(one.ID, state{"phase": "RUNNING", "desired_state": "STANDBY"})
	must(e.PatchWorkspace(ctx, ann, one.ID, postgres.Patch{Desired: ptr(workspace.DesiredRunning)}))(t)
}

// Many concurrent starts, by every way that leads to RUNNING, and a limit of 3: never a fourth.
func TestLimitIsExact(t *testing.T) {
	t.Parallel()
	n := 60
	if harness.Verifying() {
		n = 200
	}
	for name, limits := range map[string]postgres.Limits{"per user": {PerUser: 3}, "global": {Global: 3}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := open(t, postgres.Options{Limits: limits, MaxConns: 24})
			ctx := t.Context()
			users := []workspace.Caller{e.user("ann"), e.user("bob"), e.user("eve")}
			starts := startsOf(e, users, name == "per user", n)

			stop := make(chan struct{})
			watched := watchCount(e, stop)
			var begun, refused atomic.Int32
			var g errgroup.Group
			for i := range n {
				g.Go(func() error {
					ok, err := starts[i%len(starts)](ctx, i)
					// On a busy machine some wait longer for the others than a statement may.
					for until := time.Now().Add(2 * time.Minute); workspace.CodeOf(err) == workspace.CodeUnavailable && time.Now().Before(until); {
						ok, err = starts[i%len(starts)](ctx, i)
					}
					switch {
					case workspace.CodeOf(err) == workspace.CodeLimitExceeded, err == nil && !ok:
						refused.Add(1)
					case err != nil:
						return fmt.Errorf("start %d: %w", i, err)
					default:
						begun.Add(1)
					}
					return nil
				})
			}
			if err := g.Wait(); err != nil {
				t.Fatal(err)
			}
			close(stop)
			if most := <-watched; most != 3 {
				t.Errorf("at most %d ran at once, want 3", most)
			}
			if begun.Load() != 3 || refused.Load() != int32(n-3) {
				t.Errorf("%d starts succeeded and %d were refused, want 3 of %d", begun.Load(), refused.Load(), n)
			}
		})
	}
}

// startsOf returns the ways that lead to RUNNING, each for a workspace of its own.
func startsOf(e *env, users []workspace.Caller, oneUser bool, n int) []func(ctx context.Context, i int) (bool, error) {
	const ways = 6
	who := func(i int) workspace.Caller {
		if oneUser {
			return users[0]
		}
		return users[i%len(users)]
	}
	made := map[int]workspace.ID{}
	for i := range n {
		var s state
		switch i % ways {
		case 0:
			continue
		case 1, 2:
			s = state{"phase": "STANDBY", "conditions": noContainer}
		case 3:
			s = state{"phase": "STANDBY", "conditions": noContainer, "next_desired_state": "RUNNING"}
		case 4:
			s = state{"phase": "ERROR", "error_reason": "Timeout", "desired_state": "RUNNING", "conditions": noContainer}
		case 5:
			s = state{"phase": "DELETING", "deleted_at": time.Now(), "conditions": container, "home_ctx": `{"state": "live", "claim": "c"}`}
		}
		made[i] = e.workspace(who(i), s).ID
	}
	return []func(context.Context, int) (bool, error){
		func(ctx context.Context, i int) (bool, error) {
			_, err := e.CreateWorkspace(ctx, who(i), newWorkspace(fmt.Sprintf("new %d", i), workspace.DesiredRunning))
			return err == nil, err
		},
		func(ctx context.Context, i int) (bool, error) {
			_, err := e.PatchWorkspace(ctx, who(i), made[i], postgres.Patch{Desired: ptr(workspace.DesiredRunning)})
			return err == nil, err
		},
		func(ctx context.Context, i int) (bool, error) {
			_, err := e.Wake(ctx, who(i), made[i])
			return err == nil, err
		},
		func(ctx context.Context, i int) (bool, error) { return e.ApplyQueued(ctx, made[i]) },
		func(ctx context.Context, i int) (bool, error) {
			_, err := e.RequestRecover(ctx, who(i), made[i], workspace.RecoverAfresh)
			return err == nil, err
		},
		func(ctx context.Context, i int) (bool, error) {
			_, err := e.UndeleteWorkspace(ctx, who(i), made[i])
			return err == nil, err
		},
	}
}

// watchCount polls how many workspaces count, by a query of its own, and returns the maximum
// once stop is closed.
func watchCount(e *env, stop <-chan struct{}) <-chan int {
	most := make(chan int, 1)
	go func() {
		n := 0
		for {
			n = max(n, query[int](e, `
				SELECT count(*) FROM workspaces WHERE deleted_at IS NULL AND (
					(desired_state = 'RUNNING' AND (phase <> 'ERROR' OR recover_requested_at IS NOT NULL))
					OR phase = 'RUNNING' OR operation = 'STARTING'
					OR (phase = 'DELETING' AND conditions #>> '{infra.container_ready,reason}' = 'Ready'))`))
			select {
			case <-stop:
				most <- n
				return
			default:
			}
		}
	}()
	return most
}

// A queued state waits for exactly the limit that would refuse a start.
func TestMayRun(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Limits: postgres.Limits{PerUser: 1, Global: 2}})
	ctx := t.Context()
	ann, bob, eve := e.user("ann"), e.user("bob"), e.user("eve")
	limit := func(caller workspace.Caller, id workspace.ID) string {
		t.Helper()
		err := e.MayRun(ctx, caller, id)
		if err == nil {
			return ""
		}
		wantCode(t, err, workspace.CodeLimitExceeded)
		var coded *workspace.Error
		errors.As(err, &coded)
		return fmt.Sprint(coded.Details["limit_type"])
	}
	first, second := e.workspace(ann, nil), e.workspace(ann, nil)
	others := e.workspace(eve, nil)
	if got := limit(ann, first.ID); got != "" {
		t.Errorf("below the limit: %q", got)
	}
	e.exec(`UPDATE workspaces SET phase = 'RUNNING' WHERE id = $1`, first.ID)
	if limit(ann, first.ID) != "" || limit(ann, second.ID) != "per_user" || limit(eve, others.ID) != "" {
		t.Errorf("%q, %q, %q", limit(ann, first.ID), limit(ann, second.ID), limit(eve, others.ID))
	}
	e.workspace(bob, state{"phase": "RUNNING"})
	if got := limit(eve, others.ID); got != "global" {
		t.Errorf("at the limit: %q", got)
	}
}
