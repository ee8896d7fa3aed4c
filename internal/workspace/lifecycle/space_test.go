package lifecycle_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

const gib = int64(1) << 30

func sized(disk int64) workspace.Sizes {
	return workspace.Sizes{
		Default: workspace.Size{Name: workspace.DefaultSize, Disk: disk},
		Offered: []workspace.Size{{Name: "small", Disk: 5 * gib}, {Name: "large", Disk: 50 * gib}, {Name: "free"}},
	}
}

// using is a stopped workspace whose home uses so many bytes; -1: it was not measured.
func using(bytes int64) workspace.Workspace {
	w := workspace.Workspace{Phase: workspace.PhaseStandby, Operation: workspace.OpNone, DesiredState: workspace.DesiredStandby}
	if bytes >= 0 {
		w.HomeBytes = &bytes
	}
	return w
}

func TestHomeSpace(t *testing.T) {
	t.Parallel()
	enforced := using(10 * gib)
	enforced.HomeLimit = 10 * gib
	for name, c := range map[string]struct {
		w                    workspace.Workspace
		disk                 int64
		near, over, enforced bool
	}{
		"far from it":           {using(5 * gib), 10 * gib, false, false, false},
		"just below 90 %":       {using(9*gib - 1), 10 * gib, false, false, false},
		"90 %":                  {using(9 * gib), 10 * gib, true, false, false},
		"at the limit":          {using(10 * gib), 10 * gib, true, false, false},
		"over it":               {using(10*gib + 1), 10 * gib, true, true, false},
		"no limit":              {using(1 << 60), 0, false, false, false},
		"not measured":          {using(-1), 10 * gib, false, false, false},
		"a volume with a limit": {enforced, 5 * gib, true, false, true},
	} {
		s := lifecycle.SpaceOf(c.w, sized(c.disk))
		if s.Near() != c.near || s.Over() != c.over || s.Enforced != c.enforced {
			t.Errorf("%s: %+v, near %v, over %v", name, s, s.Near(), s.Over())
		}
	}
}

// A stopped workspace over its limit starts to free space alone, and that again only if it has
// helped or a day later.
func TestStartOverLimit(t *testing.T) {
	t.Parallel()
	now := time.Now()
	sizes := sized(10 * gib)
	start := func(w workspace.Workspace, free bool, at time.Time) (workspace.Workspace, error) {
		t.Helper()
		out, err := lifecycle.Desire(w, at, workspace.DesiredRunning, false)
		if err != nil {
			t.Fatal(err)
		}
		out, err = lifecycle.CheckSpace(w, out, sizes, free, at)
		return out.Workspace, err
	}
	over := using(12 * gib)
	if _, err := start(using(9*gib), false, now); err != nil {
		t.Errorf("below the limit: %v", err)
	}
	if _, err := start(over, false, now); workspace.CodeOf(err) != workspace.CodeQuotaExceeded {
		t.Errorf("over the limit: %v", err)
	}
	freeing, err := start(over, true, now)
	if err != nil || freeing.FreeingAt == nil || freeing.FreeingFrom != 12*gib {
		t.Fatalf("to free space: %+v, %v", freeing, err)
	}
	again := freeing
	again.DesiredState = workspace.DesiredStandby
	if _, err := start(again, true, now.Add(time.Hour)); workspace.CodeOf(err) != workspace.CodeQuotaExceeded {
		t.Errorf("again, without any file deleted: %v", err)
	}
	if _, err := start(again, true, now.Add(24*time.Hour)); err != nil {
		t.Errorf("a day later: %v", err)
	}
	smaller := 11 * gib
	again.HomeBytes = &smaller
	if _, err := start(again, true, now.Add(time.Hour)); err != nil {
		t.Errorf("after some files were deleted: %v", err)
	}
	running := over
	running.Phase, running.DesiredState = workspace.PhaseRunning, workspace.DesiredStandby
	if _, err := start(running, false, now); err != nil {
		t.Errorf("a workspace that runs: %v", err)
	}
	woken, err := lifecycle.Wake(over, now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lifecycle.CheckSpace(over, woken, sizes, false, now); workspace.CodeOf(err) != workspace.CodeQuotaExceeded {
		t.Errorf("opened over the limit: %v", err)
	}
}

// A start that was queued before the workspace stopped is dropped over the limit: not that of a
// restart, nor one that was queued to free space since the stop, nor another state.
func TestQueuedStartOverLimit(t *testing.T) {
	t.Parallel()
	now := time.Now()
	sizes, unmeasured := sized(10*gib), sized(10*gib)
	unmeasured.Unmeasured = true
	for name, c := range map[string]struct {
		change  func(*workspace.Workspace)
		sizes   workspace.Sizes
		dropped bool
	}{
		"over the limit":    {func(*workspace.Workspace) {}, sizes, true},
		"not measured":      {func(*workspace.Workspace) {}, unmeasured, false},
		"below the limit":   {func(w *workspace.Workspace) { *w.HomeBytes = gib }, sizes, false},
		"an archiving":      {func(w *workspace.Workspace) { w.NextDesired = workspace.DesiredArchived }, sizes, false},
		"a deletion":        {func(w *workspace.Workspace) { w.NextDesired = workspace.DesiredDeleted }, sizes, false},
		"a restart":         {func(w *workspace.Workspace) { w.DesiredCause = workspace.CauseRestart }, sizes, false},
		"to free space":     {func(w *workspace.Workspace) { w.FreeingAt = new(now.Add(time.Second)) }, sizes, false},
		"freed earlier":     {func(w *workspace.Workspace) { w.FreeingAt = new(now.Add(-time.Hour)) }, sizes, true},
		"it runs":           {func(w *workspace.Workspace) { w.Phase = workspace.PhaseRunning }, sizes, false},
		"desired already":   {func(w *workspace.Workspace) { w.DesiredState = workspace.DesiredRunning }, sizes, false},
		"an operation runs": {func(w *workspace.Workspace) { w.Operation = workspace.OpStopping }, sizes, false},
	} {
		w := using(12 * gib)
		w.PhaseChangedAt, w.NextDesired = now, workspace.DesiredRunning
		c.change(&w)
		plain := lifecycle.ApplyQueued(w, now)
		out := lifecycle.CheckQueuedSpace(w, plain, c.sizes)
		want := plain
		if c.dropped {
			want = lifecycle.Intent{Workspace: w, Changed: true}
			want.Workspace.NextDesired = ""
		}
		if d := cmp.Diff(want, out); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// What was measured before counts for nothing on a server that does not measure.
func TestUnmeasuredHomes(t *testing.T) {
	t.Parallel()
	sizes, over := sized(10*gib), using(12*gib)
	sizes.Unmeasured = true
	if s := lifecycle.SpaceOf(over, sizes); s.Measured || s.Near() || s.Over() || s.Limit != 10*gib {
		t.Errorf("%+v", s)
	}
	out, err := lifecycle.Desire(over, time.Now(), workspace.DesiredRunning, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lifecycle.CheckSpace(over, out, sizes, false, time.Now()); err != nil {
		t.Errorf("a start: %v", err)
	}
	if _, err := lifecycle.SetSize(over, "small", sizes); err != nil {
		t.Errorf("a smaller size: %v", err)
	}
}

// A home that is over its limit keeps every way but the start: it can be archived, deleted and
// given a larger size.
func TestWaysOutOfFullHome(t *testing.T) {
	t.Parallel()
	now, sizes, over := time.Now(), sized(10*gib), using(12*gib)
	if out, err := lifecycle.Desire(over, now, workspace.DesiredArchived, false); err != nil || !out.Changed {
		t.Errorf("archive: %v", err)
	}
	if _, err := lifecycle.Delete(over, now, false); err != nil {
		t.Errorf("delete: %v", err)
	}
	for name, code := range map[string]workspace.Code{"large": "", "free": "", "small": workspace.CodeQuotaExceeded} {
		if _, err := lifecycle.SetSize(over, name, sizes); workspace.CodeOf(err) != code {
			t.Errorf("the size %s: %v", name, err)
		}
	}
	far := using(60 * gib)
	far.Size = "small"
	if _, err := lifecycle.SetSize(far, "large", sizes); err != nil {
		t.Errorf("a larger size that is too small as well: %v", err)
	}
}
