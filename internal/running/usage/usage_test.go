package usage

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/base/health"
	"codehub/internal/postgres"
	"codehub/internal/runtime/agent"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/pgtest"
	"codehub/internal/workspace"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// What counts of the answers of an agent, one a minute: a restart of the container begins again,
// a missing answer leaves the processor time to the next one, and a false one is bounded by the
// limits.
func TestUsageOfAnswers(t *testing.T) {
	t.Parallel()
	const none = -1
	for name, c := range map[string]struct {
		answers []float64 // processor seconds
		memory  int64
		want    postgres.Spent
	}{
		"usual":                 {[]float64{10, 40}, 1 << 30, postgres.Spent{RunningSeconds: 60, CPUSeconds: 30, MemorySeconds: 60 << 30}},
		"another container":     {[]float64{500, 12}, 1 << 30, postgres.Spent{RunningSeconds: 60, CPUSeconds: 12, MemorySeconds: 60 << 30}},
		"no answer":             {[]float64{10, none}, 0, postgres.Spent{RunningSeconds: 60}},
		"one answer is missing": {[]float64{10, none, 130}, 1 << 30, postgres.Spent{RunningSeconds: 120, CPUSeconds: 120, MemorySeconds: 60 << 30}},
		"two are missing":       {[]float64{10, none, none, 1000}, 1 << 30, postgres.Spent{RunningSeconds: 180, CPUSeconds: 360, MemorySeconds: 60 << 30}},
		"the first answer":      {[]float64{none, 40}, 1 << 30, postgres.Spent{RunningSeconds: 60, MemorySeconds: 60 << 30}},
		"the first is missing":  {[]float64{none, none, 40, 50}, 1 << 30, postgres.Spent{RunningSeconds: 180, CPUSeconds: 10, MemorySeconds: 120 << 30}},
		"more than its limit":   {[]float64{0, 1e12}, 1 << 60, postgres.Spent{RunningSeconds: 60, CPUSeconds: 120, MemorySeconds: 240 << 30}},
		"less than nothing":     {[]float64{0, 0}, -5, postgres.Spent{RunningSeconds: 60}},
	} {
		last, known, got := sample{}, false, postgres.Spent{}
		for i, cpu := range c.answers {
			at := time.Unix(int64(i)*60, 0)
			next := last.next(known, at, "ann", agent.Usage{CPUSeconds: cpu, Memory: c.memory}, cpu != none)
			if known {
				s := spent(last, next, agent.Usage{CPUSeconds: cpu, Memory: c.memory}, workspace.Size{NanoCPUs: 2e9, Memory: 4 << 30})
				got.RunningSeconds += s.RunningSeconds
				got.CPUSeconds += s.CPUSeconds
				got.MemorySeconds += s.MemorySeconds
			}
			last, known = next, true
		}
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// meter is an agent that uses a processor all the time, and the sizes of homes.
type meter struct {
	mu    sync.Mutex
	began time.Time
	err   error
	sizes map[workspace.ID]int64

	some     [][]workspace.ID       // the homes of HomeSizes, of some
	single   map[workspace.ID]int64 // of HomeSize
	measured map[workspace.ID]int   // how often HomeSize was called
	broken   workspace.ID           // HomeSize fails for it
	until    []time.Time            // when the time of each HomeSize ends
}

func (m *meter) Usage(context.Context, workspace.ID) (agent.Usage, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return agent.Usage{CPUSeconds: time.Since(m.began).Seconds(), Memory: 1 << 30}, m.err
}

func (m *meter) HomeSizes(_ context.Context, only ...workspace.ID) (map[workspace.ID]int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(only) > 0 {
		m.some = append(m.some, only)
	}
	return m.sizes, nil
}

func (m *meter) HomeSize(ctx context.Context, id workspace.ID) (int64, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	until, _ := ctx.Deadline()
	m.until = append(m.until, until)
	m.measured[id]++
	if id == m.broken {
		return 0, false, errors.New("it cannot be read")
	}
	size, known := m.single[id]
	return size, known, nil
}

// Homes that were created or restored are measured together at the next sample, not with all
// others an hour later. One that cannot be measured waits for that.
func TestNewHomesAreMeasuredSoon(t *testing.T) {
	t.Parallel()
	db := fixture.NewDatabase(t, postgres.Options{})
	ann := db.AddUser("ann")
	add := func(name, phase string, bytes any) workspace.ID {
		w := db.AddWorkspace(ann, name)
		db.Change(`UPDATE workspaces SET phase = $2, home_ctx = '{"state": "live"}', home_bytes = $3 WHERE id = $1`, w.ID, phase, bytes)
		return w.ID
	}
	add("known", "RUNNING", 700)
	m := &meter{sizes: map[workspace.ID]int64{}}
	r := New(Config{Agents: m, Homes: m, UsageSettings: postgres.UsageSettings{Keep: 24 * time.Hour, SizeInterval: time.Hour}, Interval: 50 * time.Millisecond, Log: harness.Logger(t, slog.LevelWarn)})
	ctx, stop := context.WithCancel(t.Context())
	session := postgres.NewSession(db.Conn())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx, session) }()
	harness.Eventually(t, "all homes are measured", func() bool { // the sum of the day is the last step
		return fixture.Query[bool](db, `SELECT EXISTS (SELECT FROM workspace_usage WHERE home_bytes = 700)`)
	})
	tx := db.Conn()
	created, restored, broken := add("created", "PENDING", nil), add("restored", "ARCHIVED", 0), add("broken", "PENDING", nil)
	m.mu.Lock()
	m.sizes = map[workspace.ID]int64{created: 5000, restored: 6000}
	m.mu.Unlock()
	if _, err := tx.Exec(t.Context(), `UPDATE workspaces SET phase = CASE name WHEN 'restored' THEN 'STANDBY' ELSE 'RUNNING' END WHERE phase <> 'RUNNING'`); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the new homes are measured", func() bool {
		return fixture.Query[int](db, `SELECT count(*) FROM workspaces WHERE home_bytes IN (5000, 6000)`) == 2
	})
	ran := fixture.Query[float64](db, `SELECT sum(running_seconds) FROM workspace_usage`)
	harness.Eventually(t, "further samples", func() bool {
		return fixture.Query[float64](db, `SELECT sum(running_seconds) FROM workspace_usage`) > ran+0.5
	})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([][]workspace.ID{{created, restored, broken}}, m.some); diff != "" {
		t.Error(diff)
	}
}

// A home near its limit is measured again while it is in use and once after that; another one,
// and one whose volume has the limit, is not.
func TestFullHomesAreMeasuredAgain(t *testing.T) {
	t.Parallel()
	db := fixture.NewDatabase(t, postgres.Options{})
	ann := db.AddUser("ann")
	add := func(name, phase string, bytes, limit int64) workspace.ID {
		w := db.AddWorkspace(ann, name)
		db.Change(`UPDATE workspaces SET phase = $2, home_ctx = '{"state": "live"}', home_bytes = $3, home_limit = $4, phase_changed_at = now() - interval '1 hour' WHERE id = $1`, w.ID, phase, bytes, limit)
		return w.ID
	}
	stopped, running := add("stopped", "STANDBY", 1200, 0), add("running", "RUNNING", 950, 0)
	small, limited := add("small", "STANDBY", 700, 0), add("limited", "STANDBY", 1200, 1000)
	m := &meter{single: map[workspace.ID]int64{stopped: 1100, running: 300, small: 1, limited: 1}, measured: map[workspace.ID]int{}}
	r := New(Config{Homes: m, Sizes: workspace.Sizes{Default: workspace.Size{Disk: 1000}}, UsageSettings: postgres.UsageSettings{Keep: 24 * time.Hour, SizeInterval: time.Hour}, Log: harness.Logger(t, slog.LevelWarn)})
	store, full := postgres.NewUsage(postgres.NewSession(db.Conn())), fullHomes{}
	pass := func(want map[workspace.ID]int) {
		t.Helper()
		if err := r.measureFull(t.Context(), store, full); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, m.measured); diff != "" {
			t.Error(diff)
		}
	}
	pass(map[workspace.ID]int{stopped: 1, running: 1})
	for id, want := range map[workspace.ID]int64{stopped: 1100, running: 300, small: 700, limited: 1200} {
		if n := fixture.Query[int64](db, `SELECT home_bytes FROM workspaces WHERE id = $1`, id); n != want {
			t.Errorf("%d bytes are recorded, want %d", n, want)
		}
	}
	pass(map[workspace.ID]int{stopped: 1, running: 1})
	db.Change(`UPDATE workspaces SET home_bytes = 950 WHERE id = $1`, running)
	pass(map[workspace.ID]int{stopped: 1, running: 2}) // it was no longer full in between
	pass(map[workspace.ID]int{stopped: 1, running: 2})
	db.Change(`UPDATE workspaces SET phase_changed_at = now() WHERE id = $1`, stopped)
	pass(map[workspace.ID]int{stopped: 2, running: 2})
}

// The homes of an owner at the limit of bytes are measured again, of any size and kind: what was
// freed counts at the next start.
func TestHomesOfFullOwnersAreMeasuredAgain(t *testing.T) {
	t.Parallel()
	db := fixture.NewDatabase(t, postgres.Options{})
	full, below, own := db.AddUser("full"), db.AddUser("below"), db.AddUser("own")
	db.Change(`UPDATE users SET max_bytes = 100 WHERE id = $1`, own.UserID)
	add := func(u workspace.Caller, name, phase string, bytes, limit int64) workspace.ID {
		w := db.AddWorkspace(u, name)
		db.Change(`UPDATE workspaces SET phase = $2, home_bytes = $3, home_limit = $4, archive_size = 300, phase_changed_at = now() - interval '1 hour' WHERE id = $1`, w.ID, phase, bytes, limit)
		return w.ID
	}
	stopped, running, restored := add(full, "stopped", "STANDBY", 500, 0), add(full, "running", "RUNNING", 200, 900), add(full, "restored", "STANDBY", 0, 0)
	add(full, "archived", "ARCHIVED", 500, 0)
	add(below, "stopped", "STANDBY", 900, 0)
	limited := add(own, "stopped", "STANDBY", 150, 0)
	m := &meter{single: map[workspace.ID]int64{stopped: 100, running: 200, restored: 400, limited: 150}, measured: map[workspace.ID]int{}}
	r := New(Config{Homes: m, MaxBytes: 1000, UsageSettings: postgres.UsageSettings{SizeInterval: time.Hour}, Log: harness.Logger(t, slog.LevelWarn)})
	store, seen := postgres.NewUsage(postgres.NewSession(db.Conn())), fullHomes{}
	for range 2 {
		if err := r.measureFull(t.Context(), store, seen); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[workspace.ID]int{stopped: 1, running: 1, restored: 1, limited: 1}, m.measured); diff != "" {
			t.Error(diff)
		}
	}
	if n := fixture.Query[int64](db, `SELECT sum(home_bytes)::bigint FROM workspaces WHERE owner_user_id = $1 AND phase <> 'ARCHIVED'`, full.UserID); n != 700 {
		t.Errorf("%d bytes are recorded, want 700", n)
	}
}

// A home that cannot be measured neither takes the time of the others nor is tried at once again.
func TestFullHomeThatCannotBeMeasured(t *testing.T) {
	t.Parallel()
	db := fixture.NewDatabase(t, postgres.Options{})
	ann := db.AddUser("ann")
	m := &meter{single: map[workspace.ID]int64{}, measured: map[workspace.ID]int{}}
	want := map[workspace.ID]int{}
	for _, name := range []string{"one", "two", "three"} {
		id := db.AddWorkspace(ann, name).ID
		db.Change(`UPDATE workspaces SET phase = 'STANDBY', home_ctx = '{"state": "live"}', home_bytes = 1200, phase_changed_at = now() - interval '1 hour' WHERE id = $1`, id)
		m.single[id], want[id] = 1100, 1
		if m.broken == "" {
			m.broken = id // the list is sorted by id, which increases
		}
	}
	r := New(Config{Homes: m, Sizes: workspace.Sizes{Default: workspace.Size{Disk: 1000}}, UsageSettings: postgres.UsageSettings{SizeInterval: time.Hour}, Log: harness.Logger(t, slog.LevelWarn)})
	store, full := postgres.NewUsage(postgres.NewSession(db.Conn())), fullHomes{}
	if err := r.measureFull(t.Context(), store, full); err == nil || !strings.Contains(err.Error(), string(m.broken)) {
		t.Errorf("the error is %v", err)
	}
	if err := r.measureFull(t.Context(), store, full); err != nil {
		t.Errorf("again: %v", err)
	}
	if diff := cmp.Diff(want, m.measured); diff != "" {
		t.Error(diff)
	}
	if n := fixture.Query[int](db, `SELECT count(*) FROM workspaces WHERE home_bytes = 1100`); n != 2 {
		t.Errorf("%d sizes are recorded, want 2", n)
	}
	if len(m.until) != 3 || m.until[0].IsZero() || !m.until[0].Before(m.until[1]) || !m.until[1].Before(m.until[2]) {
		t.Errorf("the homes have time until %v", m.until)
	}
}

// The condition of full homes ends with their next measurement, not with that of all homes.
func TestConditionOfFullHomesEnds(t *testing.T) {
	t.Parallel()
	db := fixture.NewDatabase(t, postgres.Options{})
	w := db.AddWorkspace(db.AddUser("ann"), "full")
	db.Change(`UPDATE workspaces SET phase = 'STANDBY', home_ctx = '{"state": "live"}', home_bytes = 1200, phase_changed_at = now() - interval '1 hour' WHERE id = $1`, w.ID)
	m := &meter{sizes: map[workspace.ID]int64{}, single: map[workspace.ID]int64{w.ID: 1100}, measured: map[workspace.ID]int{}, broken: w.ID}
	conditions := &health.Monitor{}
	r := New(Config{Agents: m, Homes: m, Sizes: workspace.Sizes{Default: workspace.Size{Disk: 1000}}, UsageSettings: postgres.UsageSettings{Keep: 24 * time.Hour, SizeInterval: time.Hour},
		Interval: 500 * time.Millisecond, Conditions: conditions, Log: harness.Logger(t, slog.LevelError)})
	ctx, stop := context.WithCancel(t.Context())
	session := postgres.NewSession(db.Conn())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx, session) }()
	failing := func() bool {
		return slices.ContainsFunc(conditions.States(), func(s health.State) bool { return s.Name == "usage" && s.Error != "" })
	}
	harness.Eventually(t, "the condition begins", failing)
	m.mu.Lock()
	m.broken = ""
	m.mu.Unlock()
	harness.Eventually(t, "the condition ends", func() bool { return !failing() })
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A runner records the use of running workspaces and the sizes of homes, until it ends.
func TestRunner(t *testing.T) {
	t.Parallel()
	db := fixture.NewDatabase(t, postgres.Options{})
	ann := db.AddUser("ann")
	w, idle := db.AddWorkspace(ann, "runs"), db.AddWorkspace(ann, "stopped")
	db.Change(`UPDATE workspaces SET phase = 'RUNNING', desired_state = 'RUNNING', home_ctx = '{"state": "live"}' WHERE id = $1`, w.ID)
	m := &meter{began: time.Now(), sizes: map[workspace.ID]int64{w.ID: 5000}}
	r := New(Config{Agents: m, Homes: m, UsageSettings: postgres.UsageSettings{Keep: 24 * time.Hour, SizeInterval: time.Hour}, Interval: 50 * time.Millisecond, Log: harness.Logger(t, slog.LevelWarn)})
	ctx, stop := context.WithCancel(t.Context())
	session := postgres.NewSession(db.Conn())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx, session) }()
	harness.Eventually(t, "the use is recorded", func() bool {
		return fixture.Query[bool](db, `SELECT EXISTS (SELECT FROM workspace_usage WHERE workspace_id = $1 AND cpu_seconds > 0.2 AND memory_seconds > 0 AND running_seconds > 0.2 AND home_bytes = 5000)`, w.ID)
	})
	m.mu.Lock()
	m.err = errors.New("it does not answer")
	m.mu.Unlock()
	ran := fixture.Query[float64](db, `SELECT running_seconds FROM workspace_usage WHERE workspace_id = $1`, w.ID)
	harness.Eventually(t, "the use is recorded", func() bool {
		return fixture.Query[float64](db, `SELECT running_seconds FROM workspace_usage WHERE workspace_id = $1`, w.ID) > ran+0.2
	})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := fixture.Query[float64](db, `SELECT COALESCE(sum(running_seconds), 0) FROM workspace_usage WHERE workspace_id = $1`, idle.ID); n != 0 {
		t.Errorf("a stopped workspace ran for %v s", n)
	}
	// Each second counts once.
	spent, most := fixture.Query[float64](db, `SELECT cpu_seconds FROM workspace_usage WHERE workspace_id = $1`, w.ID), time.Since(m.began).Seconds()
	if spent > most {
		t.Errorf("it used %v s of a processor, of %v", spent, most)
	}
}
