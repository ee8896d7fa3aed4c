package postgres_test

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"codehub/internal/bus/activity"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// replica records a server with its last heartbeat and flush so long ago.
func (e *env) replica(seen, flushed time.Duration, epoch string) string {
	e.Helper()
	id := uuid.NewString()
	e.exec(`INSERT INTO replicas (id, started_at, seen_at, flushed_at, flush_epoch)
		VALUES ($1, now() - interval '1 day', clock_timestamp() - $2::interval, clock_timestamp() - $3::interval, $4)`, id, seen, flushed, epoch)
	return id
}

func (e *env) clock() *postgres.ActivityClock {
	return postgres.NewActivityClock(postgres.NewController(postgres.NewSession(e.conn())))
}

func lastUse(w workspace.Workspace) string {
	if w.LastAccessAt == nil {
		return "never"
	}
	return w.LastAccessAt.UTC().Format(time.RFC3339Nano) + " " + w.LastAccess
}

// The last use is written for workspaces that exist, never moved back, and never in the future.
func TestSaveAccesses(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ann := e.user("ann")
	a, b, c := e.workspace(ann, nil), e.workspace(ann, nil), e.workspace(ann, nil)
	at := soon(-time.Hour)
	e.set(b.ID, state{"last_access_at": at, "last_access_kind": "open"})
	save := []func([]activity.Access) error{
		func(seen []activity.Access) error { return e.SaveAccesses(t.Context(), seen) },
		func(seen []activity.Access) error { return e.clock().SaveAccesses(t.Context(), seen) },
	}
	for i, save := range save {
		before := e.read(a.ID).UpdatedAt
		if err := save([]activity.Access{
			{ID: a.ID, At: at.Add(time.Minute), Kind: activity.Typing},
			{ID: b.ID, At: at.Add(-time.Minute), Kind: activity.Output},
			{ID: workspace.ID(uuid.NewString()), At: at, Kind: activity.Open},
			{ID: "no id", At: at, Kind: activity.Open},
			{ID: a.ID, At: at.Add(time.Second), Kind: activity.Output}, // twice in one batch
			{ID: c.ID, At: soon(24 * time.Hour), Kind: activity.Client},
		}); err != nil {
			t.Fatal(err)
		}
		if got, want := lastUse(e.read(a.ID)), at.Add(time.Minute).Format(time.RFC3339Nano)+" typing"; got != want {
			t.Errorf("%d: %s, want %s", i, got, want)
		}
		if got, want := lastUse(e.read(b.ID)), at.Format(time.RFC3339Nano)+" open"; got != want {
			t.Errorf("%d: backwards to %s, want %s", i, got, want)
		}
		if w := e.read(c.ID); w.LastAccess != "client" || time.Until(*w.LastAccessAt) > time.Minute {
			t.Errorf("%d: a use in the future is %s", i, lastUse(w))
		}
		if got := e.read(a.ID).UpdatedAt; !got.Equal(before) {
			t.Error("a use changed updated_at")
		}
	}
	if err := e.SaveAccesses(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

// Concurrent flushes of the same workspaces, with other changes to the rows: every transaction
// succeeds in the end, and the latest use is stored.
func TestSaveAccessesConcurrently(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ann := e.user("ann")
	ids := make([]workspace.ID, 40)
	for i := range ids {
		ids[i] = e.workspace(ann, state{"phase": "STANDBY"}).ID
	}
	base := soon(-time.Hour)
	var wg sync.WaitGroup
	for n := range 6 {
		wg.Go(func() {
			for step := range 20 {
				seen := make([]activity.Access, len(ids))
				for i, j := range rand.Perm(len(ids)) {
					seen[i] = activity.Access{ID: ids[j], At: base.Add(time.Duration(step*6+n) * time.Second), Kind: activity.Typing}
				}
				if err := e.SaveAccesses(t.Context(), seen); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Go(func() {
		for i := range 100 {
			name := "n" + uuid.NewString()
			if _, err := e.PatchWorkspace(t.Context(), ann, ids[i%len(ids)], postgres.Patch{Edit: workspace.Edit{Name: &name}}); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	want := base.Add((19*6+5)*time.Second).Format(time.RFC3339Nano) + " typing"
	for _, id := range ids {
		if got := lastUse(e.read(id)); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestConfirmFlush(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	id := e.replica(0, time.Hour, "e1")
	at := soon(0)
	if known := must(e.ConfirmFlush(t.Context(), id, at, activity.Database))(t); !known {
		t.Error("not known")
	}
	if known := must(e.ConfirmFlush(t.Context(), uuid.NewString(), at, activity.Database))(t); known {
		t.Error("known")
	}
	s := must(e.clock().State(t.Context()))(t)
	if len(s.Replicas) != 1 || !s.Replicas[0].FlushedAt.Equal(at) || s.Replicas[0].Epoch != activity.Database || s.WatchedUntil != nil || s.Now.Before(at.Add(-time.Minute)) {
		t.Errorf("%+v", s)
	}
	p := must(e.FlushPoint(t.Context()))(t)
	if p.WatchedUntil != nil || p.Now.Before(s.Now) {
		t.Errorf("%+v", p)
	}
}

type gap struct{ Began, Ended time.Time }

func (e *env) gaps() (out []gap) {
	e.Helper()
	rows, err := e.raw.Query(e.Context(), `SELECT CASE WHEN began = '-infinity' THEN '0001-01-01' ELSE began END, ended FROM unwatched ORDER BY began`)
	if err != nil {
		e.Fatal(err)
	}
	for rows.Next() {
		var g gap
		if err := rows.Scan(&g.Began, &g.Ended); err != nil {
			e.Fatal(err)
		}
		out = append(out, gap{g.Began.UTC(), g.Ended.UTC()})
	}
	if err := rows.Err(); err != nil {
		e.Fatal(err)
	}
	return out
}

// A step is applied as a whole; gaps never overlap; the clock never goes back.
func TestTakeIsAtomic(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	c := e.clock()
	now := soon(0)
	at := func(m int) time.Time { return now.Add(time.Duration(m) * time.Minute) }
	take := func(s activity.Step) error {
		s.Now = now
		return c.Take(t.Context(), s)
	}
	do := func(s activity.Step) {
		t.Helper()
		if err := take(s); err != nil {
			t.Fatal(err)
		}
	}
	wants := func(until time.Time, gaps ...gap) {
		t.Helper()
		s := must(c.State(t.Context()))(t)
		if s.WatchedUntil == nil || !s.WatchedUntil.Equal(until) {
			t.Errorf("watched until %v, want %v", s.WatchedUntil, until)
		}
		if d := cmp.Diff(gaps, e.gaps()); d != "" {
			t.Errorf("gaps (-want +got): %s", d)
		}
	}
	do(activity.Step{WatchedUntil: at(-100), Gaps: []activity.Gap{{Ended: at(-100)}}})
	wants(at(-100), gap{time.Time{}.AddDate(0, 0, 0), at(-100)})
	do(activity.Step{WatchedUntil: at(-110)})
	wants(at(-100), gap{time.Time{}, at(-100)})
	// Two dead servers at once, and a gap over both.
	do(activity.Step{WatchedUntil: at(-50), Gaps: []activity.Gap{{Began: ptr(at(-80)), Ended: at(-60)}, {Began: ptr(at(-70)), Ended: at(-60)}, {Began: ptr(at(-90)), Ended: at(-50)}}})
	wants(at(-50), gap{time.Time{}, at(-100)}, gap{at(-90), at(-50)})
	do(activity.Step{Gaps: []activity.Gap{{Began: ptr(at(-90)), Ended: at(-85)}}}) // within an existing one
	do(activity.Step{Gaps: []activity.Gap{{Began: ptr(at(-50)), Ended: at(-40)}}}) // touching it
	do(activity.Step{Gaps: []activity.Gap{{Began: ptr(at(-30)), Ended: at(-20)}}})
	wants(at(-50), gap{time.Time{}, at(-100)}, gap{at(-90), at(-40)}, gap{at(-30), at(-20)})
	do(activity.Step{Gaps: []activity.Gap{{Began: ptr(at(-120)), Ended: at(-25)}}}) // covers all
	wants(at(-50), gap{time.Time{}, at(-20)})
	for since, want := range map[int]time.Duration{-10: 0, -20: 0, -21: time.Minute, -80: time.Hour, -5000: 4980 * time.Minute} {
		if got := query[time.Duration](e, `SELECT unwatched_since($1)`, at(since)); got != want {
			t.Errorf("since %d: %s, want %s", since, got, want)
		}
	}

	// If a server that the step considers dead was seen again, no part of the step is applied.
	gone, back := e.replica(time.Hour, time.Hour, "e1"), e.replica(time.Hour, time.Hour, "e1")
	s := must(c.State(t.Context()))(t)
	e.exec(`UPDATE replicas SET seen_at = clock_timestamp() WHERE id = $1`, back)
	if err := take(activity.Step{WatchedUntil: at(-1), Dead: s.Replicas}); !errors.Is(err, activity.ErrMoved) {
		t.Fatal(err)
	}
	wants(at(-50), gap{time.Time{}, at(-20)})
	if n := query[int](e, `SELECT count(*) FROM replicas WHERE flush_epoch = 'e1'`); n != 2 {
		t.Errorf("%d of 2 servers are unchanged", n)
	}
	for _, r := range s.Replicas {
		if r.ID == gone {
			do(activity.Step{Dead: []activity.Replica{r}})
		}
	}
	if got := query[time.Time](e, `SELECT flushed_at FROM replicas WHERE id = $1 AND flush_epoch = $2`, gone, activity.Gone); !got.Equal(now) {
		t.Errorf("found dead at %s, want %s", got, now)
	}
}

// Gaps are removed if they ended before the idle time of every workspace with an idle timeout
// began.
func TestPruneGaps(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	c := e.clock()
	ann := e.user("ann")
	now := soon(0)
	at := func(m int) time.Time { return now.Add(time.Duration(m) * time.Minute) }
	server := workspace.TTL{Standby: time.Hour, Archive: 0}
	e.exec(`UPDATE activity_clock SET watched_until = $1`, at(-1))
	for _, m := range []int{-500, -400, -300, -200, -100, 0} {
		e.exec(`INSERT INTO unwatched VALUES ($1, $2)`, at(m-10), at(m))
	}
	e.workspace(ann, state{"phase": "RUNNING", "phase_changed_at": at(-600), "last_access_at": at(-250)})
	e.workspace(ann, state{"phase": "RUNNING", "phase_changed_at": at(-600), "standby_ttl_seconds": 0})
	e.workspace(ann, state{"phase": "STANDBY", "phase_changed_at": at(-600)})
	e.workspace(ann, state{"phase": "ARCHIVED", "phase_changed_at": at(-600), "archive_ttl_seconds": 5})
	own := e.workspace(ann, state{"phase": "STANDBY", "phase_changed_at": at(-350), "archive_ttl_seconds": 60})
	prune := func(want int64, left int) {
		t.Helper()
		if n := must(c.Prune(t.Context(), server))(t); n != want || len(e.gaps()) != left {
			t.Errorf("%d removed, %d left; want %d and %d", n, len(e.gaps()), want, left)
		}
	}
	prune(2, 4)
	prune(0, 4)
	e.set(own.ID, state{"archive_ttl_seconds": nil})
	prune(1, 3)
	e.exec(`DELETE FROM workspaces`)
	prune(2, 1) // the last one has not ended by the clock
}
