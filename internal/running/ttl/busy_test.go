package ttl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"codehub/internal/bus/activity"
	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/runtime/agent"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/workspace"
)

func TestInUse(t *testing.T) {
	t.Parallel()
	settings := Settings{BusyMax: 24 * time.Hour, WorkMax: 8 * time.Hour, WorkThreshold: 20}
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) *time.Time { at := now.Add(-d); return &at }
	day := func(d int) *time.Time { at := time.Date(2026, 11, d, 0, 0, 0, 0, time.UTC); return &at }
	held := []agent.Holder{{What: "make test"}}
	for _, c := range []struct {
		name     string
		w        postgres.IdleSoon
		holders  []agent.Holder
		work     float64
		settings *Settings
		want     activity.Kind
		since    *time.Time // HeldSince
		seconds  int
	}{
		{name: "nothing"},
		{name: "a holder", holders: held, want: activity.Busy, since: &now},
		{name: "held for some hours", holders: held, want: activity.Busy, since: ago(23 * time.Hour),
			w: postgres.IdleSoon{LastUse: ago(time.Hour), Busy: postgres.Busy{ConfirmedAt: ago(time.Hour), HeldSince: ago(23 * time.Hour)}}},
		{name: "held for a day", holders: held,
			w: postgres.IdleSoon{LastUse: ago(time.Hour), Busy: postgres.Busy{ConfirmedAt: ago(time.Hour), HeldSince: ago(24 * time.Hour)}}},
		{name: "used since", holders: held, want: activity.Busy, since: &now,
			w: postgres.IdleSoon{LastUse: ago(time.Minute), Busy: postgres.Busy{ConfirmedAt: ago(time.Hour), HeldSince: ago(24 * time.Hour)}}},
		{name: "turned off on the server", holders: held, settings: &Settings{WorkMax: time.Hour, WorkThreshold: 20}},
		{name: "at work, which does not count", work: 2},
		{name: "at work", work: .2, w: postgres.IdleSoon{AwakeWhileWorking: true, IdleSince: *ago(time.Hour)}, want: activity.Work, seconds: 3600},
		{name: "at work below the threshold", work: .19, w: postgres.IdleSoon{AwakeWhileWorking: true, IdleSince: *ago(time.Hour)}},
		{name: "at work for the last time of the day", work: 1, want: activity.Work, seconds: 8 * 3600,
			w: postgres.IdleSoon{AwakeWhileWorking: true, IdleSince: *ago(time.Hour), Busy: postgres.Busy{WorkDay: day(20), WorkSeconds: 7 * 3600}}},
		{name: "at work for too long", work: 1,
			w: postgres.IdleSoon{AwakeWhileWorking: true, IdleSince: *ago(time.Hour), Busy: postgres.Busy{WorkDay: day(20), WorkSeconds: 7*3600 + 1}}},
		{name: "at work, as on the day before", work: 1, want: activity.Work, seconds: 3600,
			w: postgres.IdleSoon{AwakeWhileWorking: true, IdleSince: *ago(time.Hour), Busy: postgres.Busy{WorkDay: day(19), WorkSeconds: 8 * 3600}}},
		{name: "at work after a day of holders", holders: held, work: 1, want: activity.Work, since: ago(24 * time.Hour), seconds: 3600,
			w: postgres.IdleSoon{AwakeWhileWorking: true, IdleSince: *ago(time.Hour), LastUse: ago(time.Hour), Busy: postgres.Busy{ConfirmedAt: ago(time.Hour), HeldSince: ago(24 * time.Hour)}}},
	} {
		c.w.Now = now
		if c.settings == nil {
			c.settings = &settings
		}
		kind, busy := inUse(c.w, asked{agent.Usage{Holders: c.holders}, c.work}, *c.settings)
		if kind != c.want {
			t.Errorf("%s: %q, want %q", c.name, kind, c.want)
		}
		if kind == "" {
			continue
		}
		if (busy.HeldSince == nil) != (c.since == nil) || c.since != nil && !busy.HeldSince.Equal(*c.since) || busy.WorkSeconds != c.seconds || !busy.ConfirmedAt.Equal(now) {
			t.Errorf("%s: %+v", c.name, busy)
		}
	}
}

func TestWorkSince(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, c := range []struct {
		before, now sample
		want        float64
	}{
		{sample{}, sample{now, 100}, 0},
		{sample{now.Add(-time.Minute), 40}, sample{now, 100}, 1},
		{sample{now.Add(-time.Minute), 140}, sample{now, 100}, 0}, // another container
		{sample{now, 40}, sample{now, 100}, 0},
	} {
		if got := workSince(c.before, c.now); got != c.want {
			t.Errorf("%+v, %+v: %v, want %v", c.before, c.now, got, c.want)
		}
	}
}

// agents is a fake of all agents.
type agents struct {
	mu    sync.Mutex
	by    map[workspace.ID]agent.Usage
	asked map[workspace.ID]int
	// err is the error for workspaces without an answer; nil: another one.
	err error
	// wait makes questions wait for the end of their context.
	wait bool
}

func (a *agents) Usage(ctx context.Context, id workspace.ID) (agent.Usage, error) {
	if a.wait {
		<-ctx.Done()
		return agent.Usage{}, ctx.Err()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked[id]++
	u, ok := a.by[id]
	if !ok {
		return u, cmp.Or(a.err, errors.New("no answer"))
	}
	return u, nil
}

// A workspace that a command holds awake is not stopped, one whose agent does not answer is.
func TestHeldWorkspacesStayAwake(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	a := &agents{asked: map[workspace.ID]int{}, by: map[workspace.ID]agent.Usage{}}
	w.cfg.Agents = a
	w.cfg.BusyMax, w.cfg.WorkMax, w.cfg.WorkThreshold = time.Hour, time.Hour, 20
	w.flushes()
	term := w.begin()
	w.ticks(term)
	held, silent, idle := w.workspace(workspace.PhaseRunning), w.workspace(workspace.PhaseRunning), w.workspace(workspace.PhaseRunning)
	a.by[held], a.by[idle] = agent.Usage{Holders: []agent.Holder{{What: "make test"}}}, agent.Usage{}
	w.minutes(term, 2)
	if len(a.asked) > 0 {
		t.Errorf("asked long before the end: %v", a.asked)
	}
	w.minutes(term, 10)
	w.wants("held by a command", held, runs, "")
	w.wants("without an answer", silent, rests, workspace.CauseIdle)
	w.wants("idle", idle, rests, workspace.CauseIdle)
	if kind := fixture.Query[string](w.Database, `SELECT last_access_kind FROM workspaces WHERE id = $1`, held); kind != string(activity.Busy) {
		t.Errorf("the last use is %s", kind)
	}
	w.minutes(term, 40)
	w.wants("still held", held, runs, "")
	w.uses(term, held, activity.Typing) // begins the time again
	w.minutes(term, 50)
	w.wants("held after a use", held, runs, "")
	w.minutes(term, 30)
	w.wants("held for too long", held, rests, workspace.CauseIdle)
}

// askingWorld is a world in a term that asks agents.
func askingWorld(t *testing.T) (*world, *agents, *term) {
	w := newWorld(t, nil)
	a := &agents{asked: map[workspace.ID]int{}, by: map[workspace.ID]agent.Usage{}}
	w.cfg.Agents = a
	w.cfg.BusyMax, w.cfg.WorkMax, w.cfg.WorkThreshold = time.Hour, time.Hour, 20
	w.flushes()
	term := w.begin()
	w.ticks(term)
	return w, a, term
}

// While the runtime does not respond, it is not known what keeps a workspace awake, so none is
// stopped. After the outage, only idle ones are.
func TestOutageOfRuntimeStopsNoWorkspace(t *testing.T) {
	t.Parallel()
	w, a, term := askingWorld(t)
	held, working, idle := w.workspace(workspace.PhaseRunning), w.workspace(workspace.PhaseRunning), w.workspace(workspace.PhaseRunning)
	w.Exec(`UPDATE workspaces SET awake_while_working = true WHERE id = $1`, working)
	a.err = fmt.Errorf("find the workspace's container: inspect container: %w", runtime.ErrUnreachable)
	w.minutes(term, 15)
	for name, id := range map[string]workspace.ID{"held": held, "working": working, "idle": idle} {
		w.wants(name+" in the outage", id, runs, "")
	}
	a.by = map[workspace.ID]agent.Usage{held: {Holders: []agent.Holder{{What: "make test"}}}, working: {CPUSeconds: 10}, idle: {}}
	w.minutes(term, 1)
	w.wants("held after the outage", held, runs, "")
	w.wants("idle after the outage", idle, rests, workspace.CauseIdle)
	w.wants("at work, of which there is one sample", working, runs, "")
	a.by[working] = agent.Usage{CPUSeconds: 1e6}
	w.minutes(term, 1)
	w.wants("at work after the outage", working, runs, "")

	// A sample from before an outage counts after it.
	w.minutes(term, 8)
	delete(a.by, working)
	w.minutes(term, 5)
	a.by[working] = agent.Usage{CPUSeconds: 2e6}
	w.minutes(term, 1)
	w.wants("at work after the second outage", working, runs, "")
	w.minutes(term, 15)
	w.wants("at rest", working, rests, workspace.CauseIdle)
}

// A workspace whose agent was not asked in the time of a tick is not stopped in it.
func TestUnaskedWorkspacesAreNotStopped(t *testing.T) {
	t.Parallel()
	w, a, term := askingWorld(t)
	id := w.workspace(workspace.PhaseRunning)
	list := []postgres.IdleSoon{{ID: id}}
	a.wait = true
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, unknown := term.ask(over, list); len(unknown) != 1 || unknown[0] != id {
		t.Errorf("not asked: unknown %v", unknown)
	}
	if _, unknown := term.ask(t.Context(), list); len(unknown) != 0 { // askTimeout
		t.Errorf("an agent that does not answer: unknown %v", unknown)
	}
	a.wait = false
	for n := range askMost {
		list = append([]postgres.IdleSoon{{ID: workspace.ID(fmt.Sprint(n))}}, list...)
	}
	if _, unknown := term.ask(t.Context(), list); len(unknown) != 1 || unknown[0] != id {
		t.Errorf("more than can be asked: unknown %v", unknown)
	}
}
