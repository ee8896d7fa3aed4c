package docker

import (
	"fmt"
	"net/http"
	"path"
	"sync"
	"testing"
	"time"

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
		version  string
		together bool
	}{"old": {"20.10.24", false}, "new": {"23.0.0", true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newFaultProxy(t)
			r := newRuntime(t, func(cfg *Config) { cfg.Host = e.host })
			version := func(w http.ResponseWriter, req *http.Request) bool {
				if path.Base(req.URL.Path) != "info" {
					return false
				}
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprintf(w, `{"ServerVersion":%q,"NCPU":8}`, c.version)
				return true
			}
			e.fault.Store(&version)
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
