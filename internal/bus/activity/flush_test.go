package activity

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"codehub/internal/workspace"
)

// flushStore is a fake database whose clock is ahead of the local one.
type flushStore struct {
	ahead     time.Duration
	watched   *time.Time
	err       error
	unknown   bool
	slow      time.Duration // of every response
	saved     map[workspace.ID]Access
	asOf      time.Time
	epoch     string
	confirmed int
}

func (s *flushStore) now() time.Time { return time.Now().Round(0).Add(s.ahead) }

func (s *flushStore) FlushPoint(context.Context) (FlushPoint, error) {
	time.Sleep(s.slow)
	p := FlushPoint{Now: s.now(), WatchedUntil: s.watched}
	time.Sleep(s.slow)
	return p, s.err
}

func (s *flushStore) SaveAccesses(_ context.Context, seen []Access) error {
	if s.err != nil {
		return s.err
	}
	if s.saved == nil {
		s.saved = map[workspace.ID]Access{}
	}
	for _, a := range seen {
		s.saved[a.ID] = a
	}
	return nil
}

func (s *flushStore) ConfirmFlush(_ context.Context, replica string, asOf time.Time, epoch string) (bool, error) {
	if s.err != nil || s.unknown || replica != "me" {
		return false, s.err
	}
	s.asOf, s.epoch, s.confirmed = asOf, epoch, s.confirmed+1
	return true, nil
}

func flusher(memory *Recorder, store FlushStore, bus Bus) *Flusher {
	return NewFlusher(FlusherConfig{Memory: memory, Store: store, Bus: bus, Replica: "me", Log: slog.New(slog.DiscardHandler)})
}

func use(r *Recorder, id workspace.ID, kind Kind) {
	m := r.Mark(id)
	m.Touch(kind)
	m.Release()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A use is dated by the database's clock, never early, and late by at most a
// response time, rounded up.
func TestFlushDates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &flushStore{ahead: 77 * time.Hour, slow: time.Second}
		memory := New()
		f := flusher(memory, store, nil)
		use(memory, "w", Typing)
		used := store.now()
		time.Sleep(10*time.Second + 300*time.Millisecond)
		must(t, f.Flush(t.Context()))
		a := store.saved["w"]
		if late := a.At.Sub(used); late < 0 || late > 2*time.Second || a.Kind != Typing || a.At.Truncate(time.Second) != a.At {
			t.Errorf("dated %s late as %s: %s", late, a.Kind, a.At)
		}
		if here := f.DatabaseTime(time.Now()); here.Sub(store.now()).Abs() > 2*time.Second {
			t.Errorf("now is %s here, and %s there", here, store.now())
		}
		if store.epoch != Database || !store.asOf.After(used) || !store.asOf.Before(store.now()) {
			t.Errorf("flushed up to %s in %s", store.asOf, store.epoch)
		}
	})
}

// Activity is kept until the leader has written it: what a bus lost, or the leader
// has not processed, is flushed again.
func TestFlushRepeatsUnwritten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var order []string
		store := &flushStore{ahead: -time.Hour}
		bus := &orderedBus{order: &order, epoch: "e1"}
		memory := New()
		f := flusher(memory, store, bus)
		use(memory, "w", Typing)
		flushed := func(want int, epoch string) {
			t.Helper()
			bus.seen = nil
			must(t, f.Flush(t.Context()))
			if len(bus.seen) != want || store.epoch != epoch {
				t.Errorf("%d flushed in %s, want %d in %s", len(bus.seen), store.epoch, want, epoch)
			}
		}
		time.Sleep(30 * time.Second)
		flushed(1, "e1") // watched_until is not set yet
		early := store.now().Add(-time.Minute)
		store.watched = &early
		time.Sleep(30 * time.Second)
		flushed(1, "e1") // watched_until is earlier
		bus.epoch = "e2"
		time.Sleep(30 * time.Second)
		flushed(1, "e2") // lost and flushed again
		now := store.now()
		store.watched = &now
		time.Sleep(30 * time.Second)
		flushed(0, "e2")
		if _, there := memory.Last("w"); there {
			t.Error("it is still there")
		}
	})
}

// Activity from the time in which a server was considered dead is flushed, although
// it is earlier than watched_until.
func TestFlushAfterDeclaredDead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &flushStore{}
		memory := New()
		f := flusher(memory, store, nil)
		must(t, f.Flush(t.Context()))
		time.Sleep(time.Minute)
		use(memory, "w", Output)
		time.Sleep(time.Hour)
		now := store.now()
		store.watched = &now // by other servers
		store.unknown = true // its row was removed
		if err := f.Flush(t.Context()); err == nil {
			t.Error("not logged")
		}
		if len(store.saved) != 1 {
			t.Error("not flushed")
		}
		store.unknown, store.saved = false, nil
		must(t, f.Flush(t.Context()))
		if len(store.saved) != 1 {
			t.Error("not flushed again, although the flush was not confirmed")
		}
		time.Sleep(time.Second)
		now = store.now()
		must(t, f.Flush(t.Context()))
		if _, there := memory.Last("w"); there {
			t.Error("it is still there")
		}
	})
}

// Activity between two flushes is flushed even if the database's clock was set in
// between.
func TestFlushAfterClockChange(t *testing.T) {
	t.Parallel()
	for _, by := range []time.Duration{-time.Hour, -20 * time.Second, 20 * time.Second, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			store := &flushStore{}
			memory := New()
			f := flusher(memory, store, nil)
			must(t, f.Flush(t.Context()))
			now := store.now()
			store.watched = &now
			time.Sleep(5 * time.Second)
			use(memory, "w", Typing)
			time.Sleep(25 * time.Second)
			store.ahead = by
			must(t, f.Flush(t.Context()))
			if late := store.saved["w"].At.Sub(store.now().Add(-25 * time.Second)); late < 0 || late > time.Second {
				t.Errorf("clock set by %s: dated %s late: %v", by, late, store.saved)
			}
		})
	}
}

// If the bus fails the database is used; if the database fails activity stays in
// memory. The last flush always uses the database.
func TestFlushFallback(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var order []string
		store := &flushStore{err: errors.New("away")}
		bus := &orderedBus{order: &order, epoch: "e1", err: errors.New("away")}
		memory := New()
		f := flusher(memory, store, bus)
		use(memory, "w", Open)
		for range 100 {
			time.Sleep(30 * time.Second)
			if f.Flush(t.Context()) == nil {
				t.Fatal("not logged")
			}
		}
		if len(store.saved) > 0 || store.confirmed > 0 {
			t.Error("an unavailable bus or database took it")
		}
		store.err = nil
		must(t, f.Flush(t.Context()))
		if len(store.saved) != 1 || store.epoch != Database {
			t.Errorf("%v in %s", store.saved, store.epoch)
		}
		bus.err = nil
		must(t, f.Flush(t.Context()))
		if store.epoch != "e1" || len(bus.seen) != 1 {
			t.Errorf("in %s: %v", store.epoch, bus.seen)
		}
		use(memory, "v", Client)
		must(t, f.Last(t.Context()))
		if store.epoch != Database || store.saved["v"].Kind != Client {
			t.Errorf("at last %v in %s", store.saved, store.epoch)
		}
	})
}

// Run flushes at once and then every 30 s, regardless of failures.
func TestFlusherRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		flushes := make(chan time.Time)
		f := flusher(New(), &tellsFlush{flushes}, nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- f.Run(ctx) }()
		first := <-flushes
		for i := range 5 {
			if at := (<-flushes).Sub(first); at != time.Duration(i+1)*30*time.Second {
				t.Errorf("flush %d after %s", i, at)
			}
		}
		cancel()
		must(t, <-done)
	})
}

// tellsFlush is an unreachable database that signals when it is queried.
type tellsFlush struct{ asked chan time.Time }

func (s *tellsFlush) FlushPoint(context.Context) (FlushPoint, error) {
	s.asked <- time.Now()
	return FlushPoint{}, errors.New("away")
}

func (s *tellsFlush) SaveAccesses(context.Context, []Access) error { return errors.New("away") }

func (s *tellsFlush) ConfirmFlush(context.Context, string, time.Time, string) (bool, error) {
	return false, errors.New("away")
}

// A flush that hangs delays the next one by its time limit at most.
func TestFlushesAreSerialized(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hung := &tellsFlush{make(chan time.Time)}
		f := flusher(New(), hung, nil)
		first := make(chan error)
		go func() { first <- f.Flush(t.Context()) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		began := time.Now()
		if err := f.Last(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 5*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		<-hung.asked
		if <-first == nil {
			t.Error("not logged")
		}
	})
}
