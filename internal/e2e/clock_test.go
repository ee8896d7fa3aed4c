package e2e

import (
	"strings"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/pgtest"
	"codehub/internal/postgres"
)

// The database's clock is set by a day, ahead and back, while a server leads
// and while none does. Each time the grace of a deletion begins again, the home
// is kept, and the deletion can be undone. (No rule uses the server's own
// clock.)
func TestDatabaseClockJump(t *testing.T) {
	t.Parallel()
	clock := pgtest.NewClock(t, pgtest.New(t, postgres.Migrate))
	b := folderBucket(t)
	s := start(t, append(b.settings, "CODEHUB_DATABASE_URL="+clock.DSN, "CODEHUB_DELETE_GRACE=1h", "COORDINATOR_IDLE_INTERVAL=1s")...)
	id, home := s.createFilled("one", newRand(t, 8))
	claim := s.volumeClaim(id)
	if _, err := s.api.Delete(s.Context(), id, true); err != nil {
		t.Fatal(err)
	}
	s.await(id, "deleted", func(w api.Workspace) bool { return w.Phase == "DELETING" && w.Operation == "NONE" })
	const logged = "garbage collection delays restarted"
	expectHome := func(when string) {
		t.Helper()
		if got := s.volumeClaim(id); got != claim {
			t.Fatalf("%s: the home's volume has the claim %q, it was %q", when, got, claim)
		}
	}
	warned := 0
	awaitWarning := func(when string) {
		t.Helper()
		for deadline := time.Now().Add(patience); strings.Count(s.Log(), logged) <= warned; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: the server did not log the clock jump", when)
			}
		}
		warned = strings.Count(s.Log(), logged)
		expectHome(when)
	}
	for _, ahead := range []time.Duration{24 * time.Hour, -24 * time.Hour} {
		clock.Set(ahead)
		awaitWarning("set to " + ahead.String())
	}
	s.Kill()
	clock.Set(24 * time.Hour)
	s.restart()
	awaitWarning("set while no server led")
	s.createStandby("two") // proves that the new leader has read the clock
	clock.Set(0)
	awaitWarning("set right")
	if _, err := s.api.Undelete(s.Context(), id); err != nil {
		t.Fatal(err)
	}
	s.awaitPhase(id, "STANDBY")
	expectHome("undeleted")
	compareHomes(t, "the home", home, s.readHome(id))
}
