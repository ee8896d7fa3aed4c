package docker

import (
	"context"
	"net/http"
	"path"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"

	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
)

// With a version of Docker that deadlocks when a container leaves a network while another
// one joins or leaves it, a container of a workspace stops while no other one starts or
// stops. Two starts go on at the same time, and with a newer version a stop does, too.
func TestStopsTakeTurns(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	for name, c := range map[string]struct {
		engine   engine
		together bool
	}{"old": {engine{}, false}, "new": {engine{leavesAtOnce: true}, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newFaultProxy(t)
			r := newRuntime(t, func(cfg *Config) { cfg.Host = e.host })
			r.known.Store(c.engine)
			check(t, r.Prepare(t.Context()))
			var mu sync.Mutex
			now := map[string]int{}
			var startsTogether, stopWithOthers bool
			seen := func() (starts, stops bool) {
				mu.Lock()
				defer mu.Unlock()
				startsTogether = startsTogether || now["start"] > 1
				stopWithOthers = stopWithOthers || now["stop"] > 0 && now["start"]+now["stop"] > 1
				return startsTogether, stopWithOthers
			}
			f := func(_ http.ResponseWriter, req *http.Request) bool {
				call := path.Base(req.URL.Path)
				if req.Method != http.MethodPost || call != "start" && call != "stop" {
					return false
				}
				mu.Lock()
				now[call]++
				mu.Unlock()
				// What may happen is waited for; what may not has some time to happen.
				patience := harness.Patience
				if call == "stop" && !c.together {
					patience = 300 * time.Millisecond
				}
				for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
					if starts, stops := seen(); call == "start" && starts || call == "stop" && stops {
						break
					}
				}
				mu.Lock()
				now[call]--
				mu.Unlock()
				return false
			}
			var specs []runtime.ContainerSpec
			for range 4 {
				specs = append(specs, seededHome(t, r))
			}
			e.fault.Store(&f)
			var all sync.WaitGroup
			for _, spec := range specs {
				all.Go(func() {
					c, err := r.StartContainer(t.Context(), spec, nil)
					if err == nil {
						err = r.RemoveContainer(t.Context(), c.ID, 5*time.Second)
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			if !startsTogether || stopWithOthers != c.together {
				t.Errorf("starts together: %v; a stop together with others: %v", startsTogether, stopWithOthers)
			}
		})
	}
}

// A container that takes long to start or to stop delays the next one for a short time,
// and a caller that gives up leaves the turn to others.
func TestTurnIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &Runtime{turns: semaphore.NewWeighted(allShares)}
		r.known.Store(engine{})
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
			r := &Runtime{starts: semaphore.NewWeighted(allShares)}
			r.known.Store(engine{known: true, processors: processors})
			turn := func() func() {
				t.Helper()
				end, err := r.startsTurn(t.Context())
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
