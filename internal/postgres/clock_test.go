package postgres_test

import (
	"slices"
	"testing"
	"time"

	"codehub/internal/postgres"
)

func TestClockWatchDetectsJumps(t *testing.T) {
	t.Parallel()
	type step struct{ db, here time.Duration } // since the previous reading
	const s, day = time.Second, 24 * time.Hour
	for name, c := range map[string]struct {
		steps []step
		set   bool // reported at the last step, and at none before
	}{
		"the first reading":                       {steps: []step{{day, 0}}},
		"the same time on both sides":             {steps: []step{{s, s}, {15 * s, 15 * s}, {day, day}}},
		"a slow response":                         {steps: []step{{s, s}, {15 * s, 35 * s}, {35 * s, 15 * s}}},
		"the database's clock is set a day ahead": {steps: []step{{s, s}, {day, s}}, set: true},
		"the database's clock is set a day back":  {steps: []step{{s, s}, {-day, s}}, set: true},
		"by 90 s":                                 {steps: []step{{s, s}, {91 * s, s}}, set: true},
		"the machine slept":                       {steps: []step{{s, s}, {8 * time.Hour, s}}, set: true},
		"set again and again, a little each time": {steps: []step{{s, s}, {20 * s, s}, {20 * s, s}}, set: true},
		"a clock that gains 0.1 %":                {steps: slices.Repeat([]step{{60*s + 60*time.Millisecond, 60 * s}}, 3*24*60)}, // read every minute
	} {
		var w postgres.ClockWatch
		db, here := soon(0), time.Now()
		for i, x := range c.steps {
			db, here = db.Add(x.db), here.Add(x.here)
			_, set := w.Note(postgres.Clock{Now: db, At: here})
			if want := c.set && i == len(c.steps)-1; set != want {
				t.Errorf("%s: step %d: set %v", name, i, set)
			}
		}
		if _, set := w.Note(postgres.Clock{Now: db.Add(s), At: here.Add(s)}); set {
			t.Errorf("%s: it was reported twice", name)
		}
	}
}

func TestClockConvertsProcessTimes(t *testing.T) {
	t.Parallel()
	at := time.Now()
	c := postgres.Clock{Now: at.Add(-90 * time.Second), At: at}
	if got := c.Of(at.Add(time.Minute)); !got.Equal(at.Add(-30 * time.Second)) {
		t.Errorf("by the database: %v", got)
	}
	if got := c.Local(c.Of(at.Add(time.Hour))); !got.Equal(at.Add(time.Hour)) {
		t.Errorf("and back: %v", got)
	}
	if !c.Of(time.Time{}).IsZero() || !c.Local(time.Time{}).IsZero() {
		t.Error("the zero time did not stay zero")
	}
}

// Restarted waits take effect at once: in Clock, in the next Candidates, and in the age of
// orphans.
func TestRestartWaitsTakesEffectAtOnce(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	c := postgres.NewController(postgres.NewSession(e.conn()))
	must(c.Candidates(t.Context()))(t)
	first := c.Clock()
	if since := time.Since(first.At); since < 0 || since > time.Minute || !first.WaitsSince.IsZero() || first.Now.IsZero() {
		t.Fatalf("%+v", first)
	}
	must(c.SaveOrphans(t.Context(), []postgres.Orphan{{Kind: "job", Name: "j"}}))(t)
	e.exec(`UPDATE orphans SET first_seen_at = now() - interval '1 day'`)
	if err := c.RestartWaits(t.Context()); err != nil {
		t.Fatal(err)
	}
	since := c.Clock().WaitsSince
	if since.Before(first.Now) || !since.Equal(query[time.Time](e, `SELECT restored_at FROM gc_state`)) {
		t.Errorf("since %v", since)
	}
	must(c.Candidates(t.Context()))(t)
	if again := c.Clock(); !again.WaitsSince.Equal(since) || again.Now.Before(since) {
		t.Errorf("read again: %+v", again)
	}
	if list := must(c.SaveOrphans(t.Context(), []postgres.Orphan{{Kind: "job", Name: "j"}}))(t); len(list) != 1 || list[0].Age > time.Hour {
		t.Errorf("orphans: %+v", list)
	}
}

// The clock is set back a day, and then ahead again while no server leads. The next leader
// sees the second change only if the last heartbeat is from between the two.
func TestRestartWaitsSendsHeartbeat(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	conn := e.conn()
	session := postgres.NewSession(conn)
	for name, restart := range map[string]func() error{
		"controller":         func() error { return postgres.NewController(session).RestartWaits(t.Context()) },
		"garbage collection": func() error { return postgres.NewCollector(session).RestartWaits(t.Context()) },
		"marks":              func() error { return postgres.NewMarks(session).RestartWaits(t.Context()) },
	} {
		e.exec(`DELETE FROM leader`)
		e.exec(`INSERT INTO leader (replica_id, pid, backend_start, beat_at) VALUES (gen_random_uuid(), $1, now(), now() + interval '1 day')`, conn.PgConn().PID())
		if err := restart(); err != nil {
			t.Fatal(err)
		}
		if !query[bool](e, `SELECT beat_at <= clock_timestamp() FROM leader`) {
			t.Errorf("%s: the heartbeat is from before the clock was set", name)
		}
		e.exec(`UPDATE leader SET pid = 0, beat_at = now() + interval '1 day'`) // another session leads
		if err := restart(); err != nil {
			t.Fatal(err)
		}
		if query[bool](e, `SELECT beat_at <= clock_timestamp() FROM leader`) {
			t.Errorf("%s: a session that does not lead sent a heartbeat", name)
		}
	}
}
