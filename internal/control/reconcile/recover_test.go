package reconcile_test

import (
	"testing"

	"codehub/internal/workspace"
)

// If an operation failed finally but its effect happened later, Recover treats it
// as complete without calling the runtime.
func TestRecoverDetectsCompletedOperation(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		// begin leads to the operation.
		begin func(w *world) workspace.ID
		// row is the state after the failure, apart from op_id and the error.
		row string
		// without removes what the operation would need.
		without func(w *world, ws workspace.Workspace)
		phase   workspace.Phase
		home    workspace.HomeState
		never   []string
	}{
		"PROVISIONING": {
			begin: func(w *world) workspace.ID {
				id := w.create("one", workspace.DesiredStandby)
				w.awaitPhase(id, workspace.PhaseStandby)
				return id
			},
			row:   `home_ctx = jsonb_set(home_ctx, '{state}', '"filling"')`,
			phase: workspace.PhaseStandby, home: workspace.HomeLive, never: []string{"CreateVolume"},
		},
		"RESTORING": {
			begin: func(w *world) workspace.ID {
				id := w.filled("one", "work")
				w.archived(id)
				w.want(id, workspace.DesiredStandby, false)
				w.awaitPhase(id, workspace.PhaseStandby)
				return id
			},
			row:     `home_ctx = jsonb_set(home_ctx, '{state}', '"filling"') - 'marker'`,
			without: func(w *world, ws workspace.Workspace) { w.archives.take(w.T, ws.ArchiveKey) },
			phase:   workspace.PhaseStandby, home: workspace.HomeLive, never: []string{"CreateEmptyVolume", "StartJob"},
		},
		"ARCHIVING": {
			begin: func(w *world) workspace.ID {
				id := w.filled("one", "work")
				w.archived(id)
				return id
			},
			row:   `home_ctx = '{"state": "archived", "claim": "gone"}'`,
			phase: workspace.PhaseArchived, home: workspace.HomeAbsent, never: []string{"StartJob", "RemoveVolume"},
		},
		"STARTING": {
			begin: func(w *world) workspace.ID { return w.filled("one", "work") },
			row:   `stop_reason = 'requested'`,
			phase: workspace.PhaseRunning, home: workspace.HomeLive, never: []string{"StartContainer", "RemoveContainer"},
		},
		"STOPPING": {
			begin: func(w *world) workspace.ID {
				id := w.filled("one", "work")
				w.want(id, workspace.DesiredStandby, false)
				w.awaitPhase(id, workspace.PhaseStandby)
				return id
			},
			row:   `stop_reason = 'requested'`,
			phase: workspace.PhaseStandby, home: workspace.HomeLive, never: []string{"RemoveContainer", "StartContainer"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			stop := w.lead()
			id := c.begin(w)
			ws := w.row(id)
			stop()
			w.Exec(`UPDATE workspaces SET phase = 'ERROR', error_reason = 'Timeout', error_message = 'late', error_count = 3, `+c.row+` WHERE id = $1`, id)
			if c.without != nil {
				c.without(w, ws)
			}
			w.recovered(id, workspace.RecoverAfresh)
			before := map[string]int{}
			for _, op := range c.never {
				before[op] = w.fake.Calls(op)
			}
			w.lead()
			got := w.await(id, "as it is", func(ws workspace.Workspace) bool {
				return ws.RecoverRequestedAt == nil && ws.Operation == workspace.OpNone && ws.Phase == c.phase
			})
			if got.Home.State != c.home || got.ErrorReason != "" || got.ErrorCount != 0 || name == "STARTING" && got.StopReason != "" {
				t.Errorf("recovered: home %+v, error %q ×%d, stop reason %q", got.Home, got.ErrorReason, got.ErrorCount, got.StopReason)
			}
			w.awaitCalls("Containers", w.fake.Calls("Containers")+10)
			for _, op := range c.never {
				if n := w.fake.Calls(op) - before[op]; n != 0 {
					t.Errorf("%s was called %d times", op, n)
				}
			}
			if name == "RESTORING" || name == "ARCHIVING" {
				w.opened(id, "work")
			}
		})
	}
}

// If the volume went after its removal had failed finally, deleting again does
// nothing.
func TestDeleteAgainDetectsRemovedHome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stop := w.lead()
	gone := w.filled("one", "work")
	home := w.row(gone).Home.Claim
	w.want(gone, workspace.DesiredStandby, false)
	w.awaitPhase(gone, workspace.PhaseStandby)
	stop()
	if err := w.fake.RemoveVolume(t.Context(), gone, home, nil); err != nil {
		t.Fatal(err)
	}
	w.Exec(`UPDATE workspaces SET deleted_at = now(), phase = 'DELETING', error_reason = 'Timeout', error_count = 1,
		home_ctx = jsonb_set(home_ctx, '{state}', '"deleting"') WHERE id = $1`, gone)
	w.delete(gone)
	before := w.fake.Calls("RemoveVolume")
	w.lead()
	w.awaitGone(gone)
	if n := w.fake.Calls("RemoveVolume"); n != before {
		t.Errorf("its volume was removed %d times", n-before)
	}
}
