package gc_test

import (
	"testing"
	"time"

	"codehub/internal/control/gc"
	"codehub/internal/postgres"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/pgtest"
)

// A change of the database's clock during a collection removes nothing and
// restarts every wait.
func TestClockChangeDuringCollection(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{-24 * time.Hour, 24 * time.Hour} {
		w := newWorld(t, nil)
		clock := pgtest.NewClock(t, w.DSN)
		w.session = postgres.NewController(postgres.NewSession(fixture.Connect(t, clock.DSN)))
		id, other := w.workspace("deleted"), w.workspace("other")
		keys := append(w.generations(id, 2), w.generations(other, 4)...)
		w.collect(gc.Options{}) // superseded archives wait from now on
		w.delete(id)
		w.store.listed = func() { clock.Set(ahead) }
		// Set back, nothing is due, and the collection may end without a second reading.
		if _, err := w.tryCollect(gc.Options{}); err == nil && ahead > 0 {
			t.Errorf("%s: the collection went on", ahead)
		}
		w.store.listed = nil
		w.collect(gc.Options{})
		w.wantThere(keys...)
	}
}
