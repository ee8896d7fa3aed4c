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

	"codehub/internal/soak/disk"
)

// roundsOfWorld is how many faults a machine goes through before a new one is
// made.
const roundsOfWorld = 10

// fault is something that may happen to a machine.
type fault struct {
	kind    string
	count   string // the setting that says how many rounds the soak has
	share   int    // of that number, in percent
	prepare func(w *world) error
	before  func(w *world) error // before the workspaces live
	strike  func(w *world) error // while they do
	after   func(w *world) error // once they have ended
}

var faults = []fault{
	{
		kind: "kill", count: "SOAK_KILLS", share: 100,
		strike: func(w *world) error {
			w.kill()
			w.nap(500)
			for w.rng.IntN(3) == 0 { // again, while it starts
				if err := w.launchServer(); err != nil {
					return err
				}
				w.nap(3000)
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
	restart(syscall.SIGTERM),
	restart(syscall.SIGKILL),
	clockJump("database"),
	clockJump("server"),
	{
		kind: "rollback", count: "SOAK_ROLLBACKS", share: 100,
		prepare: func(w *world) error { w.grace = time.Hour; return nil },
		before:  func(w *world) error { return w.backUp() },
		strike:  func(w *world) error { return w.stopServer(syscall.SIGTERM) },
		after:   func(w *world) error { return w.rollBack() },
	},
}

func (w *world) kill() {
	_ = w.stopServer(syscall.SIGKILL)
	if w.rng.IntN(4) == 0 {
		w.note("killing postgres")
		_ = w.machine.run(w.Context(), io.Discard, "pkill", "-KILL", "-x", "postgres") // fails if there is none
	}
}

func (w *world) nap(most int) { time.Sleep(time.Duration(w.rng.IntN(most)) * time.Millisecond) }

func restart(signal syscall.Signal) fault {
	return fault{
		kind: "Docker " + unix.SignalName(signal), count: "SOAK_RESTARTS", share: 50,
		strike: func(w *world) error {
			if err := w.stopDocker(signal); err != nil {
				return err
			}
			w.nap(3000)
			return w.startDocker(w.Context())
		},
	}
}

// clockJump moves one clock by up to a day while everything runs. Nothing that
// waits for a time may be removed for it.
func clockJump(whose string) fault {
	return fault{
		kind: "clock of the " + whose, count: "SOAK_CLOCK", share: 50,
		prepare: func(w *world) error {
			w.grace = time.Hour
			if whose == "server" {
				var err error
				if w.binary, err = shiftable(); err != nil {
					return err
				}
			}
			return w.clocks()
		},
		strike: func(w *world) error {
			by := []time.Duration{-25, -24, -1, 1, 24, 25}[w.rng.IntN(6)] * time.Hour
			return w.setClock(whose, by)
		},
		// Two looks of the controller at everything, and what follows from them.
		after: func(w *world) error { time.Sleep(5 * time.Second); return nil },
	}
}

// round lets the workspaces live for a while, strikes, and compares every home.
func (w *world) round(f fault, longest time.Duration) {
	w.Helper()
	report.round(f.kind)
	w.note("round: %s", f.kind)
	if f.before != nil {
		w.must(f.before(w))
	}
	w.work(time.Duration(w.rng.Int64N(int64(longest))), func() error {
		report.underWay(f.kind, w.underWay())
		return f.strike(w)
	})
	if f.after != nil {
		w.must(f.after(w))
	}
	w.verify(f.kind)
}

// TestFaultsOnce takes one machine through each kind of fault.
func TestFaultsOnce(t *testing.T) {
	t.Parallel()
	if soaking() {
		t.Skip("TestSoak runs")
	}
	w := newWorld(t, "once", seedOf(t), func(w *world) error {
		w.grace = time.Hour
		return w.clocks()
	})
	defer w.done()
	for _, f := range faults {
		if f.kind == "clock of the server" {
			continue // it takes a server of its own, which takes a minute to build
		}
		w.round(f, 3*time.Second)
		if w.bad {
			return
		}
	}
}

// laneRounds is how many rounds of one fault run one after the other at most:
// longer series are split into lanes, which run in parallel.
const laneRounds = 50

// TestSoak runs as many rounds of each fault as its setting says. The number of
// machines at a time is that of go test -parallel.
func TestSoak(t *testing.T) {
	t.Parallel()
	if !soaking() {
		t.Skip("make soak runs it; TestFaultsOnce is the short form")
	}
	for _, f := range faults {
		n := (number(f.count, 0)*f.share + 50) / 100
		lanes := (n + laneRounds - 1) / laneRounds
		for lane := range lanes {
			t.Run(fmt.Sprintf("%s %d", f.kind, lane+1), func(t *testing.T) {
				t.Parallel()
				f.soak(t, (n+lane)/lanes, uint64(lane))
			})
		}
	}
}

// soaking tells whether any number of rounds was set.
func soaking() bool {
	for _, f := range faults {
		if os.Getenv(f.count) != "" {
			return true
		}
	}
	return false
}

func (f fault) soak(t *testing.T, n int, lane uint64) {
	rng := rand.New(rand.NewPCG(seedOf(t), uint64(len(f.kind))+lane<<32))
	var w *world
	for i := range n {
		if w == nil {
			w = newWorld(t, f.kind, rng.Uint64(), f.prepare)
		}
		w.round(f, 8*time.Second)
		if w.bad || (i+1)%roundsOfWorld == 0 || i+1 == n {
			w.done()
			w = nil
		}
	}
}
