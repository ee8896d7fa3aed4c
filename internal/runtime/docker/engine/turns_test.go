package engine

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"
)

func TestHasOption(t *testing.T) {
	t.Parallel()
	for option, want := range map[string]bool{
		"name=seccomp,profile=builtin": false, "name=cgroupns": false, "name=userns": true, "name=rootless": true, "name=userns,x=y": true,
	} {
		if got := hasOption([]string{"name=apparmor", option}, "userns", "rootless"); got != want {
			t.Errorf("%s: %v", option, got)
		}
	}
}

// A container that takes long to start or to stop delays the next one for a short time,
// and a caller that gives up leaves the turn to others.
func TestTurnIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &Engine{turns: semaphore.NewWeighted(allShares)}
		r.known.Store(Features{})
		take := func(shares int64) func() {
			t.Helper()
			end, err := r.turn(t.Context(), shares)
			check(t, err)
			return end
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		end := take(toStop)
		if _, err := r.turn(gone, toStart); err == nil {
			t.Error("a caller that has given up has a turn")
		}
		next := take(toStart) // after maxTurn
		end()                 // late; it does not end the next turn
		if r.turns.TryAcquire(toStop) {
			t.Error("a stop has a turn together with a start")
		}
		take(toStart)()
		next()
		take(toStop)()
	})
}

// As many containers are created and started at once as Docker's machine has processors, and at
// least two. One that takes long does not delay the others for long.
func TestStartsAtOnce(t *testing.T) {
	t.Parallel()
	for processors, want := range map[int]int{0: 2, 1: 2, 2: 2, 8: 8} {
		synctest.Test(t, func(t *testing.T) {
			r := &Engine{starts: semaphore.NewWeighted(allShares)}
			r.known.Store(Features{Known: true, processors: processors})
			turn := func() func() {
				t.Helper()
				end, err := r.StartsTurn(t.Context())
				check(t, err)
				return end
			}
			begun := time.Now()
			end := turn()
			for range want - 1 {
				turn()
			}
			if r.starts.TryAcquire(allShares / int64(want)) {
				t.Errorf("with %d processors more than %d start at once", processors, want)
			}
			end()
			end = turn()
			if waited := time.Since(begun); waited > 0 {
				t.Errorf("one start waited %s after another had ended", waited)
			}
			turn()
			if waited := time.Since(begun); waited != maxTurn {
				t.Errorf("one start waited %s for others that take long", waited)
			}
			end()
		})
	}
}

func TestEngineVersions(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{"20.10.24+dfsg1": false, "20.10.5": false, "23.0.0": true, "23.0.6-1": true, "28.1.1": true, "": false} {
		if got := atLeast(version, 23, 0); got != want {
			t.Errorf("%q: %v", version, got)
		}
	}
}

func TestAtLeast(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{
		"6.18.44-fc": true, "5.15.0-91-generic": true, "5.15": true, "5.10.0-28-amd64": false, "4.19.0": false, "": false, "linux": false,
	} {
		if got := atLeast(version, 5, 15); got != want {
			t.Errorf("atLeast(%q) = %v", version, got)
		}
	}
}
