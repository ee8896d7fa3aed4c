package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	codehub "codehub/client"
)

// world is a machine with workspaces that live on it.
type world struct {
	*machine
	*testing.T
	seed  uint64
	rng   *rand.Rand
	local bool          // homes are folders, not volumes
	grace time.Duration // of a deletion
	lives []*life
	quiet bool // no lives to begin with
	bad   bool // something was lost, damaged or stuck: nothing follows from this world any more

	mu   sync.Mutex
	made int
}

var worlds atomic.Int64

// running are the machines to close if the tests are told to end.
var running sync.Map

// ending is held by whoever ends the process.
var ending sync.Mutex

func closeOnSignal() {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM, os.Interrupt)
	go func() {
		fmt.Fprintf(os.Stderr, "soak: %v; cleaning up\n", <-told)
		ending.Lock()
		running.Range(func(m, _ any) bool { m.(*machine).close(); return true })
		report.print()
		_ = os.RemoveAll(env.scratch)
		os.Exit(1)
	}()
}

// newWorld boots a machine. The seed decides everything about it but the moments
// at which things happen. prepare changes it before it is booted.
func newWorld(t *testing.T, kind string, seed uint64, prepare func(*world) error) *world {
	t.Helper()
	image, err := template()
	if err != nil {
		t.Fatalf("first machine: %v", err)
	}
	w := &world{T: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 1))}
	w.local = w.rng.IntN(4) == 0
	w.grace = []time.Duration{3 * time.Second, time.Hour}[w.rng.IntN(2)]
	delay := []string{"1m", "2h"}[w.rng.IntN(2)]
	storage := "docker-volume"
	if w.local {
		storage = "local-dir"
	}
	log := filepath.Join(env.output, fmt.Sprintf("%s-%d.log", strings.ReplaceAll(kind, " ", "-"), worlds.Add(1)))
	_ = os.Remove(log)
	if w.machine, err = newMachine(image, log, "CODEHUB_STORAGE="+storage, "CODEHUB_GC_DELAY="+delay); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.machine.close)
	if prepare != nil {
		w.must(prepare(w))
	}
	w.settings = append(w.settings, "CODEHUB_DELETE_GRACE="+w.grace.String())
	t.Logf("%s: seed %d, %s, grace %s, collected after %s; log %s", kind, seed, storage, w.grace, delay, log)
	w.must(w.boot(t.Context()))
	for i := range number("SOAK_WORKSPACES", 5) {
		if w.quiet {
			break
		}
		l := &life{w: w, rng: rand.New(rand.NewPCG(seed, uint64(i+2)))}
		_ = l.begin(errors.New("begin"))
		w.lives = append(w.lives, l)
	}
	return w
}

// done closes the machine, and removes the log of one that nothing happened to.
func (w *world) done() {
	log := w.log.Name()
	w.machine.close()
	if !w.bad && !w.Failed() && os.Getenv("SOAK_KEEP_LOGS") == "" {
		_ = os.Remove(log)
	}
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.bad = true
		w.Fatalf("seed %d: %v\nlog: %s", w.seed, err, w.log.Name())
	}
}

// work lets all lives act for a while, calls strike in the middle of it, and
// ends them when that returns.
func (w *world) work(duration time.Duration, strike func() error) {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	var group sync.WaitGroup
	group.Go(func() { w.live(ctx) })
	time.Sleep(duration)
	err := strike()
	cancel()
	group.Wait()
	w.must(err)
}

// live lets all lives act until the context ends.
func (w *world) live(ctx context.Context) {
	var group sync.WaitGroup
	for _, l := range w.lives {
		group.Go(func() { l.act(ctx) })
	}
	group.Wait()
}

// underWay are the operations that run now, by their kinds.
func (w *world) underWay() map[string]int {
	ctx, cancel := context.WithTimeout(w.Context(), time.Second)
	defer cancel()
	running := map[string]int{}
	all, err := w.hub.List(ctx, codehub.Filter{})
	if err != nil {
		w.note("what is under way: %v", err)
	}
	for _, ws := range all {
		if ws.Operation != "NONE" {
			running[ws.Operation]++
		}
	}
	return running
}

// verify brings all homes up, compares and counts them.
func (w *world) verify(kind string) {
	w.Helper()
	var group sync.WaitGroup
	for _, l := range w.lives {
		group.Go(func() {
			result, why := l.verify(w.Context())
			if result == ok {
				report.home(kind, ok)
				return
			}
			w.found(kind, result, why+"\n"+l.history())
			w.dump(l.id)
		})
	}
	group.Wait()
}

// found counts a home that is not ok and fails the test.
func (w *world) found(kind string, result outcome, why string) {
	w.Helper()
	w.mu.Lock()
	w.bad = true
	w.mu.Unlock()
	report.home(kind, result)
	w.note("%s: %s", result, why)
	w.Errorf("%s: seed %d: %s: %s\nlog: %s", kind, w.seed, result, short(why), w.log.Name())
}

// short leaves out the middle of a long difference, which the log has.
func short(why string) string {
	const most = 12
	lines := strings.Split(why, "\n")
	for i, line := range lines {
		if len(line) > 2000 {
			lines[i] = line[:500] + " … " + line[len(line)-1500:]
		}
	}
	if len(lines) > most {
		more := fmt.Sprintf("and %d lines more", len(lines)-most)
		lines = append(append(lines[:most-1:most-1], more), lines[len(lines)-1])
	}
	return strings.Join(lines, "\n")
}

// number is a setting of the tests from the environment.
func number(name string, otherwise int) int {
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(fmt.Sprintf("%s: %v", name, err))
	}
	return n
}

// seedOf is SEED, or a new one.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	if s := os.Getenv("SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("SEED: %v", err)
		}
		return n
	}
	return rand.Uint64()
}
