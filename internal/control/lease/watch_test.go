package lease

import (
	"testing"
	"time"
)

func TestWatch(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	beaten := func(n int, age time.Duration) leader {
		return leader{replica: "r", backend: backend{pid: 1, start: at}, heartbeatAt: at.Add(time.Duration(n) * heartbeatInterval), heartbeatAge: age}
	}
	type check struct {
		after time.Duration // since the previous check
		leader
		hung bool
	}
	s := time.Second
	long := []check{{0, beaten(0, 0), false}}
	for range 7 {
		long = append(long, check{s, beaten(0, -time.Hour), false})
	}
	silent := []check{{0, beaten(0, s*8/10), false}} // and its next heartbeat does not come
	for n := range 7 {
		silent = append(silent, check{s, beaten(0, time.Duration(n)*s+s*18/10), false})
	}
	for name, checks := range map[string][]check{
		"never a leader":           {{0, leader{}, false}, {s, leader{heartbeatAge: time.Hour}, false}},
		"it beats":                 {{0, beaten(0, s), false}, {s, beaten(1, s), false}, {s, beaten(2, s), false}},
		"old, and just begun":      {{0, beaten(0, time.Hour), false}, {s, beaten(0, time.Hour), false}, {2 * s, beaten(0, time.Hour), false}, {3 * s, beaten(0, time.Hour), false}, {s, beaten(0, time.Hour), true}},
		"silent":                   append(silent, check{s / 5, beaten(0, 8*s), true}),
		"the clock was set on":     {{0, beaten(0, 0), false}, {3 * s, beaten(0, time.Hour), false}, {3 * s, beaten(0, time.Hour), false}, {s, beaten(1, 0), false}},
		"it was set back":          append(long, check{s, beaten(0, -time.Hour), true}),
		"follower was stopped":     {{0, beaten(0, 0), false}, {time.Hour, beaten(0, 10*s), false}, {3 * s, beaten(0, 13*s), false}},
		"and the leader hangs too": {{0, beaten(0, 0), false}, {time.Hour, beaten(0, time.Hour), false}, {3 * s, beaten(0, time.Hour), false}, {3 * s, beaten(0, time.Hour), false}, {s, beaten(0, time.Hour), true}},
		"another one meanwhile": {{0, beaten(0, time.Hour), false}, {3 * s, beaten(0, time.Hour), false}, {3 * s, beaten(0, time.Hour), false},
			{s, leader{replica: "r", backend: backend{pid: 2, start: at}, heartbeatAt: at, heartbeatAge: time.Hour}, false}},
	} {
		var w watch
		now := time.Minute
		for i, l := range checks {
			now += l.after
			if got := w.hung(now, l.leader); got != l.hung {
				t.Errorf("%s: check %d: hung is %v", name, i, got)
			}
		}
	}
}
