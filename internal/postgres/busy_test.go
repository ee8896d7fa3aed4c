package postgres_test

import (
	"testing"
	"time"

	"codehub/internal/bus/activity"
	"codehub/internal/postgres"

	"github.com/google/go-cmp/cmp"
)

// A confirmed use is read as it was written, also when it replaces an earlier one.
func TestConfirmedUseIsReadAsWritten(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	idle := postgres.NewIdleness(postgres.NewController(postgres.NewSession(e.conn())))
	ws := e.workspace(e.user("ann"), state{"phase": "RUNNING", "desired_state": "RUNNING", "phase_changed_at": soon(-3 * time.Hour)})
	e.watched(soon(0))
	at, since := soon(-time.Minute), soon(-2*time.Hour)
	for _, day := range []time.Time{time.Date(2026, 3, 19, 0, 0, 0, 0, time.UTC), time.Date(2026, 3, 20, 0, 0, 0, 0, time.UTC)} {
		want := postgres.Busy{ConfirmedAt: &at, HeldSince: &since, WorkDay: &day, WorkSeconds: 3600 + day.Day()}
		if err := idle.Confirm(t.Context(), []postgres.Confirmed{{ID: ws.ID, Kind: activity.Work, Busy: want}}); err != nil {
			t.Fatal(err)
		}
		list := must(idle.IdleSoon(t.Context(), time.Hour, 2*time.Hour, 10))(t)
		if len(list) != 1 {
			t.Fatalf("%d workspaces are listed, want 1", len(list))
		}
		if d := cmp.Diff(want, list[0].Busy); d != "" {
			t.Error(d)
		}
	}
}
