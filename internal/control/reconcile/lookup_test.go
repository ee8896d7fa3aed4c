package reconcile

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// recovering is a database with one workspace, whose owner has requested a recovery.
type recovering struct {
	tickTimes
	row  workspace.Workspace
	done chan time.Time
}

func (r *recovering) Candidates(ctx context.Context) ([]*workspace.Workspace, error) {
	_, err := r.tickTimes.Candidates(ctx)
	row := r.row
	return []*workspace.Workspace{&row}, err
}

func (r *recovering) Apply(_ context.Context, changes []postgres.Change) ([]bool, error) {
	landed := make([]bool, len(changes))
	for i, c := range changes {
		if landed[i], r.row = true, c.Next; c.ClearRecover {
			r.row.RecoverRequestedAt = nil
			r.done <- time.Now()
		}
	}
	return landed, nil
}

// slowArchives are present; the first lookup of slowKey takes that long.
type slowArchives struct {
	emptyBucket
	slowKey string
	slow    time.Duration
	first   sync.Once
}

func (a *slowArchives) State(ctx context.Context, row workspace.Workspace) (lifecycle.Archive, error) {
	var err error
	if row.ArchiveKey == a.slowKey {
		a.first.Do(func() { err = pause(ctx, a.slow) })
	}
	return lifecycle.ArchivePresent, err
}

// TestRecoveryWithSlowTicks: a recovery ends although each observation takes longer than a
// result of a lookup counts, also if its two lookups end between different ticks.
func TestRecoveryWithSlowTicks(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		action  string
		slowKey string
		within  time.Duration
	}{
		"one archive":          {action: workspace.RecoverAfresh, within: 10 * time.Second},
		"slow current archive": {action: workspace.RecoverArchive, slowKey: "current", within: 15 * time.Second},
		"slow earlier archive": {action: workspace.RecoverArchive, slowKey: "earlier", within: 15 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			rows := &recovering{done: make(chan time.Time, 1), row: workspace.Workspace{
				ID: "a", Operation: workspace.OpNone, Phase: workspace.PhaseError, DesiredState: workspace.DesiredArchived,
				Home: workspace.Home{State: workspace.HomeAbsent}, ArchiveKey: "current", ErrorReason: workspace.ErrDataLost,
				RecoverRequestedAt: &now, RecoverAction: c.action,
			}}
			if c.action == workspace.RecoverArchive {
				rows.row.RecoverFrom = &workspace.Archive{Key: "earlier"}
			}
			rows.took = 3 * time.Second
			controller := pacedController()
			controller.cfg.Archives = &slowArchives{slowKey: c.slowKey, slow: 5 * time.Second}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			start := time.Now()
			go func() { ended <- controller.Run(ctx, rows) }()
			select {
			case at := <-rows.done:
				if took := at.Sub(start); took > c.within {
					t.Errorf("%s: the recovery took %s", name, took)
				}
			case <-time.After(5 * time.Minute):
				t.Errorf("%s: the recovery does not end", name)
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLookupCurrent: a result counts for 2 s. One for which the controller woke counts
// also in the first tick that judges after its arrival.
func TestLookupCurrent(t *testing.T) {
	for name, c := range map[string]struct {
		lookup lookup // times are relative to noon, when the tick judges
		age    time.Duration
		kept   time.Duration // ago; 0: never
		judged time.Duration // how long ago the previous tick judged; 0: it failed
		want   bool
	}{
		"young":                         {lookup: lookup{answer: lifecycle.ArchivePresent}, age: 2 * time.Second, want: true},
		"young failure":                 {age: time.Second, want: true},
		"since the previous tick":       {lookup: lookup{awaited: true, answer: lifecycle.ArchivePresent}, age: time.Minute, judged: time.Minute, want: true},
		"before the previous tick":      {lookup: lookup{awaited: true, answer: lifecycle.ArchivePresent}, age: time.Minute, judged: 30 * time.Second},
		"before a failed tick":          {lookup: lookup{awaited: true, answer: lifecycle.ArchivePresent}, age: 3 * time.Second},
		"not awaited":                   {lookup: lookup{answer: lifecycle.ArchivePresent}, age: 3 * time.Second, judged: time.Minute},
		"failure":                       {lookup: lookup{awaited: true}, age: 3 * time.Second, judged: time.Minute},
		"kept by the previous tick":     {lookup: lookup{awaited: true, answer: lifecycle.ArchivePresent}, age: time.Minute, kept: 9 * time.Second, judged: 9 * time.Second, want: true},
		"kept before the previous tick": {lookup: lookup{awaited: true, answer: lifecycle.ArchivePresent}, age: time.Minute, kept: 9 * time.Second, judged: 8 * time.Second},
	} {
		var judged time.Time
		c.lookup.answeredAt = noon.Add(-c.age)
		if c.kept > 0 {
			c.lookup.keptAt = noon.Add(-c.kept)
		}
		if c.judged > 0 {
			judged = noon.Add(-c.judged)
		}
		if got := c.lookup.current(noon, judged); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestFailedTickDropsLookups: after a failed observation, what was looked up before it
// does not count.
func TestFailedTickDropsLookups(t *testing.T) {
	controller := pacedController()
	tm := &term{Controller: controller, rows: refusedRead{}, judgedAt: noon}
	if _, err := tm.tick(t.Context()); err == nil {
		t.Fatal("the tick did not fail")
	}
	if !tm.judgedAt.IsZero() || !tm.lastJudged.Equal(noon) {
		t.Errorf("judged at %s, before that at %s", tm.judgedAt, tm.lastJudged)
	}
}

type refusedRead struct{ Rows }

func (refusedRead) Candidates(context.Context) ([]*workspace.Workspace, error) {
	return nil, errors.New("refused")
}
