package reconcile

import (
	"testing"
	"time"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// track records the progress of a step every quarter of a second.
func track(m *meter, from time.Time, p runtime.Progress, done func(n int) int64, entries func(n int) int64, quarters int) (runtime.Progress, time.Time) {
	now := from
	for n := range quarters + 1 {
		now = from.Add(time.Duration(n) * time.Second / 4)
		p.Done, p.Entries = done(n), entries(n)
		m.record(now, p)
	}
	return p, now
}

func TestRate(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	steady := func(n int) int64 { return int64(n) * 250 } // 1000 a second
	none := func(int) int64 { return 0 }
	packing := runtime.Progress{Step: runtime.StepPacking, Total: 100_000, EntriesTotal: 1000}
	for name, c := range map[string]struct {
		done, entries func(int) int64
		quarters      int
		later         time.Duration
		rate, left    int64
	}{
		"steady":               {steady, none, 20, 0, 1000, 95},
		"too early for a rate": {steady, none, 3, 0, 0, 0},
		"stalled a moment ago": {steady, none, 20, 5 * time.Second, 500, 190},
		"stalled":              {steady, none, 20, time.Minute, 0, 0},
		"faster recently":      {func(n int) int64 { return max(0, int64(n-40)) * 500 }, none, 80, 0, 2000, 40},
		"small files remain":   {steady, func(n int) int64 { return int64(n) / 4 }, 20, 0, 1000, 995},
		"read again from the beginning, then further": {func(n int) int64 {
			if n == 0 {
				return 50_000
			}
			return 50_000 + steady(n)
		}, none, 20, 0, 1000, 45},
		"more than the total": {func(n int) int64 { return 100_000 + steady(n) }, none, 20, 0, 1000, 0},
	} {
		var m meter
		m.record(start.Add(-10*time.Millisecond), packing) // the start of a report that is read again
		p, now := track(&m, start, packing, c.done, c.entries, c.quarters)
		got := m.shown(now.Add(c.later), p)
		want := &workspace.Progress{Step: p.Step, Done: p.Done, Total: p.Total, Entries: p.Entries, EntriesTotal: p.EntriesTotal, Rate: c.rate, SecondsLeft: c.left}
		near := func(a, b int64) bool { return a == b || b != 0 && (a-b)*100/b <= 1 && (b-a)*100/b <= 1 }
		if !near(got.Rate, want.Rate) || !near(got.SecondsLeft, want.SecondsLeft) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

// Every step has its own rate.
func TestRatePerStep(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var m meter
	p, now := track(&m, start, runtime.Progress{Step: runtime.StepPacking}, func(n int) int64 { return int64(n) * 1000 }, func(int) int64 { return 0 }, 20)
	p.Step, p.Done = runtime.StepVerifying, 0
	m.record(now, p)
	if got := m.shown(now.Add(500*time.Millisecond), p); got.Rate != 0 || got.SecondsLeft != 0 {
		t.Errorf("%+v", got)
	}
	if len(m.samples) != 1 {
		t.Errorf("%d samples of a step that has begun", len(m.samples))
	}
}

func TestSecondsLeft(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		done, total int64
		rate        float64
		want        int64
	}{
		{0, 100, 10, 10}, {95, 100, 10, 1}, {99, 100, 1e9, 1}, {0, 101, 10, 11},
		{0, 0, 10, 0}, {0, 100, 0, 0}, {100, 100, 10, 0}, {200, 100, 10, 0}, {0, 1 << 60, 1e-3, 0},
	} {
		if got := remaining(c.done, c.total, c.rate); got != c.want {
			t.Errorf("remaining(%d, %d, %g) = %d, want %d", c.done, c.total, c.rate, got, c.want)
		}
	}
}

// The number of samples is limited.
func TestMeterSamplesAreLimited(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var m meter
	for n := range 100_000 {
		m.record(start.Add(time.Duration(n)*10*time.Millisecond), runtime.Progress{Step: runtime.StepPacking, Done: int64(n)})
	}
	if n := len(m.samples); n > int(rateWindow/sampleInterval)+2 {
		t.Errorf("%d samples", n)
	}
}
