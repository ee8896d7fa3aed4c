package httpapi

import (
	"log/slog"
	"sync"
	"testing"
	"time"

	"codehub/internal/bus"
	"codehub/internal/harness/web"
	"codehub/internal/pgtest"
)

// replica is another server on the same database, with listen as its listener.
func (e *env) replica(listen string) *env {
	e.t.Helper()
	log := slog.New(slog.NewTextHandler(e.log, nil))
	r := &env{t: e.t, Server: web.New(e.t, e.Database, log, web.ListenAt(listen)), log: e.log, logs: e.logs, m: NewMetrics(), ann: e.ann, eve: e.eve}
	r.cfg = e.cfg
	r.cfg.Auth, r.cfg.Hub = r.Auth, r.Hub
	r.Serve(Outer(log, r.m, r.Streams, New(r.cfg)))
	return r
}

// unheard runs statements without notifications of the database.
func (e *env) unheard(statements ...string) {
	e.t.Helper()
	script := `BEGIN; ALTER TABLE workspaces DISABLE TRIGGER USER; ALTER TABLE sessions DISABLE TRIGGER USER;`
	for _, s := range statements {
		script += s + ";"
	}
	script += `ALTER TABLE workspaces ENABLE TRIGGER USER; ALTER TABLE sessions ENABLE TRIGGER USER; COMMIT`
	e.Exec(script)
}

// After each kind of gap of the listener all caches are dropped: sessions,
// what subscribers were sent, and routes. The controller then observes all workspaces.
func TestGapReloadsEverything(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(e *env, silence func()){
		"silence": func(_ *env, silence func()) { silence() }, // found by the listener's pings, within 10 s
		"terminated": func(e *env, _ func()) {
			e.Change(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'codehub-listener'`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			through, silence := pgtest.Swallowing(t, e.DSN)
			r := e.replica(through)
			a, b := e.workspace(e.ann, "a"), e.workspace(e.ann, "b")
			s := r.events(as(e.ann))
			s.until("heartbeat")
			e.Change(`UPDATE workspaces SET phase = 'STANDBY' WHERE id = $1`, a.ID)
			s.until("updated a STANDBY") // it listens
			r.want(200, "", "GET", "/session", "", as(e.eve))
			gone := make(chan struct{}, 100)
			defer r.Hub.Observe(bus.Observer{Gap: func() { gone <- struct{}{} }})()
			for len(r.Hub.Wakes()) > 0 {
				<-r.Hub.Wakes()
			}
			e.unheard(
				`UPDATE workspaces SET phase = 'PENDING', name = 'renamed' WHERE id = '`+string(a.ID)+`'`,
				`UPDATE workspaces SET deleted_at = now(), phase = 'DELETED' WHERE id = '`+string(b.ID)+`'`,
				`DELETE FROM sessions WHERE user_id = '`+e.eve.Caller.UserID+`'`)
			r.want(200, "", "GET", "/session", "", as(e.eve)) // remembered
			harm(e, silence)
			s.until("updated renamed PENDING")
			s.until("deleted " + string(b.ID))
			r.want(401, "unauthenticated", "GET", "/session", "", as(e.eve))
			<-gone
			select {
			case <-r.Hub.Wakes():
			case <-time.After(limit):
				t.Error("the controller was not woken")
			}
			e.Change(`UPDATE workspaces SET phase = 'STANDBY' WHERE id = $1`, a.ID) // it listens again
			s.until("updated renamed STANDBY")
		})
	}
}

// Each server receives every event twice, from the database and from Redis, and sends it
// to its readers once.
func TestEventsFromRedisAreSentOnce(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	r := e.replica(e.DSN)
	a := e.workspace(e.ann, "a")
	s := r.events(as(e.ann))
	s.until("heartbeat")
	for _, phase := range []string{"STANDBY", "PENDING", "STANDBY", "PENDING"} {
		e.Change(`UPDATE workspaces SET phase = $2 WHERE id = $1`, a.ID, phase)
		r.Hub.Echo(a.OwnerID, a.ID)
		for _, ev := range s.until("updated a " + phase) {
			if ev != "heartbeat" {
				t.Errorf("before it is %s: %s", phase, ev)
			}
		}
		r.Hub.Echo(a.OwnerID, a.ID)
	}
	// Redis alone is enough.
	e.unheard(`UPDATE workspaces SET name = 'renamed' WHERE id = '` + string(a.ID) + `'`)
	told := make(chan struct{})
	var echo sync.WaitGroup
	echo.Go(func() {
		for {
			select {
			case <-told:
				return
			case <-time.After(10 * time.Millisecond):
				r.Hub.Echo(a.OwnerID, a.ID) // an echo of an earlier change
			}
		}
	})
	s.until("updated renamed PENDING")
	close(told)
	echo.Wait()
}
