package reconcile

import (
	"math"
	"time"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

const (
	// rateOver is the time that a rate is the average of.
	rateOver = 10 * time.Second
	// sampleEvery is how far apart what it is computed from is. What comes
	// faster at the beginning is a report that is read again, and not work.
	sampleEvery = 200 * time.Millisecond
	// rateAfter is how long a step has to last for its rate to mean something.
	rateAfter = time.Second
)

// meter measures how fast one step of an executor gets on.
type meter struct {
	step    string
	samples []sample // oldest first
}

type sample struct {
	at            time.Time
	done, entries int64
}

// note takes in how far the step is.
func (m *meter) note(now time.Time, p runtime.Progress) {
	if p.Step != m.step {
		m.step, m.samples = p.Step, m.samples[:0]
	}
	s := sample{at: now, done: p.Done, entries: p.Entries}
	switch n := len(m.samples); {
	case n == 0, now.Sub(m.samples[n-1].at) >= sampleEvery:
		m.samples = append(m.samples, s)
	case n == 1:
		m.samples[0] = s
	}
	for len(m.samples) > 1 && now.Sub(m.samples[0].at) > rateOver {
		m.samples = m.samples[1:]
	}
}

// rates is how many bytes and entries a second the step has made of late; 0 if
// that is not known, or nothing moves.
func (m *meter) rates(now time.Time, p runtime.Progress) (bytes, entries float64) {
	for _, s := range m.samples {
		over := now.Sub(s.at)
		if over > rateOver {
			continue
		}
		if over < rateAfter {
			break
		}
		per := func(from, to int64) float64 { return max(0, float64(to-from)) / over.Seconds() }
		return per(s.done, p.Done), per(s.entries, p.Entries)
	}
	return 0, 0
}

// shown is progress as people see it.
func (m *meter) shown(now time.Time, p runtime.Progress) *workspace.Progress {
	bytes, entries := m.rates(now, p)
	left := max(remaining(p.Done, p.Total, bytes), remaining(p.Entries, p.EntriesTotal, entries))
	return &workspace.Progress{
		Step: p.Step, Detail: p.Detail, Done: p.Done, Total: p.Total, Entries: p.Entries, EntriesTotal: p.EntriesTotal,
		Rate: int64(bytes), SecondsLeft: left,
	}
}

// remaining is how many seconds the rest takes, at least 1; 0 if nobody knows.
func remaining(done, total int64, rate float64) int64 {
	if rate <= 0 || total <= 0 || done >= total {
		return 0
	}
	const most = 100 * 24 * 3600 // beyond that it is a rate of next to nothing
	seconds := math.Ceil(float64(total-done) / rate)
	if seconds > most {
		return 0
	}
	return max(1, int64(seconds))
}
