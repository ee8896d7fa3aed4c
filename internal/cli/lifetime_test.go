package cli

import (
	"strings"
	"testing"
	"time"

	"codehub/api"
)

func TestAwakeUntil(t *testing.T) {
	t.Parallel()
	zone := time.FixedZone("KST", 9*3600)
	now := time.Date(2026, 12, 31, 18, 0, 0, 0, zone)
	for given, want := range map[string]string{
		"2h": "2026-12-31T20:00:00+09:00", "90m": "2026-12-31T19:30:00+09:00", "1d": "2027-01-01T18:00:00+09:00",
		"until 18:30": "2026-12-31T18:30:00+09:00", "until 18:00": "2027-01-01T18:00:00+09:00", "until 7:15": "2027-01-01T07:15:00+09:00",
		"until 2027-01-01 09:00": "2027-01-01T09:00:00+09:00", "until 2027-01-01T09:00": "2027-01-01T09:00:00+09:00",
		"until 2027-01-01T09:00:00Z": "2027-01-01T18:00:00+09:00", "off": "",
		"0": "!", "-2h": "!", "": "!", "until": "!", "until ": "!", "18:30": "!", "until 25:00": "!", "until tomorrow": "!", "off now": "!",
	} {
		got := "!"
		if at, err := awakeUntil(strings.Split(given, " "), now); err == nil {
			got = ""
			if at != nil {
				got = at.In(zone).Format(time.RFC3339)
			}
		}
		if got != want {
			t.Errorf("%q: %s, want %s", given, got, want)
		}
	}
}

func TestTTLFlag(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]int{"30m": 1800, "2d": 172800, "never": 0, "0": 0, "1s": 1, "default": -1, "": -2, "1.5s": -2, "-1h": -2, "soon": -2} {
		var v ttlFlag
		got := -2
		if err := v.UnmarshalText([]byte(given)); err == nil {
			got = -1
			if v.seconds != nil {
				got = *v.seconds
			}
			if c := v.change(); !c.Set {
				t.Errorf("%q changes nothing", given)
			}
		}
		if got != want {
			t.Errorf("%q: %d, want %d", given, got, want)
		}
	}
	if (ttlFlag{}).change().Set {
		t.Error("what was not given is set")
	}
}

func TestLifetime(t *testing.T) {
	t.Parallel()
	now := time.Now()
	in := func(d time.Duration) *time.Time { at := now.Add(d); return &at }
	next := "ARCHIVED"
	w := func(phase, desired string, stops *time.Time) api.Workspace {
		return api.Workspace{Phase: phase, DesiredState: desired, Operation: "NONE", StopsAt: stops}
	}
	queued, awake := w("RUNNING", "RUNNING", in(time.Hour)), w("RUNNING", "RUNNING", in(time.Hour))
	queued.NextDesiredState, awake.KeepAwakeUntil = &next, in(time.Hour)
	for _, c := range []struct {
		w    api.Workspace
		want string
	}{
		{w("RUNNING", "RUNNING", in(90*time.Minute)), "Stops in 1h30m (* without activity"},
		{w("RUNNING", "RUNNING", in(2*time.Hour-time.Second)), "Stops in 2h (* without activity"},
		{w("RUNNING", "RUNNING", in(90*time.Second-1)), "Stops in 1m (* without activity"},
		{w("RUNNING", "RUNNING", in(20*time.Second)), "Stops in 20s (* without activity"},
		{w("RUNNING", "RUNNING", in(0)), "Stops within a minute"},
		{w("RUNNING", "RUNNING", nil), "Stops never"},
		{awake, "Stops in 1h (*)"},
		{queued, " "},
		{w("RUNNING", "STANDBY", nil), " "},
		{w("STANDBY", "STANDBY", in(72*time.Hour)), "Archived in 3d (*)"},
		{w("STANDBY", "STANDBY", nil), " "},
		{w("ARCHIVED", "ARCHIVED", nil), " "},
	} {
		name, what := lifetime(c.w, now)
		got := name + " " + what
		begin, end, _ := strings.Cut(c.want, "*")
		if !strings.HasPrefix(got, begin) || !strings.HasSuffix(got, end) {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
