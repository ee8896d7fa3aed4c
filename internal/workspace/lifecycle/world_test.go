package lifecycle_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// The simulated world: one workspace's row, what people ask of it, a server
// that ticks and works on it and may be killed at any point, and an engine and
// a bucket that fail in every way they can. The judge under test is the only
// real part. Invariants (world_invariants_test.go) are checked after every
// step; once the faults stop, the workspace has to come to rest where it is
// wanted, or in an ERROR that has a way out.

// TestMain gives the simulated worlds more runs than rapid's default of 100, and in make
// verify many more.
// For a soak: LIFECYCLE_CHECKS=200000 go test -count=1 -timeout 0 -run World ./internal/workspace/lifecycle
// (or -rapid.checks; -rapid.seed and -rapid.failfile repeat what failed).
func TestMain(m *testing.M) {
	flag.Parse()
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	checks := os.Getenv("LIFECYCLE_CHECKS")
	if checks == "" {
		checks = "200"
		if harness.Verifying() {
			checks = "1500"
		}
	}
	for name, value := range map[string]string{"rapid.checks": checks, "rapid.steps": "80", "rapid.nofailfile": "true"} {
		if given[name] {
			continue
		}
		if err := flag.Set(name, value); err != nil {
			fmt.Fprintln(os.Stderr, "set", name, "to", value, "-", err)
			os.Exit(2)
		}
	}
	// The exhaustive tests leave much garbage and hold little.
	debug.SetGCPercent(1000)
	os.Exit(m.Run())
}

type world struct {
	t      *rapid.T
	faults faults
	now    time.Time
	serial int
	calm   bool // no faults, no requests
	policy lifecycle.Policy

	row       workspace.Workspace
	requestAt time.Time

	// the engine
	reachable   bool
	reachableAt time.Time // since when
	imageThere  bool
	imageBad    bool
	container   *container
	volume      *volume
	job         map[string]*job // by claim

	// the bucket
	bucketUp   bool
	bucketUpAt time.Time
	objects    map[string]*object

	generations []string // archives that were current at some time

	backup string // the last backup of the home; empty: none

	// what hands have taken away and can put back
	takenVolume *volume
	takenObject map[string]*object

	srv    *server // nil: killed
	late   []call  // what a killed server had under way at the engine
	landed int     // how many of these have been carried out

	home  homeTruth
	hands int // how much was done by hand
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newWorld(t *rapid.T) *world {
	w := &world{
		t: t, faults: drawFaults(t), now: epoch, policy: lifecycle.DefaultPolicy(),
		reachable: true, reachableAt: epoch, bucketUp: true, bucketUpAt: epoch,
		imageThere:  rapid.Bool().Draw(t, "image there"),
		job:         map[string]*job{},
		objects:     map[string]*object{},
		takenObject: map[string]*object{},
	}
	if rapid.Bool().Draw(t, "no grace") {
		w.policy.DeleteGrace = 0
	}
	w.row = workspace.Workspace{
		ID:           "019a0000-0000-7000-8000-000000000001",
		Phase:        workspace.PhasePending,
		Operation:    workspace.OpNone,
		Home:         workspace.Home{State: workspace.HomeAbsent},
		DesiredState: drawDesired(t),
		ImageRef:     "image:1",
		CreatedAt:    epoch,
	}
	w.begin()
	w.startServer()
	return w
}

// begin is the origin of the workspace: it is new, imported, or adopted from an archive
// in the bucket. Nothing of it was observed yet.
func (w *world) begin() {
	r := &w.row
	switch rapid.SampledFrom([]string{"new", "home", "archive"}).Draw(w.t, "begins with") {
	case "home":
		r.Home = workspace.Home{State: workspace.HomeLive, Claim: w.id("imported")}
		w.volume = &volume{claim: r.Home.Claim, content: w.serial, complete: true, seeded: true}
		w.home = homeTruth{has: true, latest: w.serial}
	case "archive":
		r.ArchiveKey = keyOf(w.id("adopted"))
		w.generations = append(w.generations, r.ArchiveKey)
		w.objects[r.ArchiveKey] = &object{content: w.serial, meta: true}
		w.home = homeTruth{has: true, latest: w.serial}
	}
}

// faults is what can go wrong in one world. Worlds differ in it: where nearly
// everything fails, nothing gets far.
type faults struct {
	calls, looks int // of 40, how many fail
	off          map[string]bool
}

func drawFaults(t *rapid.T) faults {
	return faults{
		calls: rapid.SampledFrom([]int{0, 0, 2, 7, 20}).Draw(t, "calls fail"),
		looks: rapid.SampledFrom([]int{0, 0, 1, 10}).Draw(t, "looks fail"),
		off:   map[string]bool{},
	}
}

// happens draws once for a world whether something ever happens in it.
func (w *world) happens(what string) bool {
	off, drawn := w.faults.off[what]
	if !drawn {
		off = rapid.Bool().Draw(w.t, "no "+what)
		w.faults.off[what] = off
	}
	return !off
}

func drawDesired(t *rapid.T) workspace.DesiredState {
	return rapid.SampledFrom([]workspace.DesiredState{
		workspace.DesiredRunning, workspace.DesiredStandby, workspace.DesiredArchived,
	}).Draw(t, "desired")
}

func (w *world) id(kind string) string {
	w.serial++
	return fmt.Sprintf("%s%d", kind, w.serial)
}

// logf tells the story of a failing run.
func (w *world) logf(format string, args ...any) {
	w.t.Logf("%s "+format, append([]any{w.now.Sub(epoch)}, args...)...)
}

func (w *world) failf(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("%s: %s\nrow: %s\n%s", w.now.Sub(epoch), fmt.Sprintf(format, args...), describe(w.row), w.backends())
}

func (w *world) backends() string {
	var b strings.Builder
	fmt.Fprintf(&b, "container: %+v\nvolume: %+v\n", w.container, w.volume)
	for k, o := range w.objects {
		fmt.Fprintf(&b, "object %s: %+v\n", k, o)
	}
	for k, j := range w.job {
		fmt.Fprintf(&b, "job %s: %+v\n", k, j)
	}
	fmt.Fprintf(&b, "home: %+v", w.home)
	return b.String()
}

func describe(r workspace.Workspace) string {
	s := fmt.Sprintf("phase %s op %s %s home %+v desired %s next %q restore %v error %s×%d %q key %q deleted %v",
		r.Phase, r.Operation, r.OpID, r.Home, r.DesiredState, r.NextDesired, r.RestoreFrom != nil, r.ErrorReason, r.ErrorCount, r.ErrorMessage, r.ArchiveKey, r.DeletedAt != nil)
	for _, t := range []workspace.ConditionType{workspace.VolumeReady, workspace.ArchiveReady, workspace.ContainerReady, workspace.Healthy} {
		s += fmt.Sprintf(" %s=%s", t, r.Conditions.Get(t).Reason)
	}
	return s
}

var (
	errRefused     = errors.New("the backend says no")
	errUnreachable = errors.New("the backend does not answer")
)

// outcome is how a call to a backend ends.
type outcome int

const (
	fine        outcome = iota
	refused             // nothing done
	lost                // done, but the caller is told that it failed
	unanswered          // done, and the caller told nothing
	unreachable         // nothing done, the caller told nothing
)

// outcome draws how the next call ends; in calm every call is fine.
func (w *world) outcome() outcome {
	if w.calm {
		return fine
	}
	n := rapid.IntRange(0, 39).Draw(w.t, "outcome") - (40 - w.faults.calls)
	if n < 0 {
		return fine
	}
	return []outcome{refused, lost, unanswered, unreachable}[n%4]
}

// call makes one call to a backend, with the effect that it has if it gets
// through and its own refusal.
func (w *world) call(up bool, effect func() error) error {
	if !up {
		return errUnreachable
	}
	switch w.outcome() {
	case refused:
		return errRefused
	case lost:
		_ = effect()
		return errRefused
	case unanswered:
		_ = effect()
		return errUnreachable
	case unreachable:
		return errUnreachable
	}
	return effect()
}

func (w *world) chance(label string, in int) bool {
	return !w.calm && rapid.IntRange(0, in-1).Draw(w.t, label) == in-1
}

// TestWorld runs the simulated world.
func TestWorld(t *testing.T) {
	t.Parallel()
	stats := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		t.Repeat(w.actions())
		w.settleDown()
		w.comesToRest(stats)
	})
	t.Logf("how the worlds ended: %v (more of them: LIFECYCLE_CHECKS=n or -rapid.checks=n)", stats)
}
