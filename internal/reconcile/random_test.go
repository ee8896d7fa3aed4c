package reconcile_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"codehub/internal/archive/store"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// A home keeps its last content through random sequences of requests, crashes of
// the server, jobs and containers, and outages of Docker and the bucket.
// RANDOM_RUNS sets the number of runs and RANDOM_SEED the first seed.
func TestRandomSequencesKeepHomes(t *testing.T) {
	t.Parallel()
	runs, seed := 4, uint64(time.Now().UnixNano())
	for name, set := range map[string]func(s string) error{
		"RANDOM_RUNS": func(s string) (err error) { runs, err = strconv.Atoi(s); return err },
		"RANDOM_SEED": func(s string) (err error) { seed, err = strconv.ParseUint(s, 10, 64); return err },
	} {
		if s := os.Getenv(name); s != "" {
			if err := set(s); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	for n := range runs {
		t.Run(fmt.Sprintf("RANDOM_SEED=%d", seed+uint64(n)), func(t *testing.T) {
			t.Parallel()
			newPlay(t, seed+uint64(n)).run(40)
		})
	}
}

// play is one random run with one workspace.
type play struct {
	*world
	rng  *rand.Rand
	id   workspace.ID
	stop func()
	want string // the expected content of the home
	n    int

	mu     sync.Mutex
	job    *rand.Rand
	broken float64 // the share of calls to the bucket that fail
	slow   time.Duration
}

func newPlay(t *testing.T, seed uint64) *play {
	p := &play{rng: rand.New(rand.NewPCG(seed, 1)), job: rand.New(rand.NewPCG(seed, 2))}
	p.world = newWorld(t)
	// No failure in this test may be final.
	p.policy.RetryBase, p.policy.RetryMax = time.Millisecond, 5*time.Millisecond
	p.world.step = func(workspace.ID, string) { p.pause() }
	p.fake.SetJob(func(ctx context.Context, spec runtime.JobSpec, home string, out io.Writer) int {
		p.pause()
		code := realJob(ctx, spec, home, out)
		p.pause()
		return code
	})
	p.archives.setBefore(func(ctx context.Context, op string, _ workspace.ID) error {
		p.pause()
		if p.chance(p.brokenNow()) {
			return fmt.Errorf("%s: cut off: %w", op, store.ErrUnavailable)
		}
		return ctx.Err()
	})
	p.stop = p.lead()
	p.id = p.filled("one", "0")
	p.want = "0"
	return p
}

func (p *play) chance(part float64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.job.Float64() < part
}

func (p *play) brokenNow() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.broken
}

// pause delays a step so that another event can come in between.
func (p *play) pause() {
	p.mu.Lock()
	d := time.Duration(p.job.Int64N(int64(p.slow) + 1))
	p.mu.Unlock()
	time.Sleep(d)
}

func (p *play) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

func (p *play) run(steps int) {
	for range steps {
		p.act()
		longest := 40 * time.Millisecond
		if p.rng.IntN(3) == 0 {
			longest = 400 * time.Millisecond // time for progress
		}
		time.Sleep(time.Duration(p.rng.Int64N(int64(longest))))
		p.edit()
	}
	p.calm()
	for _, d := range []workspace.DesiredState{workspace.DesiredRunning, workspace.DesiredArchived, workspace.DesiredRunning} {
		p.tryRequest(p.id, d)
		ws := p.await(p.id, string(d), func(ws workspace.Workspace) bool {
			return ws.Phase == workspace.Phase(d) && ws.Operation == workspace.OpNone && ws.DesiredState == d
		})
		if d == workspace.DesiredArchived {
			p.isArchived(ws)
		} else {
			p.expect(p.id, p.want)
		}
	}
	p.Logf("%d edits, %d archives begun, %d jobs", p.n, len(p.keys(p.id)), p.fake.Calls("StartJob"))
}

// calm ends the faults and recovers from their effects.
func (p *play) calm() {
	p.Helper()
	p.set(func() { p.broken, p.slow = 0, 0 })
	p.fake.SetDown(false)
	ws := p.await(p.id, "at rest", func(ws workspace.Workspace) bool {
		return ws.Operation == workspace.OpNone && ws.NextDesired == "" && ws.RetryAt == nil
	})
	if ws.Phase == workspace.PhaseError {
		if ws.ErrorReason != workspace.ErrRetryExceeded {
			p.Fatalf("%s: %s", ws.ErrorReason, ws.ErrorMessage)
		}
		p.recovered(p.id, workspace.RecoverAfresh)
		p.await(p.id, "recovered", func(ws workspace.Workspace) bool {
			return ws.RecoverRequestedAt == nil && ws.Phase != workspace.PhaseError
		})
	}
}

func (p *play) act() {
	desired := []workspace.DesiredState{workspace.DesiredArchived, workspace.DesiredArchived, workspace.DesiredRunning, workspace.DesiredRunning, workspace.DesiredStandby}
	switch what := p.rng.IntN(19); {
	case what < 7: // a request that may be refused
		p.request(desired[p.rng.IntN(len(desired))])
	case what < 10:
		p.Log("the server is killed")
		p.stop()
		p.stop = p.lead()
	case what < 12:
		p.killJobs()
	case what < 13:
		p.Log("cancel")
		_, _ = p.DB.RequestCancel(p.Context(), p.owner, p.id)
	case what < 14:
		p.Log("the container ends")
		p.fake.EndContainer(p.id)
	case what < 15:
		down := p.rng.IntN(4) == 0
		p.Logf("Docker down: %v", down)
		p.fake.SetDown(down)
	case what < 17:
		part := []float64{0, 0, 0, 0, 0.2, 1}[p.rng.IntN(6)]
		p.Logf("the bucket fails: %g", part)
		p.set(func() { p.broken = part })
	default:
		slow := []time.Duration{0, 5 * time.Millisecond, 40 * time.Millisecond}[p.rng.IntN(3)]
		p.set(func() { p.slow = slow })
	}
}

func (p *play) request(d workspace.DesiredState) {
	p.Logf("request %s", d)
	ws := p.row(p.id)
	if ws.Phase == workspace.PhaseError {
		p.recovered(p.id, workspace.RecoverAfresh)
		return
	}
	p.tryRequest(p.id, d)
}

// edit changes the home as its owner, if the proxy admits them.
func (p *play) edit() {
	ws := p.row(p.id)
	if ws.Phase != workspace.PhaseRunning || ws.Operation != workspace.OpNone {
		return
	}
	p.n++
	content := strconv.Itoa(p.n)
	if p.fake.Write(p.id, "notes.txt", content) == nil {
		p.want = content
		p.Logf("edited: %s", content)
	}
}

func (p *play) killJobs() {
	jobs, err := p.fake.Jobs(p.Context())
	if err != nil {
		return // Docker is unavailable
	}
	for _, j := range jobs {
		p.Logf("%s job killed", j.Kind)
		p.fake.EndJob(j.ID)
	}
}
