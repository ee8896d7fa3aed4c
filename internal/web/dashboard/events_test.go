package dashboard

import (
	"bufio"
	"context"
	"html"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"codehub/internal/bus"
	"codehub/internal/postgres"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

// sseEvent is one event of a stream.
type sseEvent struct{ name, data string }

// listener reads a stream as a browser does.
type listener struct {
	t      *testing.T
	events chan sseEvent
	stop   context.CancelFunc
}

func (b *browser) listen(query string, header ...string) *listener {
	t := b.w.t
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, b.w.HTTP.URL+"/dashboard/events"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := b.c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		t.Fatalf("stream: %d %s", resp.StatusCode, resp.Header.Get("Content-Type"))
	}
	l := &listener{t: t, events: make(chan sseEvent, 64), stop: stop}
	t.Cleanup(stop)
	go func() {
		defer resp.Body.Close()
		defer close(l.events)
		var ev sseEvent
		for s := bufio.NewScanner(resp.Body); s.Scan(); {
			switch line := s.Text(); {
			case line == "" && ev.name != "":
				l.events <- ev
				ev = sseEvent{}
			case strings.HasPrefix(line, "event: "):
				ev.name = strings.TrimPrefix(line, "event: ")
			case strings.HasPrefix(line, "data: "):
				ev.data += strings.TrimPrefix(line, "data: ") + "\n"
			}
		}
	}()
	return l
}

// until reads events until one contains all parts, and returns it.
func (l *listener) until(parts ...string) sseEvent {
	l.t.Helper()
	deadline := time.After(patience)
	var seen []string
next:
	for {
		select {
		case ev, ok := <-l.events:
			if !ok {
				l.t.Fatalf("the stream ended before %q; it had %q", parts, seen)
			}
			seen = append(seen, ev.name+": "+ev.data)
			for _, p := range parts {
				if !strings.Contains(ev.name+"\n"+ev.data, p) {
					continue next
				}
			}
			return ev
		case <-deadline:
			l.t.Fatalf("timed out waiting for %q; the stream had %q", parts, seen)
		}
	}
}

func TestListStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	l := b.listen("")
	l.until("update", `id="workspaces"`, "Create your first workspace")

	id := w.add("project <x>", standby)
	ev := l.until("project &lt;x&gt;", `data-state="stopped"`)
	contains(t, "a new workspace", ev.data, `hx-swap-oob="true"`)

	w.observe(id, func(ws *workspace.Workspace) {
		operating(standby, workspace.OpStarting)(ws)
		ws.Progress = &workspace.Progress{Step: "pulling", Done: 50, Total: 200}
	})
	ev = l.until(`id="ws-`+string(id)+`"`, `data-operation="STARTING"`, `value="25"`)
	lacks(t, "a change of one workspace", ev.data, `id="workspaces"`)

	w.observe(id, running)
	ev = l.until(`id="ws-`+string(id)+`"`, `data-state="`)
	w.want(id, "desired_state", "RUNNING")
	ev = l.until(`data-state="running"`, `id="announcer"`, "project &lt;x&gt;: Running")

	other := w.add("other", failed(workspace.ErrTimeout, "x"))
	l.until("The operation timed out")
	if _, err := w.DB.DeleteWorkspace(t.Context(), w.caller("admin"), other, false); err != nil {
		t.Fatal(err)
	}
	l.until(`id="workspaces"`, "Recently deleted")
	_ = ev
}

// The first stream does not send what the page was loaded with; a browser that reconnects gets
// everything.
func TestStreamStartsAtPageState(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add("other", failed(workspace.ErrTimeout, "x"))
	id := w.add("project", running)
	b := w.loggedIn()
	for _, path := range []string{"/", "/?q=project", "/workspaces/" + string(id)} {
		page := b.get(path).body
		address := html.UnescapeString(regexp.MustCompile(`sse-connect="/dashboard/events([^"]+)"`).FindStringSubmatch(page)[1])
		if !strings.Contains(address, "seen=") {
			t.Fatalf("%s: the address of the stream is %q", path, address)
		}
		l := b.listen(address)
		l.until("hello")
		w.observe(id, standby)
		// Running workspaces are read separately from the list, so their update may come first.
		ev := l.until("update", `data-phase="STANDBY"`)
		if strings.Contains(ev.data, `id="workspaces"`) {
			t.Errorf("%s: the update is %s", path, ev.data)
		}
		l.stop()
		w.observe(id, running)
		l = b.listen(address, "Last-Event-ID", "1")
		l.until("update", `data-phase="RUNNING"`)
		l.stop()
	}
}

func TestStreamShowsOnlyOwnWorkspaces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.person("other")
	id := w.add("secret-project", running)
	for _, query := range []string{"", "?workspace=" + string(id), "?wait=" + string(id)} {
		l := b.listen(query)
		w.observe(id, standby)
		w.observe(id, running)
		l.stop()
		for ev := range l.events {
			lacks(t, "the stream "+query, ev.data, "secret-project", string(id))
		}
	}
}

func TestDetailStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.add("project", standby)
	b := w.loggedIn()
	l := b.listen("?workspace=" + string(id))
	l.until(`id="panel"`, `data-state="stopped"`, `id="facts"`)
	w.observe(id, failed(workspace.ErrDataLost, "gone"))
	l.until(`id="panel"`, "The home folder is missing", "Start empty")
	w.observe(id, func(ws *workspace.Workspace) { standby(ws); ws.ErrorReason, ws.ErrorMessage = "", "" })
	b.htmx("/workspaces/"+string(id)+"/delete", nil)
	l.until(`id="panel"`, "Can be undeleted for another")
	w.observe(id, func(ws *workspace.Workspace) { ws.Phase = workspace.PhaseDeleted; ws.Home.State = workspace.HomeAbsent })
	l.until(`id="panel"`, "Workspace not found")
}

// The pages of a workspace that is handed over say so to its former owner.
func TestStreamsOfWorkspaceHandedOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.AddAccount("boss", "another password", true)
	w.person("ann")
	id := w.add("project", standby)
	b := w.loggedIn()
	detail, wait := b.listen("?workspace="+string(id)), b.listen("?wait="+string(id))
	detail.until(`id="panel"`, `data-state="stopped"`)
	wait.until(`id="wait"`, "project")
	to := w.caller("ann").UserID
	if _, err := w.DB.HandOver(t.Context(), w.caller("boss"), id, postgres.HandOver{To: to, Message: "you are leaving"}); err != nil {
		t.Fatal(err)
	}
	detail.until(`id="panel"`, "asks you to hand over this workspace to ann", "you are leaving", `value="accept"`)
	if err := w.DB.AnswerHandOver(t.Context(), w.caller("admin"), id, true); err != nil {
		t.Fatal(err)
	}
	detail.until(`id="panel"`, "Access denied")
	wait.until(`data-kind="gone"`, "Access denied")
}

func TestWaitStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.add("project", standby)
	b := w.loggedIn()
	w.want(id, "desired_state", "RUNNING")
	l := b.listen("?wait=" + string(id))
	l.until(`id="wait"`, `data-kind="loading"`)
	w.observe(id, operating(standby, workspace.OpStarting))
	l.until(`data-kind="loading"`, "Cancel")
	w.observe(id, running)
	l.until(`data-kind="ready"`, "data-enter")
	w.observe(id, failed(workspace.ErrImagePullFailed, "pull access denied"))
	l.until(`data-kind="failed"`, "pull access denied", "Try again")
}

func TestStreamEndsWithTheSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	l := b.listen("")
	l.until("update")
	b.post("/logout", nil)
	l.until("logged-out")
	if _, open := <-l.events; open {
		t.Error("the stream continues after the session ended")
	}
	w.browser().listen("").until("logged-out")
}

// deafEvents never delivers an event.
// Without any event, a page is still updated.
func TestStreamWithoutEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.Events = bus.New(bus.Config{}) })
	id := w.add("project", operating(standby, workspace.OpStarting))
	l := w.loggedIn().listen("")
	l.until(`data-operation="STARTING"`)
	w.observe(id, standby)
	l.until(`data-state="stopped"`)
}

// tooManyEvents refuses every subscriber.
func TestStreamRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for range bus.MaxPerUser {
		if _, err := w.Hub.Subscribe(t.Context(), w.userID(auth.AdminUsername), func() {}); err != nil {
			t.Fatal(err)
		}
	}
	if a := w.loggedIn().get("/dashboard/events"); a.status != http.StatusServiceUnavailable {
		t.Errorf("status %d", a.status)
	}
}

// A stream refreshes a page at the time that its page says.
func TestStreamRefreshesWhenDue(t *testing.T) {
	d := New(Config{Now: time.Now, Log: slog.New(slog.DiscardHandler)})
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var refreshed []time.Duration
		read := func(context.Context) (livePage, error) {
			refreshed = append(refreshed, time.Since(began))
			s := livePage{notices: &notices{}}
			for _, at := range []time.Duration{50 * time.Second, 7*time.Second + time.Nanosecond, 7 * time.Second} {
				if at > time.Since(began) {
					s.due = began.Add(at)
				}
			}
			return s, nil
		}
		sub, err := bus.New(bus.Config{}).Subscribe(t.Context(), "ann", func() {})
		if err != nil {
			t.Fatal(err)
		}
		defer sub.Close()
		l := &live{d: d, set: d.pages["en"], stream: &stream{w: io.Discard}, read: read, sub: sub, awaited: true}
		for next := began; next.Before(began.Add(time.Minute)); {
			time.Sleep(time.Until(next))
			if next, err = l.step(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		want := []time.Duration{0, 7 * time.Second, 7*time.Second + gather, 37*time.Second + gather, 50 * time.Second}
		if !slices.Equal(refreshed, want) {
			t.Errorf("refreshed after %v, want %v", refreshed, want)
		}
	})
}
