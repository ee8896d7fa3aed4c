package rollback_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/arrivals/rollback"
	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/workspace"
)

// state is a Store with one state, which keeps what was last applied.
type state struct {
	now     postgres.RollbackState
	applied []postgres.RollbackStep
}

func (s *state) RollbackState(context.Context, workspace.Caller) (postgres.RollbackState, error) {
	return s.now, nil
}

func (s *state) ApplyRollback(_ context.Context, _ workspace.Caller, steps []postgres.RollbackStep) error {
	s.applied = steps
	return nil
}

// volumes is a Runtime that has these volumes alone.
type volumes []runtime.Volume

func (v volumes) Volumes(context.Context) ([]runtime.Volume, error)     { return v, nil }
func (volumes) Containers(context.Context) ([]runtime.Container, error) { return nil, nil }
func (volumes) Mark(context.Context) (m workspace.Mark, found bool, err error) {
	return m, false, nil
}

func wsID(n int) workspace.ID {
	return workspace.ID(fmt.Sprintf("019a7c1e-3f00-7abc-8def-%012d", n))
}

// The pages of a plan list each workspace that changes once, by id, and count the others.
// Applying it counts both.
func TestPlanHasPages(t *testing.T) {
	t.Parallel()
	var v volumes
	st := &state{now: postgres.RollbackState{Now: time.Now(), Hold: "another database managed these workspaces last"}}
	for n := range 8 {
		v = append(v, runtime.Volume{Workspace: wsID(n), Storage: workspace.StorageDockerVolume, Claim: fmt.Sprint(n), Seeded: true, Owner: "ann", Name: fmt.Sprint("ws-", n)})
		if n%4 == 1 { // the database has it
			st.now.Rows = append(st.now.Rows, postgres.RollbackRow{
				ID: wsID(n), Owner: "ann", Name: fmt.Sprint("ws-", n), Storage: workspace.StorageDockerVolume, Phase: workspace.PhaseStandby,
				Home: workspace.Home{State: workspace.HomeLive, Claim: fmt.Sprint(n)},
			})
		}
	}
	slices.Reverse(v)
	s := rollback.New(rollback.Config{Store: st, Runtime: v, Bucket: fixture.NewBucket(t), DeleteGrace: time.Hour, Log: slog.New(slog.DiscardHandler)})
	choice := api.ApplyRestore{Only: []string{"ws-0", "ws-2", "ws-3", "ws-4", "ws-6"}}
	for _, limit := range []int{1, 2, 5, 6} {
		var got []string
		for page := (postgres.Page{Limit: limit}); ; {
			plan, err := s.RestorePlan(t.Context(), workspace.Caller{}, choice, page)
			if err != nil {
				t.Fatal(err)
			}
			if len(plan.Workspaces) > limit || plan.Unchanged != 3 || !plan.OnHold {
				t.Errorf("limit %d: %d workspaces, %d unchanged, on hold %v", limit, len(plan.Workspaces), plan.Unchanged, plan.OnHold)
			}
			for _, w := range plan.Workspaces {
				got = append(got, w.Name)
			}
			if page.Cursor = plan.NextCursor; page.Cursor == "" {
				break
			}
		}
		if !slices.Equal(got, choice.Only) {
			t.Errorf("limit %d: listed %v, want %v", limit, got, choice.Only)
		}
	}
	var refused *workspace.Error
	if _, err := s.RestorePlan(t.Context(), workspace.Caller{}, choice, postgres.Page{Cursor: "nonsense"}); !errors.As(err, &refused) || refused.Code != workspace.CodeInvalid {
		t.Errorf("an invalid cursor: %v", err)
	}
	if done, err := s.ApplyRestore(t.Context(), workspace.Caller{}, choice); err != nil || done != (api.RestoreResult{Changed: 5, Unchanged: 3}) {
		t.Errorf("applied: %+v, %v", done, err)
	}
}

// To which uid the home of a volume was given, an older database does not know: the next use
// gives it to its workspace, with the files of all uids that the database has of it.
func TestTakenVolumeHasUnknownUID(t *testing.T) {
	t.Parallel()
	known := workspace.Home{State: workspace.HomeArchived, Claim: "0", UID: 1_500_001, NextUIDs: []uint32{1_700_001}, FromImage: true}
	st := &state{now: postgres.RollbackState{Now: time.Now(), Hold: "another database managed these workspaces last", Rows: []postgres.RollbackRow{{
		ID: wsID(0), Owner: "ann", Name: "ws-0", Storage: workspace.StorageDockerVolume, Phase: workspace.PhaseArchived, Home: known,
	}}}}
	var v volumes
	for n := range 2 {
		v = append(v, runtime.Volume{Workspace: wsID(n), Storage: workspace.StorageDockerVolume, Claim: fmt.Sprint(n), Seeded: true, Owner: "ann", Name: fmt.Sprint("ws-", n)})
	}
	s := rollback.New(rollback.Config{Store: st, Runtime: v, Bucket: fixture.NewBucket(t), DeleteGrace: time.Hour, Log: slog.New(slog.DiscardHandler)})
	if _, err := s.ApplyRestore(t.Context(), workspace.Caller{}, api.ApplyRestore{}); err != nil {
		t.Fatal(err)
	}
	want := []workspace.Home{
		{State: workspace.HomeLive, Claim: "0", NextUIDs: []uint32{workspace.ArchivedUID, 1_500_001, 1_700_001}},
		{State: workspace.HomeLive, Claim: "1"},
	}
	if len(st.applied) != len(want) {
		t.Fatalf("applied: %+v", st.applied)
	}
	for i, step := range st.applied {
		if !step.Home.Equal(want[i]) || step.Home.BelongsTo(workspace.ArchivedUID) {
			t.Errorf("home %d: %+v, want %+v", i, step.Home, want[i])
		}
	}
}
