package reconcile_test

import (
	"fmt"
	"testing"
	"time"

	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/pgtest"
	"codehub/internal/workspace"
)

const day = 24 * time.Hour

// withClock gives a world's database a clock that can be set.
func withClock(ahead time.Duration, clock **pgtest.Clock) func(*world) {
	return func(w *world) {
		*clock = pgtest.NewClock(w, w.DSN)
		(*clock).Set(ahead)
		w.Database = fixture.OpenDatabase(w, (*clock).DSN, quiet)
	}
}

func withGrace(d time.Duration) func(*world) {
	return func(w *world) { w.policy.DeleteGrace = d }
}

// deletedNow deletes a workspace and waits until only its home is left.
func (w *world) deletedNow(id workspace.ID) {
	w.Helper()
	w.delete(id)
	w.await(id, "deleted, without its container", func(ws workspace.Workspace) bool {
		return ws.Phase == workspace.PhaseDeleting && ws.Operation == workspace.OpNone && !ws.Conditions.HasContainer()
	})
}

// notRemoved waits for many ticks and checks that no home was removed.
func (w *world) notRemoved() {
	w.Helper()
	before := w.fake.Calls("RemoveVolume")
	w.awaitCalls("Containers", w.fake.Calls("Containers")+30)
	if n := w.fake.Calls("RemoveVolume"); n != before {
		w.Errorf("%d homes were removed", n-before)
	}
}

// The grace period is exact when the database's and the server's clocks differ.
func TestGraceIsExactWithDifferingClocks(t *testing.T) {
	t.Parallel()
	for _, ahead := range few(-day, 90*time.Second, -90*time.Second, day) {
		t.Run(ahead.String(), func(t *testing.T) {
			t.Parallel()
			var clock *pgtest.Clock
			w := newWorld(t, withClock(ahead, &clock), withGrace(time.Minute))
			w.lead()
			id := w.filled("one", "work")
			w.deletedNow(id)
			w.notRemoved()
			w.undelete(id)
			w.awaitPhase(id, workspace.PhaseStandby)
			w.archived(id)
			w.opened(id, "work")
			w.deletedNow(id)
			w.Exec(`UPDATE workspaces SET deleted_at = deleted_at - interval '1 minute'`)
			w.await(id, "removed after its grace", func(ws workspace.Workspace) bool { return ws.Home.State == workspace.HomeAbsent })
		})
	}
}

// When the database's clock is set, every deletion waits its whole grace period
// again.
func TestClockChangeRestartsGrace(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{-day, day} {
		t.Run(ahead.String(), func(t *testing.T) {
			t.Parallel()
			var clock *pgtest.Clock
			w := newWorld(t, withClock(0, &clock), withGrace(time.Hour))
			w.lead()
			id := w.filled("one", "work")
			w.deletedNow(id)
			for _, to := range []time.Duration{ahead, 0, ahead} {
				clock.Set(to)
				w.notRemoved()
			}
			restored := fixture.Query[time.Duration](w, `SELECT clock_timestamp() - restored_at FROM gc_state`)
			if restored < 0 || restored > time.Minute {
				t.Errorf("the waits were restarted %s ago", restored)
			}
			w.undelete(id)
			w.awaitPhase(id, workspace.PhaseStandby)
			w.opened(id, "work")
		})
	}
}

// Deleted rows from a restored backup keep their homes for the whole grace period
// after the restore.
func TestRestoredDeletionWaitsWholeGrace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withGrace(time.Hour))
	stop := w.lead()
	var ids []workspace.ID
	for i, state := range []string{"live", "filling", "archived", "discarding"} {
		id := w.filled(fmt.Sprint("ws", i), "work")
		w.want(id, workspace.DesiredStandby, false)
		w.awaitPhase(id, workspace.PhaseStandby)
		ids = append(ids, id)
		_ = state
	}
	stop()
	for i, state := range []string{"live", "filling", "archived", "discarding"} {
		w.Exec(`UPDATE workspaces SET deleted_at = now() - interval '3 hours', phase = 'DELETING', archive_key = CASE WHEN $2 = 'live' THEN NULL ELSE 'k' END,
			home_ctx = jsonb_set(home_ctx, '{state}', to_jsonb($2::text)) WHERE id = $1`, ids[i], state)
	}
	w.Exec(`UPDATE gc_state SET restored_at = now()`)
	w.lead()
	w.notRemoved()
	w.undelete(ids[0])
	w.awaitPhase(ids[0], workspace.PhaseStandby)
	w.opened(ids[0], "work")
	w.Exec(`UPDATE gc_state SET restored_at = now() - interval '2 hours'`)
	for _, id := range ids[1:] {
		w.await(id, "removed after its grace", func(ws workspace.Workspace) bool { return ws.Home.State == workspace.HomeAbsent })
	}
}
