package soak

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"codehub/internal/testing/soak/disk"
)

// roundsPerMachine is the number of rounds after which a machine is replaced.
const roundsPerMachine = 10

// fault is a kind of fault of a machine.
type fault struct {
	kind    string
	count   string // setting with the number of rounds
	share   int    // share of that number, in percent
	prepare func(w *world) error
	before  func(w *world) error // called before the lives act
	strike  func(w *world) error // called while they act
	after   func(w *world) error // called after they have ended
}

var faults = []fault{
	{
		kind: "kill", count: "SOAK_KILLS", share: 100,
		strike: func(w *world) error {
			w.kill()
			w.sleepUpTo(500)
			for w.rng.IntN(3) == 0 { // again during the start
				if err := w.launchServer(); err != nil {
					return err
				}
				w.sleepUpTo(3000)
				w.kill()
			}
			return w.startServer(w.Context())
		},
	},
	{
		kind: "power cut", count: "SOAK_CUTS", share: 100,
		strike: func(w *world) error { return w.powerOff(disk.AnyLoss(w.rng), w.rng) },
		after:  func(w *world) error { return errors.Join(w.end(), w.boot(w.Context())) },
	},
	dockerRestart(syscall.SIGTERM),
	dockerRestart(syscall.SIGKILL),
	clockJump("database"),
	clockJump("server"),
	{
		kind: "rollback", count: "SOAK_ROLLBACKS", share: 100,
		prepare: func(w *world) error { w.grace = time.Hour; return nil },
		before:  func(w *world) error { return w.makeBackup() },
		strike:  func(w *world) error { return w.stopServer(syscall.SIGTERM) },
		after:   func(w *world) error { return w.restoreBackup() },
	},
}

func (w *world) kill() {
	_ = w.stopServer(syscall.SIGKILL)
	if w.rng.IntN(4) == 0 {
		w.note("kill postgres")
		_ = w.machine.run(w.Context(), io.Discard, "pkill", "-KILL", "-x", "postgres") // fails if there is none
	}
}

func (w *world) sleepUpTo(most int) { time.Sleep(time.Duration(w.rng.IntN(most)) * time.Millisecond) }

func dockerRestart(signal syscall.Signal) fault {
	return fault{
		kind: "Docker " + unix.SignalName(signal), count: "SOAK_RESTARTS", share: 50,
		strike: func(w *world) error {
			if err := w.stopDocker(signal); err != nil {
				return err
			}
			w.sleepUpTo(3000)
			return w.startDocker(w.Context())
		},
	}
}

// clockJump moves one clock by up to 25 h while the lives act. Nothing may be
// removed early because of it.
func clockJump(owner string) fault {
	return fault{
		kind: "clock of the " + owner, count: "SOAK_CLOCK", share: 50,
		prepare: func(w *world) error {
			w.grace = time.Hour
			if owner == "server" {
				var err error
				if w.binary, err = movableClockBinary(); err != nil {
					return err
				}
			}
			return w.makeClocksMovable()
		},
		strike: func(w *world) error {
			by := []time.Duration{-25, -24, -1, 1, 24, 25}[w.rng.IntN(6)] * time.Hour
			return w.setClock(owner, by)
		},
		// Enough for two ticks and the operations that they start.
		after: func(w *world) error { time.Sleep(5 * time.Second); return nil },
	}
}

// round lets the workspaces act for a while, injects the fault, and compares
// every home.
func (w *world) round(f fault, longest time.Duration) {
	w.Helper()
	report.countRound(f.kind)
	w.note("round: %s", f.kind)
	if f.before != nil {
		w.fatalOn(f.before(w))
	}
	w.work(time.Duration(w.rng.Int64N(int64(longest))), func() error {
		report.countOperations(f.kind, w.runningOperations())
		return f.strike(w)
	})
	if f.after != nil {
		w.fatalOn(f.after(w))
	}
	w.verify(f.kind)
}

// TestFaultsOnce injects each kind of fault once into one machine.
func TestFaultsOnce(t *testing.T) {
	t.Parallel()
	if soaking() {
		t.Skip("TestSoak runs instead")
	}
	w := newWorld(t, "once", newSeed(t), func(w *world) error {
		w.grace = time.Hour
		return w.makeClocksMovable()
	})
	defer w.done()
	for _, f := range faults {
		if f.kind == "clock of the server" {
			continue // needs another server binary, which takes a minute to build
		}
		w.round(f, 3*time.Second)
		if w.failed {
			return
		}
	}
}

// laneRounds is the maximum number of consecutive rounds of one fault. Longer
// series are split into lanes, which run in parallel.
const laneRounds = 50

// TestSoak runs the configured number of rounds of each fault. go test
// -parallel sets the number of machines at a time.
func TestSoak(t *testing.T) {
	t.Parallel()
	if !soaking() {
		t.Skip("make soak runs it; TestFaultsOnce is the short form")
	}
	for _, f := range faults {
		n := (intSetting(f.count, 0)*f.share + 50) / 100
		lanes := (n + laneRounds - 1) / laneRounds
		for lane := range lanes {
			t.Run(fmt.Sprintf("%s %d", f.kind, lane+1), func(t *testing.T) {
				t.Parallel()
				f.soak(t, (n+lane)/lanes, uint64(lane))
			})
		}
	}
}

// soaking reports whether a number of rounds is set.
func soaking() bool {
	for _, f := range faults {
		if os.Getenv(f.count) != "" {
			return true
		}
	}
	return false
}

func (f fault) soak(t *testing.T, n int, lane uint64) {
	rng := rand.New(rand.NewPCG(newSeed(t), uint64(len(f.kind))+lane<<32))
	var w *world
	for i := range n {
		if w == nil {
			w = newWorld(t, f.kind, rng.Uint64(), f.prepare)
		}
		w.round(f, 8*time.Second)
		if w.failed || (i+1)%roundsPerMachine == 0 || i+1 == n {
			w.done()
			w = nil
		}
	}
}
