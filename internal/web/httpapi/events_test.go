package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/bus"
	"codehub/internal/postgres"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/pgtest"
	"codehub/internal/workspace"

	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"
)

// events is an open stream.
type events struct {
	t     *testing.T
	lines chan string // closed at the stream's end
	end   context.CancelFunc
}

func (e *env) events(w with) *events {
	e.t.Helper()
	ctx, cancel := context.WithCancel(e.t.Context())
	r, err := http.NewRequestWithContext(ctx, "GET", e.HTTP.URL+Prefix+"/events", nil)
	if err != nil {
		e.t.Fatal(err)
	}
	w(r)
	resp, err := e.HTTP.Client().Do(r)
	if err != nil {
		e.t.Fatal(err)
	}
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" || resp.Header.Get("Cache-Control") != "no-store" {
		e.t.Fatalf("%d %s", resp.StatusCode, resp.Header)
	}
	s := &events{t: e.t, lines: make(chan string), end: cancel}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(s.lines)
		defer resp.Body.Close()
		sc := bufio.NewScanner(resp.Body)
		sc.Buffer(nil, 1<<20)
		for sc.Scan() {
			select {
			case s.lines <- sc.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	e.t.Cleanup(func() { cancel(); <-done })
	return s
}

// next returns the next event, as "name NAME PHASE", "deleted ID", "heartbeat", or
// "" at the stream's end.
func (s *events) next() string {
	s.t.Helper()
	var name, data string
	for {
		select {
		case line, ok := <-s.lines:
			switch {
			case !ok:
				return ""
			case strings.HasPrefix(line, "event: "):
				name = line[len("event: "):]
			case strings.HasPrefix(line, "data: "):
				data = line[len("data: "):]
			case line == "" && name == api.EventUpdated:
				var w api.Workspace
				if err := json.Unmarshal([]byte(data), &w); err != nil {
					s.t.Fatal(err)
				}
				return "updated " + w.Name + " " + w.Phase
			case line == "" && name == api.EventDeleted:
				var d api.Deleted
				if err := json.Unmarshal([]byte(data), &d); err != nil {
					s.t.Fatal(err)
				}
				return "deleted " + d.ID
			case line == "":
				return name
			}
		case <-time.After(limit):
			s.t.Fatal("no event")
		}
	}
}

// until reads up to the wanted event and returns the events before it. Repeated events
// are allowed: a gap may reload everything at any time.
func (s *events) until(want string) (before []string) {
	s.t.Helper()
	for {
		ev := s.next()
		if ev == want {
			return before
		}
		if ev == "" {
			s.t.Fatalf("the stream ended after %q, before %q", before, want)
		}
		before = append(before, ev)
	}
}

func TestEvents(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	a := e.workspace(e.ann, "a")
	e.workspace(e.ann, "b")
	gone := e.workspace(e.ann, "gone")
	e.Change(`UPDATE workspaces SET home_ctx = '{"state":"live"}', conditions = '{"storage.volume_ready":{"status":"True"}}' WHERE name = 'gone'`)
	if _, err := e.DB.DeleteWorkspace(t.Context(), e.ann.Caller, gone.ID, false); err != nil {
		t.Fatal(err)
	}
	e.workspace(e.eve, "hers")

	mine, hers := e.events(as(e.ann)), e.events(as(e.eve))
	first := mine.until("heartbeat")
	slices.Sort(first)
	if want := []string{"deleted " + string(gone.ID), "updated a PENDING", "updated b PENDING"}; !slices.Equal(slices.Compact(first), want) {
		t.Errorf("at first: %v, want %v", first, want)
	}
	if first := hers.until("heartbeat"); !slices.Equal(slices.Compact(first), []string{"updated hers PENDING"}) {
		t.Errorf("hers at first: %v", first)
	}
	path := "/workspaces/" + string(a.ID)
	e.want(200, "", "PATCH", path, `{"name":"a2"}`, as(e.ann))
	mine.until("updated a2 PENDING")
	e.Change(`UPDATE workspaces SET phase = 'STANDBY' WHERE id = $1`, a.ID)
	mine.until("updated a2 STANDBY")
	e.want(201, "", "POST", "/workspaces", `{"name":"c"}`, as(e.ann))
	mine.until("updated c PENDING")
	e.Change(`UPDATE workspaces SET home_ctx = '{"state":"live"}', conditions = '{"storage.volume_ready":{"status":"True"}}' WHERE id = $1`, a.ID)
	e.want(202, "", "DELETE", path, "", as(e.ann))
	mine.until("deleted " + string(a.ID))
	e.want(200, "", "POST", path+"/undelete", "", as(e.ann))
	mine.until("updated a2 STANDBY")
}

func TestHeartbeat(t *testing.T) {
	t.Parallel()
	e := newEnv(t, func(c *Config) { c.Heartbeat = 10 * time.Millisecond })
	s := e.events(as(e.ann))
	for range 5 {
		if got := s.until("heartbeat"); len(got) != 0 {
			t.Errorf("between heartbeats: %v", got)
		}
	}
}

// A stream ends with its session.
func TestEventsEndWithSession(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(e *env){
		"logout":              func(e *env) { e.want(204, "", "POST", "/logout", "", as(e.ann)) },
		"the database's side": func(e *env) { e.Change(`DELETE FROM sessions WHERE user_id = $1`, e.ann.User.ID) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			e.workspace(e.ann, "a")
			mine, hers := e.events(as(e.ann)), e.events(as(e.eve))
			mine.until("heartbeat")
			hers.until("heartbeat")
			end(e)
			for ev := mine.next(); ev != ""; ev = mine.next() {
				if ev != "heartbeat" && ev != "updated a PENDING" {
					t.Errorf("after the end: %q", ev)
				}
			}
			e.workspace(e.eve, "still there")
			hers.until("updated still there PENDING")
		})
	}
}

func TestEventsStreamsAreBounded(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for range bus.MaxPerUser {
		e.events(as(e.ann)).until("heartbeat")
	}
	e.want(429, "too_many_streams", "GET", "/events", "", as(e.ann))
	e.events(as(e.eve)).until("heartbeat")
}

// Abandoned streams leave no subscribers and goroutines.
func TestEventsAbandonedStreamsAreReleased(t *testing.T) {
	pgtest.New(t, postgres.Migrate) // the process's database server runs from here on
	ignore := goleak.IgnoreCurrent()
	t.Run("streams", func(t *testing.T) {
		e := newEnv(t, func(c *Config) { c.Heartbeat = 20 * time.Millisecond })
		e.workspace(e.ann, "a")
		var open []*events
		for range 30 {
			s := e.events(as(e.ann))
			s.until("heartbeat")
			open = append(open, s)
		}
		for _, s := range open {
			s.end()
		}
		for _, s := range open {
			for range s.lines {
			}
		}
		e.HTTP.Client().CloseIdleConnections()
	})
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	harness.Eventually(t, "no goroutine is left", func() bool { return goleak.Find(ignore) == nil })
}

// A reader that reads nothing is disconnected, and does not delay others.
func TestEventsSlowReaderIsDisconnected(t *testing.T) {
	t.Parallel()
	e := newEnv(t, func(c *Config) { c.WriteWithin = 5 * time.Second }) // long enough for the quick reader on a busy machine
	w := e.workspace(e.ann, "a")
	conn, err := net.Dial("tcp", e.HTTP.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "GET %s/events HTTP/1.1\r\nHost: %s\r\nCookie: %s=%s\r\n\r\n", Prefix, e.HTTP.Listener.Addr(), e.ann.cookie.Name, e.ann.ID)
	quick := e.events(as(e.ann))
	quick.until("heartbeat")
	open := func() float64 {
		var d dto.Metric
		if err := e.m.open.Write(&d); err != nil {
			t.Fatal(err)
		}
		return d.Gauge.GetValue()
	}
	harness.EventuallyWithin(t, limit, "both streams are open", func() bool { return open() == 2 })
	memo := strings.Repeat("x", workspace.MaxMemo-10)
	for i, end := 0, time.Now().Add(harness.Patience); open() > 1; i++ {
		if time.Now().After(end) {
			t.Fatal("the slow reader is still there")
		}
		memo, name := fmt.Sprint(i, memo), fmt.Sprint("a", i)
		if _, err := e.DB.PatchWorkspace(t.Context(), e.ann.Caller, w.ID, postgres.Patch{Edit: workspace.Edit{Memo: &memo, Name: &name}}); err != nil {
			t.Fatal(err)
		}
		quick.until("updated " + name + " PENDING")
	}
}

// Repeated events, and workspaces that were read again and have not changed, are not
// sent.
func TestEventsSendNoDuplicates(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	a := e.workspace(e.ann, "a")
	s := e.events(as(e.ann))
	s.until("heartbeat")
	for range 20 {
		e.Hub.Notify(a.OwnerID, a.ID)
		e.Hub.Gap()
	}
	e.Change(`UPDATE workspaces SET phase = 'STANDBY' WHERE id = $1`, a.ID)
	for _, ev := range s.until("updated a STANDBY") {
		if ev != "heartbeat" {
			t.Errorf("sent again: %s", ev)
		}
	}
	e.Change(`UPDATE workspaces SET deleted_at = now(), phase = 'DELETED' WHERE id = $1`, a.ID)
	s.until("deleted " + string(a.ID))
	for range 20 {
		e.Hub.Notify(a.OwnerID, a.ID)
		e.Hub.Gap()
	}
	e.workspace(e.ann, "b")
	for _, ev := range s.until("updated b PENDING") {
		if ev != "heartbeat" {
			t.Errorf("sent again: %s", ev)
		}
	}
}

// A reader that reconnects receives the deletions that it missed, also of workspaces
// that no longer exist in the database, and none of another user.
func TestEventsAfterReconnectSendDeletions(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	a, b, c := e.workspace(e.ann, "a"), e.workspace(e.ann, "b"), e.workspace(e.ann, "c")
	hers := e.workspace(e.eve, "hers")
	first := e.events(as(e.ann))
	first.until("heartbeat")
	first.end()
	e.Change(`UPDATE workspaces SET deleted_at = now(), phase = 'DELETED' WHERE id = $1`, a.ID)
	e.Change(`UPDATE workspaces SET deleted_at = now(), phase = 'DELETED' WHERE id = $1`, hers.ID)
	e.Change(`UPDATE workspaces SET deleted_at = now() - interval '9 days', phase = 'DELETING', home_ctx = '{"state":"deleting"}' WHERE id = $1`, b.ID)
	e.Change(`UPDATE workspaces SET deleted_at = now() - interval '9 days', phase = 'DELETED' WHERE id = $1`, c.ID)
	got := map[string]bool{}
	for _, ev := range e.events(as(e.ann)).until("heartbeat") {
		got[ev] = true
	}
	if len(got) != 2 || !got["deleted "+string(a.ID)] || !got["deleted "+string(b.ID)] {
		t.Errorf("on coming back: %v", got)
	}
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

// After a gap of the listener all caches are dropped: sessions,
// what subscribers were sent, and routes. The controller then observes all workspaces.
func TestGapReloadsEverything(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	a, b := e.workspace(e.ann, "a"), e.workspace(e.ann, "b")
	s := e.events(as(e.ann))
	s.until("heartbeat")
	e.Change(`UPDATE workspaces SET phase = 'STANDBY' WHERE id = $1`, a.ID)
	s.until("updated a STANDBY") // it listens
	e.want(200, "", "GET", "/session", "", as(e.eve))
	gone := make(chan struct{}, 100)
	defer e.Hub.Observe(bus.Observer{Gap: func() { gone <- struct{}{} }})()
	for len(e.Hub.Wakes()) > 0 {
		<-e.Hub.Wakes()
	}
	e.unheard(
		`UPDATE workspaces SET phase = 'PENDING', name = 'renamed' WHERE id = '`+string(a.ID)+`'`,
		`UPDATE workspaces SET deleted_at = now(), phase = 'DELETED' WHERE id = '`+string(b.ID)+`'`,
		`DELETE FROM sessions WHERE user_id = '`+e.eve.Caller.UserID+`'`)
	e.want(200, "", "GET", "/session", "", as(e.eve)) // remembered
	e.Change(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'codehub-listener'`)
	s.until("updated renamed PENDING")
	s.until("deleted " + string(b.ID))
	e.want(401, "unauthenticated", "GET", "/session", "", as(e.eve))
	<-gone
	select {
	case <-e.Hub.Wakes():
	case <-time.After(limit):
		t.Error("the controller was not woken")
	}
	e.Change(`UPDATE workspaces SET phase = 'STANDBY' WHERE id = $1`, a.ID) // it listens again
	s.until("updated renamed STANDBY")
}
