package activitytest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/bus/activity"
	"codehub/internal/workspace"
)

// Subject is an empty bus under test, on its own store.
type Subject struct {
	Bus activity.Bus
	// Other is another replica's bus on the same store.
	Other activity.Bus
	// Losses are ways in which the store can lose data, by name.
	Losses map[string]func(t *testing.T)
}

// at returns a time in whole milliseconds, the resolution of a bus.
func at(ms int) time.Time { return time.UnixMilli(1_800_000_000_000 + int64(ms)).UTC() }

func id(n int) workspace.ID { return workspace.ID(fmt.Sprintf("0198c0de-0000-7000-8000-%012x", n)) }

// Conformance tests what a replica's flush and the leader's clock rely on. subject
// returns a new Subject for each test.
func Conformance(t *testing.T, subject func(t *testing.T) Subject) {
	for name, test := range map[string]func(*testing.T, Subject){
		"the latest counts":             latest,
		"what is newer stays":           newer,
		"a loss begins an epoch":        loss,
		"many":                          many,
		"all at once":                   concurrent,
		"nothing":                       nothing,
		"one epoch for all":             oneEpoch,
		"every kind":                    kinds,
		"a time within a millisecond":   within,
		"twice in one call":             twice,
		"an epoch outlives its entries": outlives,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, subject(t))
		})
	}
}

func add(t *testing.T, b activity.Bus, seen ...activity.Access) (epoch string) {
	t.Helper()
	epoch, err := b.Add(t.Context(), seen)
	if err != nil {
		t.Fatal(err)
	}
	if epoch == "" {
		t.Fatal("no epoch")
	}
	return epoch
}

func read(t *testing.T, b activity.Bus) ([]activity.Access, string) {
	t.Helper()
	seen, epoch, err := b.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if epoch == "" {
		t.Fatal("no epoch")
	}
	seen = slices.Clone(seen)
	for i := range seen {
		seen[i].At = seen[i].At.UTC()
	}
	slices.SortFunc(seen, func(a, b activity.Access) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return seen, epoch
}

func remove(t *testing.T, b activity.Bus, seen ...activity.Access) {
	t.Helper()
	if err := b.Remove(t.Context(), seen); err != nil {
		t.Fatal(err)
	}
}

func holds(t *testing.T, b activity.Bus, want ...activity.Access) (epoch string) {
	t.Helper()
	got, epoch := read(t, b)
	if len(got)+len(want) > 0 {
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("it holds (-want +got): %s", d)
		}
	}
	return epoch
}

func access(n, ms int, kind activity.Kind) activity.Access {
	return activity.Access{ID: id(n), At: at(ms), Kind: kind}
}

func latest(t *testing.T, s Subject) {
	add(t, s.Bus, access(1, 10, activity.Typing), access(2, 10, activity.Open))
	add(t, s.Other, access(1, 5, activity.Output), access(2, 20, activity.Client))
	holds(t, s.Bus, access(1, 10, activity.Typing), access(2, 20, activity.Client))
	add(t, s.Bus, access(2, 20, activity.Stay)) // not later: ignored
	holds(t, s.Other, access(1, 10, activity.Typing), access(2, 20, activity.Client))
}

func newer(t *testing.T, s Subject) {
	add(t, s.Bus, access(1, 10, activity.Typing), access(2, 10, activity.Open), access(3, 10, activity.Open))
	seen, _ := read(t, s.Bus)
	add(t, s.Other, access(2, 11, activity.Output), access(4, 1, activity.Open))
	remove(t, s.Bus, seen...)
	holds(t, s.Bus, access(2, 11, activity.Output), access(4, 1, activity.Open))
	remove(t, s.Bus, seen...) // again: no effect
	add(t, s.Bus, access(1, 7, activity.Presence))
	holds(t, s.Bus, access(1, 7, activity.Presence), access(2, 11, activity.Output), access(4, 1, activity.Open))
}

func loss(t *testing.T, s Subject) {
	if len(s.Losses) == 0 {
		t.Fatal("the subject has no losses")
	}
	epochs := []string{}
	fresh := func(name, epoch string) {
		if slices.Contains(epochs, epoch) {
			t.Errorf("%s: epoch %s is an earlier one", name, epoch)
		}
		epochs = append(epochs, epoch)
	}
	fresh("at first", add(t, s.Bus, access(1, 10, activity.Typing)))
	for name, lose := range s.Losses {
		lose(t)
		fresh(name+", read first", holds(t, s.Other))
		lose(t)
		fresh(name+", added first", add(t, s.Other, access(1, 10, activity.Typing)))
		if got, want := holds(t, s.Bus, access(1, 10, activity.Typing)), epochs[len(epochs)-1]; got != want {
			t.Errorf("%s: read in epoch %s, added in %s", name, got, want)
		}
	}
}

func many(t *testing.T, s Subject) {
	const n = 5000
	all := make([]activity.Access, n)
	for i := range all {
		all[i] = access(i, i, activity.Typing)
	}
	add(t, s.Bus, all...)
	holds(t, s.Other, all...)
	remove(t, s.Other, all[:n/2]...)
	holds(t, s.Bus, all[n/2:]...)
	remove(t, s.Other, all...)
	holds(t, s.Bus)
}

// concurrent: what is added during reads and removals is read eventually, the
// latest per workspace.
func concurrent(t *testing.T, s Subject) {
	const ids, steps = 20, 100
	var wg sync.WaitGroup
	for i, b := range []activity.Bus{s.Bus, s.Other} {
		wg.Go(func() {
			for step := range steps {
				seen := make([]activity.Access, ids)
				for n := range seen {
					seen[n] = access(n, 2*step+i, activity.Typing)
				}
				if _, err := b.Add(t.Context(), seen); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	last := map[workspace.ID]time.Time{}
	take := func() {
		seen, _ := read(t, s.Bus)
		for _, a := range seen {
			// An earlier access may be added after a removal: the reader ignores
			// it.
			if a.At.After(last[a.ID]) {
				last[a.ID] = a.At
			}
		}
		remove(t, s.Bus, seen...)
	}
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		take()
	}
	for n := range ids {
		if want := at(2*steps - 1); !last[id(n)].Equal(want) {
			t.Errorf("%s: last read %s, want %s", id(n), last[id(n)], want)
		}
	}
}

func nothing(t *testing.T, s Subject) {
	first := add(t, s.Bus)
	remove(t, s.Bus)
	remove(t, s.Bus, access(1, 1, activity.Open))
	if got := holds(t, s.Other); got != first {
		t.Errorf("epoch %s, then %s", first, got)
	}
}

func oneEpoch(t *testing.T, s Subject) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := map[string]bool{}
	for i, b := range []activity.Bus{s.Bus, s.Other, s.Bus, s.Other} {
		wg.Go(func() {
			epoch, err := b.Add(t.Context(), []activity.Access{access(i, i, activity.Open)})
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			got[epoch] = true
		})
	}
	wg.Wait()
	if len(got) != 1 {
		t.Errorf("epochs %v", got)
	}
}

func kinds(t *testing.T, s Subject) {
	var all []activity.Access
	for i, k := range []activity.Kind{activity.Open, activity.Presence, activity.Typing, activity.Output, activity.Client, activity.Stay} {
		all = append(all, access(i, i, k))
	}
	add(t, s.Bus, all...)
	holds(t, s.Bus, all...)
}

// within: times are truncated to milliseconds, and what was read can be removed by
// the original time.
func within(t *testing.T, s Subject) {
	fine := access(1, 10, activity.Open)
	fine.At = fine.At.Add(999 * time.Microsecond)
	add(t, s.Bus, fine)
	holds(t, s.Bus, access(1, 10, activity.Open))
	remove(t, s.Bus, fine)
	holds(t, s.Bus)
}

func twice(t *testing.T, s Subject) {
	add(t, s.Bus, access(1, 10, activity.Open), access(1, 12, activity.Typing), access(1, 11, activity.Output))
	holds(t, s.Bus, access(1, 12, activity.Typing))
}

func outlives(t *testing.T, s Subject) {
	first := add(t, s.Bus, access(1, 10, activity.Open))
	remove(t, s.Bus, access(1, 10, activity.Open))
	if got := holds(t, s.Bus); got != first {
		t.Errorf("epoch %s, then %s", first, got)
	}
	if got := add(t, s.Other, access(2, 10, activity.Open)); got != first {
		t.Errorf("epoch %s, then %s", first, got)
	}
}
