package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"codehub/internal/workspace"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rows is a table of workspaces by ID; the name stands for all that can change.
type rows struct {
	mu    sync.Mutex
	name  map[workspace.ID]string
	owner map[workspace.ID]string
	down  error
	loads int
}

func (r *rows) set(owner string, id workspace.ID, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.name == nil {
		r.name, r.owner = map[workspace.ID]string{}, map[workspace.ID]string{}
	}
	r.name[id], r.owner[id] = name, owner
}

func (r *rows) all() map[workspace.ID]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.name)
}

func (r *rows) load(ctx context.Context, owner string, id workspace.ID) (workspace.Workspace, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loads++
	switch {
	case r.down != nil:
		return workspace.Workspace{}, r.down
	case r.name[id] == "":
		return workspace.Workspace{}, workspace.Errorf(workspace.CodeNotFound, "none")
	case r.owner[id] != owner:
		return workspace.Workspace{}, workspace.Errorf(workspace.CodeForbidden, "another user's")
	}
	return workspace.Workspace{ID: id, OwnerID: owner, Name: r.name[id]}, nil
}

func newHub(r *rows) *Hub {
	return New(Config{Load: r.load, Log: slog.New(slog.DiscardHandler)})
}

// subscriber is a subscription that waits for events.
type subscriber struct {
	*Subscription
	woken chan struct{}
}

func newSubscriber(ctx context.Context, t *testing.T, h *Hub, user string) *subscriber {
	t.Helper()
	r := &subscriber{woken: make(chan struct{}, 1)}
	var err error
	r.Subscription, err = h.Subscribe(ctx, user, func() {
		select {
		case r.woken <- struct{}{}:
		default:
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func (s *subscriber) wait(ctx context.Context) (Event, error) {
	for {
		if ev, ok, err := s.Next(ctx); ok || err != nil {
			return ev, err
		}
		select {
		case <-s.woken:
		case <-ctx.Done():
			return Event{}, ctx.Err()
		}
	}
}

func subscribe(t *testing.T, h *Hub, user string) *subscriber {
	t.Helper()
	return newSubscriber(t.Context(), t, h, user)
}

// read reads n events, as "resync", "id=name" or "id gone".
func read(t *testing.T, s *subscriber, n int) (got []string) {
	t.Helper()
	for range n {
		ev, err := s.wait(t.Context())
		switch {
		case err != nil:
			t.Fatalf("after %v: %v", got, err)
		case ev.Kind == Resync:
			got = append(got, "resync")
		case ev.Kind == Gone:
			got = append(got, string(ev.ID)+" gone")
		default:
			got = append(got, string(ev.ID)+"="+ev.Workspace.Name)
		}
	}
	return got
}

func wantEvents(t *testing.T, s *subscriber, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, read(t, s, len(want))); d != "" {
		t.Errorf("events: %s", d)
	}
	if ev, ok, _ := s.take(); ok {
		t.Errorf("there is more: %+v", ev)
	}
}

func TestEvents(t *testing.T) {
	t.Parallel()
	var r rows
	h := newHub(&r)
	s, other, second := subscribe(t, h, "ann"), subscribe(t, h, "eve"), subscribe(t, h, "ann")
	wantEvents(t, s, "resync")
	wantEvents(t, other, "resync")
	r.set("ann", "a", "1")
	r.set("ann", "b", "1")
	h.Notify("ann", "a")
	h.Notify("ann", "b")
	r.set("ann", "a", "2")
	h.Notify("ann", "a")
	// Unread changes are merged into one event at the first position, with the
	// current state.
	wantEvents(t, s, "a=2", "b=1")
	wantEvents(t, second, "resync") // covers earlier changes
	r.set("ann", "b", "")
	h.NotifyDeleted("ann", "b")
	wantEvents(t, s, "b gone")
	wantEvents(t, second, "b gone")
	h.Notify("eve", "a") // not a workspace of this owner
	wantEvents(t, other, "a gone")
	h.Notify("ann", "a")
	h.Gap()
	h.Notify("ann", "b")
	wantEvents(t, s, "resync") // b is marked only after it was taken
	h.Notify("ann", "a")
	wantEvents(t, s, "a=2")
}

// A change during a load causes another load, so the last one is at least as new as
// the last event.
func TestChangeDuringLoad(t *testing.T) {
	t.Parallel()
	var r rows
	var h *Hub
	h = New(Config{Log: slog.New(slog.DiscardHandler), Load: func(ctx context.Context, owner string, id workspace.ID) (workspace.Workspace, error) {
		w, err := r.load(ctx, owner, id)
		if w.Name == "1" {
			r.set("ann", "a", "2")
			h.Notify("ann", "a")
		}
		return w, err
	}})
	s := subscribe(t, h, "ann")
	wantEvents(t, s, "resync")
	r.set("ann", "a", "1")
	h.Notify("ann", "a")
	wantEvents(t, s, "a=1", "a=2")
}

// In any order of events every subscriber sees each workspace's states in order,
// ends with the last one.
func TestOrderUnderLoad(t *testing.T) {
	t.Parallel()
	var r rows
	h := newHub(&r)
	const workspaces, changes = 10, 300
	var readers, writers sync.WaitGroup
	for range 5 {
		s := subscribe(t, h, "ann")
		readers.Go(func() {
			last, done := map[workspace.ID]string{}, map[workspace.ID]bool{}
			saw := func(id workspace.ID, name string) {
				if name < last[id] {
					t.Errorf("%s went back from %s to %s", id, last[id], name)
				}
				last[id], done[id] = name, name == fmt.Sprintf("%06d", changes)
			}
			for len(done) < workspaces || slices.Contains(slices.Collect(maps.Values(done)), false) {
				ev, err := s.wait(t.Context())
				switch {
				case err != nil:
					t.Error(err)
					return
				case ev.Kind == Resync:
					for id, name := range r.all() {
						saw(id, name)
					}
				default:
					saw(ev.ID, ev.Workspace.Name)
				}
			}
		})
	}
	for i := range workspaces {
		writers.Go(func() {
			id := workspace.ID(fmt.Sprint("w", i))
			for n := 1; n <= changes; n++ {
				r.set("ann", id, fmt.Sprintf("%06d", n))
				h.Notify("ann", id)
			}
		})
	}
	writers.Wait()
	readers.Wait()
}

// A change reported through both channels is read once, and reports are remembered
// only briefly.
func TestEcho(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r rows
		r.set("ann", "a", "1")
		h := newHub(&r)
		s := subscribe(t, h, "ann")
		wantEvents(t, s, "resync")
		changed := 0
		defer h.Observe(Observer{Changed: func(string, workspace.ID) { changed++ }})()
		h.Notify("ann", "a")
		wantEvents(t, s, "a=1")
		h.Echo("ann", "a")
		wantEvents(t, s) // no event
		time.Sleep(echoWindow / 2)
		h.Notify("ann", "b")
		h.Echo("ann", "a")
		time.Sleep(echoWindow / 2)
		h.Echo("ann", "b")
		if wantEvents(t, s, "b gone"); changed != 2 {
			t.Errorf("called %d times", changed)
		}
		h.Echo("ann", "a") // another change, which the first channel has not reported
		wantEvents(t, s, "a=1")
		h.Echo("ann", "c") // the second channel reports first
		h.Notify("ann", "c")
		wantEvents(t, s, "c gone")
		for i := range 1000 {
			h.Notify("ann", workspace.ID(fmt.Sprint(i)))
			time.Sleep(echoWindow / 10)
			if n := len(h.recent.now) + len(h.recent.before); n > 30 {
				t.Fatalf("%d ids are remembered", n)
			}
		}
	})
}

func TestMemoryIsLimited(t *testing.T) {
	t.Parallel()
	var r rows
	h := newHub(&r)
	s := subscribe(t, h, "ann")
	wantEvents(t, s, "resync")
	for i := range 10 * maxDirty {
		h.Notify("ann", workspace.ID(fmt.Sprint(i)))
		if len(s.order) > maxDirty || len(s.dirty) > maxDirty {
			t.Fatalf("%d ids are held", len(s.order))
		}
	}
	wantEvents(t, s, "resync")
	var subs []*subscriber
	for len(subs) < MaxPerUser-1 {
		subs = append(subs, subscribe(t, h, "ann"))
	}
	if _, err := h.Subscribe(t.Context(), "ann", func() {}); !errors.Is(err, ErrTooMany) {
		t.Errorf("one more subscription: %v", err)
	}
	subs[0].Close()
	subscribe(t, h, "ann")
}

func TestSlowSubscriberEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r rows
		r.set("ann", "a", "1")
		h := newHub(&r)
		slow, quick := subscribe(t, h, "ann"), subscribe(t, h, "ann")
		read(t, slow, 1)
		read(t, quick, 1)
		for range 7 {
			h.Notify("ann", "a")
			read(t, quick, 1)
			time.Sleep(10 * time.Second)
		}
		h.Notify("ann", "a")
		if _, err := slow.wait(t.Context()); !errors.Is(err, ErrTooSlow) {
			t.Errorf("slow: %v", err)
		}
		read(t, quick, 1)
		if n := len(h.subs["ann"]); n != 1 {
			t.Errorf("%d subscriptions", n)
		}
		// A subscriber without unread events may wait forever.
		time.Sleep(time.Hour)
		h.Notify("ann", "a")
		read(t, quick, 1)
	})
}

func TestDatabaseOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r rows
		r.set("ann", "a", "1")
		h := newHub(&r)
		s := subscribe(t, h, "ann")
		read(t, s, 1)
		r.mu.Lock()
		r.down = errors.New("down")
		r.mu.Unlock()
		h.Notify("ann", "a")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := s.wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("meanwhile: %v", err)
		}
		if r.loads < 5 || r.loads > 12 {
			t.Errorf("%d tries in ten seconds", r.loads)
		}
		time.Sleep(time.Hour)
		r.mu.Lock()
		r.down = nil
		r.mu.Unlock()
		wantEvents(t, s, "a=1")
	})
}

func TestClose(t *testing.T) {
	t.Parallel()
	h := newHub(&rows{})
	ctx, cancel := context.WithCancel(t.Context())
	s := newSubscriber(ctx, t, h, "ann")
	read(t, s, 1)
	done := make(chan error)
	go func() {
		_, err := s.wait(t.Context())
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, ErrClosed) {
		t.Errorf("after its context: %v", err)
	}
	s.Close()
	h.Notify("ann", "a")
	h.Gap()
	if len(h.subs) != 0 {
		t.Errorf("left: %v", h.subs)
	}
}

func TestHandle(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	var ended []string
	var r rows
	h := New(Config{Load: r.load, Log: slog.New(slog.NewTextHandler(&log, nil)), AuthChanged: func(user, session string) {
		ended = append(ended, user+" "+session)
	}})
	var seen []string
	remove := h.Observe(Observer{
		Changed: func(owner string, id workspace.ID) { seen = append(seen, owner+" "+string(id)) },
		Gap:     func() { seen = append(seen, "gap") },
	})
	defer h.Observe(Observer{})()
	s := subscribe(t, h, "ann")
	read(t, s, 1)
	r.set("ann", "a", "1")
	woken := func() bool {
		select {
		case <-h.Wakes():
			return true
		default:
			return false
		}
	}
	h.Handle(ChannelEvents, `{"id":"a","owner":"ann"}`)
	wantEvents(t, s, "a=1")
	h.Handle(ChannelDeleted, `{"id":"b","owner":"ann"}`)
	wantEvents(t, s, "b gone")
	if woken() {
		t.Error("woken without a wake")
	}
	h.Handle(ChannelWake, `{"id":"a","owner":"ann"}`)
	h.Handle(ChannelWake, `{"id":"a","owner":"ann"}`)
	if !woken() || woken() {
		t.Error("two wakes are not one")
	}
	h.Handle(ChannelAuth, `{"user":"ann","session":"00ff"}`)
	h.Handle(ChannelAuth, `{"user":"ann","session":""}`)
	h.Handle("something_else", `{}`)
	h.Handle(ChannelEvents, `not JSON`)
	wantEvents(t, s, "resync")
	if !woken() || !strings.Contains(log.String(), "ws_sse") {
		t.Errorf("what cannot be read is no gap: %s", log.String())
	}
	remove()
	h.Notify("ann", "a")
	if d := cmp.Diff([]string{"ann a", "ann b", "gap"}, seen); d != "" {
		t.Errorf("observed: %s", d)
	}
	if d := cmp.Diff([]string{"ann 00ff", "ann "}, ended); d != "" {
		t.Errorf("ended: %s", d)
	}
}
