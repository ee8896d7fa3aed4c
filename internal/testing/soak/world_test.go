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

// world is a machine with workspaces and their lives.
type world struct {
	*machine
	*testing.T
	seed   uint64
	rng    *rand.Rand
	local  bool          // homes are folders, not volumes
	grace  time.Duration // grace of a deletion
	lives  []*life
	failed bool // an outcome was not ok: the machine is not used further

	mu      sync.Mutex
	created int
}

var worlds atomic.Int64

// machines are the machines that a signal closes.
var machines sync.Map

// exitMutex is held while the process exits.
var exitMutex sync.Mutex

func closeOnSignal() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	go func() {
		fmt.Fprintf(os.Stderr, "soak: %v; cleaning up\n", <-signals)
		exitMutex.Lock()
		machines.Range(func(m, _ any) bool { m.(*machine).close(); return true })
		report.print()
		_ = os.RemoveAll(env.scratch)
		os.Exit(1)
	}()
}

// newWorld boots a machine. The seed determines its settings and the steps of
// its lives, but not their timing. prepare changes the machine before it is
// booted.
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
		w.fatalOn(prepare(w))
	}
	w.settings = append(w.settings, "CODEHUB_DELETE_GRACE="+w.grace.String())
	t.Logf("%s: seed %d, %s, grace %s, collected after %s; log %s", kind, seed, storage, w.grace, delay, log)
	w.fatalOn(w.boot(t.Context()))
	for i := range intSetting("SOAK_WORKSPACES", 5) {
		l := &life{world: w, rng: rand.New(rand.NewPCG(seed, uint64(i+2)))}
		_ = l.reset(errors.New("begin"))
		w.lives = append(w.lives, l)
	}
	return w
}

// done closes the machine, and removes its log if all outcomes were ok.
func (w *world) done() {
	log := w.log.Name()
	w.machine.close()
	if !w.failed && !w.Failed() && os.Getenv("SOAK_KEEP_LOGS") == "" {
		_ = os.Remove(log)
	}
}

func (w *world) fatalOn(err error) {
	w.Helper()
	if err != nil {
		w.failed = true
		w.Fatalf("seed %d: %v\nlog: %s", w.seed, err, w.log.Name())
	}
}

// work lets all lives act, calls strike after the duration, and stops the lives
// when strike returns.
func (w *world) work(duration time.Duration, strike func() error) {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	var group sync.WaitGroup
	group.Go(func() { w.runLives(ctx) })
	time.Sleep(duration)
	err := strike()
	cancel()
	group.Wait()
	w.fatalOn(err)
}

// runLives lets all lives act until the context ends.
func (w *world) runLives(ctx context.Context) {
	var group sync.WaitGroup
	for _, l := range w.lives {
		group.Go(func() { l.act(ctx) })
	}
	group.Wait()
}

// runningOperations counts the operations that run now, by kind.
func (w *world) runningOperations() map[string]int {
	ctx, cancel := context.WithTimeout(w.Context(), time.Second)
	defer cancel()
	running := map[string]int{}
	all, err := w.api.List(ctx, codehub.Filter{})
	if err != nil {
		w.note("list running operations: %v", err)
	}
	for _, ws := range all {
		if ws.Operation != "NONE" {
			running[ws.Operation]++
		}
	}
	return running
}

// verify verifies all homes and counts the outcomes.
func (w *world) verify(kind string) {
	w.Helper()
	var group sync.WaitGroup
	for _, l := range w.lives {
		group.Go(func() {
			result, detail := l.verify(w.Context())
			if result == ok {
				report.countHome(kind, ok)
				return
			}
			w.reportHome(kind, result, detail+"\n"+l.history())
			w.dump(l.id)
		})
	}
	group.Wait()
}

// reportHome counts an outcome that is not ok and fails the test.
func (w *world) reportHome(kind string, result outcome, why string) {
	w.Helper()
	w.mu.Lock()
	w.failed = true
	w.mu.Unlock()
	report.countHome(kind, result)
	w.note("%s: %s", result, why)
	w.Errorf("%s: seed %d: %s: %s\nlog: %s", kind, w.seed, result, truncate(why), w.log.Name())
}

// truncate shortens a long difference. The log has all of it.
func truncate(why string) string {
	const most = 12
	lines := strings.Split(why, "\n")
	for i, line := range lines {
		if len(line) > 2000 {
			lines[i] = line[:500] + " … " + line[len(line)-1500:]
		}
	}
	if len(lines) > most {
		more := fmt.Sprintf("and %d more lines", len(lines)-most)
		lines = append(append(lines[:most-1:most-1], more), lines[len(lines)-1])
	}
	return strings.Join(lines, "\n")
}

// intSetting returns a number from the environment.
func intSetting(name string, otherwise int) int {
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

// newSeed returns SEED, or a random seed.
func newSeed(t *testing.T) uint64 {
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
