package activity

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"codehub/internal/base/health"

	"github.com/google/go-cmp/cmp"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// at returns a time in seconds after noon.
func at(s int) time.Time { return noon.Add(time.Duration(s) * time.Second) }

func atp(s int) *time.Time { t := at(s); return &t }

// server is a replica that was seen and has flushed at these times.
func server(id string, seen, flushed int, epoch string) Replica {
	return Replica{ID: id, StartedAt: at(-10000), SeenAt: at(seen), FlushedAt: atp(flushed), Epoch: epoch}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	fresh := Replica{ID: "fresh", StartedAt: at(-20), SeenAt: at(-1)}
	for _, c := range []struct {
		name  string
		state State
		epoch string
		early bool // the term has just begun
		want  Step
	}{
		{name: "no replicas", state: State{WatchedUntil: atp(-60)}},
		{name: "the slowest replica counts", state: State{WatchedUntil: atp(-60), Replicas: []Replica{server("a", -1, -10, Database), server("b", -1, -29, Database)}},
			want: Step{WatchedUntil: at(-29)}},
		{name: "a replica that has just started saw nothing before", state: State{WatchedUntil: atp(-60), Replicas: []Replica{server("a", -1, -10, Database), fresh}},
			want: Step{WatchedUntil: at(-20)}},
		{name: "never moved back", state: State{WatchedUntil: atp(-5), Replicas: []Replica{server("a", -1, -10, Database)}}},
		{name: "ahead, after the database's clock was set back", state: State{WatchedUntil: atp(3600), Replicas: []Replica{server("a", -1, 3600, Database)}},
			want: Step{Gaps: []Gap{{atp(0), at(3600)}}}},
		{name: "ahead, and a flush further", state: State{WatchedUntil: atp(3600), Replicas: []Replica{server("a", -1, 3620, Database)}},
			want: Step{WatchedUntil: at(3620), Gaps: []Gap{{atp(0), at(3620)}}}},
		{name: "the first time", state: State{Replicas: []Replica{server("a", -1, -10, Database)}},
			want: Step{WatchedUntil: at(-10), Gaps: []Gap{{Ended: at(-10)}}}},
		{name: "through the bus", epoch: "e1", state: State{WatchedUntil: atp(-60), Replicas: []Replica{server("a", -1, -10, "e1"), server("b", -1, -20, Database)}},
			want: Step{WatchedUntil: at(-20)}},
		{name: "the bus has lost it", epoch: "e2", state: State{WatchedUntil: atp(-60), Replicas: []Replica{server("a", -1, -10, "e1"), server("b", -1, -20, "e2")}}},
		{name: "the bus is unreachable", state: State{WatchedUntil: atp(-60), Replicas: []Replica{server("a", -1, -10, "e1")}}},
		{name: "a jump", state: State{WatchedUntil: atp(-3600), Replicas: []Replica{server("a", -1, -10, Database)}},
			want: Step{WatchedUntil: at(-10), Gaps: []Gap{{atp(-3600), at(-10)}}}},
		{name: "no jump yet", state: State{WatchedUntil: atp(-190), Replicas: []Replica{server("a", -1, -10, Database)}},
			want: Step{WatchedUntil: at(-10)}},
		{name: "a dead replica", state: State{WatchedUntil: atp(-100), Replicas: []Replica{server("a", -1, -10, Database), server("dead", -61, -90, "e1")}},
			want: Step{WatchedUntil: at(-10), Gaps: []Gap{{atp(-90), at(0)}}, Dead: []Replica{server("dead", -61, -90, "e1")}}},
		{name: "not dead yet", state: State{WatchedUntil: atp(-100), Replicas: []Replica{server("a", -1, -10, Database), server("dead", -60, -90, Database)}},
			want: Step{WatchedUntil: at(-90)}},
		{name: "a silent replica after an outage", early: true,
			state: State{WatchedUntil: atp(-4000), Replicas: []Replica{server("a", -3600, -3610, Database), server("b", -1, -1, Database)}},
			want:  Step{WatchedUntil: at(-3610), Gaps: []Gap{{atp(-4000), at(-3610)}}}},
		{name: "declared dead before", state: State{WatchedUntil: atp(-100), Replicas: []Replica{server("a", -1, -10, Database), server("dead", -500, -400, Gone)}},
			want: Step{WatchedUntil: at(-10)}},
		{name: "declared dead by the previous leader", early: true,
			state: State{WatchedUntil: atp(-100), Replicas: []Replica{server("a", -1, -10, Database), server("dead", -500, -400, Gone)}},
			want:  Step{WatchedUntil: at(-10)}},
		{name: "back, and has not flushed yet", epoch: "e1",
			state: State{WatchedUntil: atp(-100), Replicas: []Replica{server("a", -1, -10, "e1"), server("back", -1, -400, Gone)}}},
		{name: "back, and dead again", state: State{WatchedUntil: atp(-100), Replicas: []Replica{server("a", -1, -10, Database), server("back", -100, -400, Gone)}},
			want: Step{WatchedUntil: at(-10), Gaps: []Gap{{atp(-400), at(0)}}, Dead: []Replica{server("back", -100, -400, Gone)}}},
		{name: "all dead", state: State{WatchedUntil: atp(-100), Replicas: []Replica{server("a", -100, -120, Database)}},
			want: Step{Gaps: []Gap{{atp(-120), at(0)}}, Dead: []Replica{server("a", -100, -120, Database)}}},
	} {
		c.state.Now, c.want.Now = at(0), at(0)
		if d := cmp.Diff(c.want, decide(c.state, c.epoch, !c.early)); d != "" {
			t.Errorf("%s (-want +got): %s", c.name, d)
		}
	}
}

// clockStore is a fake database.
type clockStore struct {
	state State
	err   error // returned by every call
	order *[]string
	taken []Step
	saved []Access
}

func (s *clockStore) say(what string) error { *s.order = append(*s.order, what); return s.err }

func (s *clockStore) State(context.Context) (State, error) { return s.state, s.say("state") }

func (s *clockStore) SaveAccesses(_ context.Context, seen []Access) error {
	s.saved = append(s.saved, seen...)
	return s.say("save")
}

func (s *clockStore) Take(_ context.Context, step Step) error {
	if err := s.say("take"); err != nil {
		return err
	}
	s.taken = append(s.taken, step)
	return nil
}

// orderedBus is a fake bus.
type orderedBus struct {
	order *[]string
	seen  []Access
	epoch string
	err   error
}

func (b *orderedBus) Add(_ context.Context, seen []Access) (string, error) {
	*b.order = append(*b.order, "add")
	if b.err == nil {
		b.seen = append(b.seen, seen...)
	}
	return b.epoch, b.err
}

func (b *orderedBus) Read(context.Context) ([]Access, string, error) {
	*b.order = append(*b.order, "read")
	return b.seen, b.epoch, b.err
}

func (b *orderedBus) Remove(context.Context, []Access) error {
	*b.order = append(*b.order, "remove")
	return b.err
}

func (o *clockStore) took(t *testing.T, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, *o.order); d != "" {
		t.Errorf("done (-want +got): %s", d)
	}
	*o.order = nil
}

// The replicas' rows are read before the bus, its content is written before the
// clock advances, and removed last. After a failure nothing advances.
func TestTickOrder(t *testing.T) {
	t.Parallel()
	var order []string
	store := &clockStore{order: &order, state: State{Now: at(0), WatchedUntil: atp(-60), Replicas: []Replica{server("a", -1, -10, "e1")}}}
	bus := &orderedBus{order: &order, epoch: "e1", seen: []Access{{ID: "w", At: at(-20), Kind: Typing}}}
	c := NewClock(store, bus, slog.New(slog.DiscardHandler), (*health.Monitor)(nil).New(health.Config{}))
	tick := func(wantMoved, wantErr bool) {
		t.Helper()
		if moved, err := c.Tick(t.Context()); moved != wantMoved || (err != nil) != wantErr {
			t.Errorf("moved %v, %v", moved, err)
		}
	}
	store.err = errors.New("away")
	tick(false, true)
	store.took(t, "state")
	store.err = nil

	// While the bus is unreachable the clock does not advance.
	bus.err = errors.New("away")
	tick(false, false)
	store.took(t, "state", "read")
	bus.err = nil

	tick(true, false)
	store.took(t, "state", "read", "save", "take", "remove")
	if len(store.saved) != 1 || len(store.taken) != 1 || !c.Until().Equal(at(-10)) {
		t.Errorf("%v %v %v", store.saved, store.taken, c.Until())
	}
	// In another epoch the content is written, but it is incomplete.
	bus.epoch = "e2"
	tick(true, false)
	store.took(t, "state", "read", "save", "remove")

	// A server that is back invalidates the step.
	bus.epoch, store.state.Replicas[0].FlushedAt = "e1", atp(-5)
	broken := &takeFails{store, ErrMoved}
	c.store = broken
	tick(true, false)
	if !c.Until().Equal(at(-10)) {
		t.Error(c.Until())
	}
	broken.err = errors.New("away")
	tick(true, true)
}

type takeFails struct {
	*clockStore
	err error
}

func (f *takeFails) Take(context.Context, Step) error { return f.err }

// What prevents the clock from advancing is logged once, and again when it changes.
func TestClockLogsDelay(t *testing.T) {
	t.Parallel()
	var order []string
	var log bytes.Buffer
	store := &clockStore{order: &order, state: State{Now: at(0), WatchedUntil: atp(-200), Replicas: []Replica{server("a", -1, -10, "e1"), server("b", -1, -400, Database)}}}
	logger := slog.New(slog.NewTextHandler(&log, nil))
	c := NewClock(store, nil, logger, (*health.Monitor)(nil).New(health.Config{Log: logger}))
	tick := func(want string) {
		t.Helper()
		log.Reset()
		if _, err := c.Tick(t.Context()); err != nil {
			t.Fatal(err)
		}
		if want == "" && log.Len() > 0 || !strings.Contains(log.String(), want) {
			t.Errorf("logged %q, want %q", log.String(), want)
		}
	}
	tick("") // not long enough
	store.state.WatchedUntil = atp(-400)
	tick("replica=b")
	tick("")
	store.state.Replicas = store.state.Replicas[:1]
	tick("replica=a")
	tick("")
	store.state.Replicas[0].Epoch = Database
	tick("")
	store.state.Replicas = []Replica{server("a", -1, -10, Database), server("dead", -100, -400, "e1")}
	c.began = c.began.Add(-time.Hour)
	tick("replica=dead")
}
