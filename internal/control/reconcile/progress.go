package reconcile

import (
	"math"
	"time"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

const (
	// rateWindow is the time over which rates are averaged.
	rateWindow = 10 * time.Second
	// sampleInterval is the shortest time between two samples. A job's report is
	// replayed quickly when it is read again, which must not look like fast
	// progress.
	sampleInterval = 200 * time.Millisecond
	// rateMinAge is how long a step must have run before its rate is reported.
	rateMinAge = time.Second
)

// meter measures the rate of an executor's current step.
type meter struct {
	step    string
	samples []sample // oldest first
}

type sample struct {
	at            time.Time
	done, entries int64
}

// record adds a sample.
func (m *meter) record(now time.Time, p runtime.Progress) {
	if p.Step != m.step {
		m.step, m.samples = p.Step, m.samples[:0]
	}
	s := sample{at: now, done: p.Done, entries: p.Entries}
	switch n := len(m.samples); {
	case n == 0, now.Sub(m.samples[n-1].at) >= sampleInterval:
		m.samples = append(m.samples, s)
	case n == 1:
		m.samples[0] = s
	}
	for len(m.samples) > 1 && now.Sub(m.samples[0].at) > rateWindow {
		m.samples = m.samples[1:]
	}
}

// rates returns the recent bytes and entries per second, or 0 if they are not known
// or nothing moves.
func (m *meter) rates(now time.Time, p runtime.Progress) (bytes, entries float64) {
	for _, s := range m.samples {
		over := now.Sub(s.at)
		if over > rateWindow {
			continue
		}
		if over < rateMinAge {
			break
		}
		per := func(from, to int64) float64 { return max(0, float64(to-from)) / over.Seconds() }
		return per(s.done, p.Done), per(s.entries, p.Entries)
	}
	return 0, 0
}

// shown returns the progress as users see it.
func (m *meter) shown(now time.Time, p runtime.Progress) *workspace.Progress {
	bytes, entries := m.rates(now, p)
	left := max(remaining(p.Done, p.Total, bytes), remaining(p.Entries, p.EntriesTotal, entries))
	return &workspace.Progress{
		Step: p.Step, Detail: p.Detail, Done: p.Done, Total: p.Total, Entries: p.Entries, EntriesTotal: p.EntriesTotal,
		Rate: int64(bytes), SecondsLeft: left,
	}
}

// remaining returns the estimated seconds until the step ends, at least 1, or 0 if
// it is not known.
func remaining(done, total int64, rate float64) int64 {
	if rate <= 0 || total <= 0 || done >= total {
		return 0
	}
	const most = 100 * 24 * 3600 // beyond that the rate is too low for an estimate
	seconds := math.Ceil(float64(total-done) / rate)
	if seconds > most {
		return 0
	}
	return max(1, int64(seconds))
}
