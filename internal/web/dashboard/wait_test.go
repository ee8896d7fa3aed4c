package dashboard

import (
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"codehub/internal/testing/harness/fixture"
	"codehub/internal/workspace"

	"github.com/chromedp/chromedp"
)

// starting is a workspace whose container exists and whose IDE does not respond yet.
func starting(ws *workspace.Workspace) {
	operating(standby, workspace.OpStarting)(ws)
	ws.Conditions = ws.Conditions.With(workspace.ContainerReady, false, workspace.ReasonContainerStarting, "", time.Now().UTC())
}

// refreshOf returns the pause and the address of a page's refresh.
func refreshOf(t *testing.T, a answer) (after int, address string, ok bool) {
	t.Helper()
	m := regexp.MustCompile(`<noscript><meta http-equiv="refresh" content="(\d+);url=([^"]*)"></noscript>`).FindStringSubmatch(a.body)
	if m == nil {
		return 0, "", false
	}
	after, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return after, strings.ReplaceAll(m[2], "&amp;", "&"), true
}

// wakes returns how often the workspace was woken, by the audit log.
func (w *world) wakes(id workspace.ID) int {
	w.t.Helper()
	return fixture.Query[int](w, `SELECT count(*) FROM audit_log WHERE action = 'workspace.wake' AND target = $1`, string(id))
}

// Without scripts the page refreshes itself with growing pauses, a limited number of times, and
// does not start the workspace.
func TestWaitingWithoutScripts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.add("project", standby)
	b := w.loggedIn()
	entry := "/w/" + string(id) + "/a%20b?folder=/x&y=1"
	a := b.get(entry, "Accept", "text/html")
	contains(t, "the proxy's page", a.body, `data-kind="loading"`, "checks again automatically", "Check now")
	used := w.row(id).LastAccessAt
	stream := b.listen("?wait=" + string(id))
	stream.until("update", `data-kind="loading"`)
	sum, last, pages := 0, 0, 0
	for {
		after, address, ok := refreshOf(t, a)
		if !ok {
			break
		}
		if after < last || after < 2 || after > 15 || !strings.HasPrefix(address, "/workspaces/"+string(id)+"/wait?") {
			t.Fatalf("page %d refreshes after %d s (before: %d s) to %s", pages, after, last, address)
		}
		sum, last = sum+after, after
		if pages++; pages > 100 {
			t.Fatal("the page refreshes itself without end")
		}
		if a = b.get(address); a.status != http.StatusOK {
			t.Fatalf("%s: status %d", address, a.status)
		}
	}
	if pages < 30 || sum < 5*60 || sum > 30*60 {
		t.Errorf("%d refreshes in %d s", pages, sum)
	}
	contains(t, "the last page", a.body, `data-kind="loading"`, "no longer checks", "Check now", `href="/workspaces/`+string(id)+`/wait?path=`)
	if n := w.wakes(id); n != 1 {
		t.Errorf("woken %d times, want 1", n)
	}
	if now := w.row(id).LastAccessAt; used == nil || now == nil || !now.Equal(*used) {
		t.Errorf("last access %v, before the refreshes %v: a page that waits keeps the workspace awake", now, used)
	}

	// Stopped in another tab: it stays stopped.
	_, address, _ := refreshOf(t, b.get(entry, "Accept", "text/html"))
	w.want(id, "desired_state", "STANDBY")
	contains(t, "after a stop", b.get(address).body, `data-kind="stopped"`, `name="path" value="/w/`+string(id)+`/a%20b?folder=/x&amp;y=1"`)
	if ws := w.row(id); ws.DesiredState != workspace.DesiredStandby {
		t.Errorf("desired %s after a refresh", ws.DesiredState)
	}
	a = b.post("/workspaces/"+string(id)+"/start", url.Values{"from": {"wait"}, "path": {entry}})
	if a.header.Get("Location") != entry {
		t.Errorf("start leads to %q", a.header.Get("Location"))
	}

	// It enters, a limited number of times.
	w.observe(id, running)
	for range maxEntries {
		if a = b.get(address); a.status != http.StatusSeeOther || a.header.Get("Location") != entry {
			t.Fatalf("ready: status %d, location %q", a.status, a.header.Get("Location"))
		}
	}
	a = b.get(address)
	if _, _, again := refreshOf(t, a); a.status != http.StatusOK || again {
		t.Errorf("entered too often: status %d, refreshes %v", a.status, again)
	}
	contains(t, "entered too often", a.body, `data-kind="ready"`, "did not open", `href="/w/`+string(id)+`/a%20b?folder=/x&amp;y=1"`)
}

// The page leads to its own workspace only, and shows no workspace of another user.
func TestWaitPageIsConfined(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, other := w.add("project", standby), w.add("other", standby)
	w.want(id, "desired_state", "RUNNING")
	w.observe(id, running)
	for _, path := range []string{"", "//evil.example/", "https://evil.example/", "/\\evil.example", "/login", "/w/" + string(other) + "/", "/w/" + string(id), "/w/" + string(id) + "/../x\t"} {
		a := w.loggedIn().get("/workspaces/" + string(id) + "/wait?path=" + url.QueryEscape(path))
		if a.status != http.StatusSeeOther || a.header.Get("Location") != "/w/"+string(id)+"/" {
			t.Errorf("path %q leads to %q (%d)", path, a.header.Get("Location"), a.status)
		}
	}
	port := "/_codehub/enter?nonce=x&port=3000&workspace="
	if got := entryPath(id, port+string(id)); got != port+string(id) {
		t.Errorf("the entry of a port leads to %q", got)
	}
	if got := entryPath(id, port+string(other)); got != "/w/"+string(id)+"/" {
		t.Errorf("the entry of another workspace's port leads to %q", got)
	}
	if a := w.person("bob").get("/workspaces/" + string(id) + "/wait"); a.status != http.StatusForbidden || strings.Contains(a.body, "project") {
		t.Errorf("another user: status %d", a.status)
	}
	if a := w.loggedIn().get("/workspaces/0198c0de-0000-7000-8000-000000000001/wait"); a.status != http.StatusNotFound {
		t.Errorf("unknown: status %d", a.status)
	}
	if a := w.browser().get("/workspaces/" + string(id) + "/wait"); a.status != http.StatusSeeOther || !strings.HasPrefix(a.header.Get("Location"), "/login?") {
		t.Errorf("no login: status %d, location %q", a.status, a.header.Get("Location"))
	}
}

// The page of the limit refreshes without scripts, too, and starts the workspace when the limit
// allows.
func TestLimitWithoutScripts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, two := w.add("one", running), w.add("two", running)
	w.want(one, "desired_state", "RUNNING")
	w.want(two, "desired_state", "RUNNING")
	id := w.add("three", standby)
	b := w.loggedIn()
	a := b.get("/w/"+string(id)+"/", "Accept", "text/html")
	contains(t, "the proxy's page", a.body, `data-kind="limit"`)
	for range 3 {
		_, address, ok := refreshOf(t, a)
		if !ok {
			t.Fatal("the page does not refresh itself")
		}
		a = b.get(address)
		contains(t, address, a.body, `data-kind="limit"`)
	}
	_, address, _ := refreshOf(t, a)
	w.want(one, "desired_state", "STANDBY")
	w.observe(one, standby)
	if a = b.get(address); a.header.Get("Location") != "/w/"+string(id)+"/" {
		t.Fatalf("with a free slot: status %d, location %q", a.status, a.header.Get("Location"))
	}
	contains(t, "entered", b.get(a.header.Get("Location"), "Accept", "text/html").body, `data-kind="loading"`)
	if n := w.wakes(id); n != 1 {
		t.Errorf("woken %d times, want 1", n)
	}
}

// The page of a queued start that waits for the limit does not start the workspace after the
// queued start was cancelled, when the limit allows it.
func TestLimitPageDoesNotUndoCancel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, two := w.add("one", running), w.add("two", running)
	w.want(one, "desired_state", "RUNNING")
	w.want(two, "desired_state", "RUNNING")
	id := w.add("three", standby)
	w.want(id, "next_desired_state", "RUNNING")
	b := w.loggedIn()
	a := b.get("/w/"+string(id)+"/", "Accept", "text/html")
	contains(t, "the proxy's page", a.body, `data-kind="limit"`)
	lacks(t, "the proxy's page", a.body, "limit=1")
	_, address, ok := refreshOf(t, a)
	if !ok {
		t.Fatal("the page does not refresh itself")
	}
	// The page of a start that was refused, and then queued elsewhere.
	refused := b.listen("?wait=" + string(id) + "&limit=1")
	refused.until(`data-kind="limit"`)
	w.want(id, "next_desired_state", nil)
	w.want(one, "desired_state", "STANDBY")
	w.observe(one, standby)
	a = b.get(address)
	contains(t, "cancelled", a.body, `data-kind="stopped"`)
	refused.until(`data-kind="stopped"`)
	if n := w.wakes(id); n != 0 {
		t.Errorf("woken %d times", n)
	}
}

// The page shows the steps of the operation and the container's output as it comes.
func TestLogOfStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.add("project", standby)
	w.want(id, "desired_state", "RUNNING")
	began := time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)
	progress := func(steps ...string) *workspace.Progress {
		p := &workspace.Progress{Step: steps[len(steps)-1]}
		for i, s := range steps {
			p.Steps = append(p.Steps, workspace.ProgressStep{Step: s, BeganAt: began.Add(time.Duration(i) * 12 * time.Second), Done: int64(len(steps)-1-i) * 206 << 20})
		}
		return p
	}
	w.observe(id, func(ws *workspace.Workspace) {
		operating(standby, workspace.OpStarting)(ws)
		ws.Progress = progress("pulling")
	})
	b := w.tab()
	b.logIn()
	b.visit("/w/" + string(id) + "/")
	b.shown(`#wait[data-kind=loading] progress`)
	if value(b, chromedp.Evaluate[bool](`!document.getElementById('wait-log').hidden || !!document.querySelector('.steps')`)) {
		t.Error("an empty log is shown")
	}
	w.logs.print("one \x1b[32mgreen\x1b[0m <b>line</b>\n")
	w.observe(id, func(ws *workspace.Workspace) {
		starting(ws)
		ws.Progress = progress("pulling", "creating", "waiting")
	})
	b.until(`document.querySelector('.steps')?.innerText.replace(/\s+/g, ' ').trim() === 'Image downloaded 412 MiB · 12 s Container created 206 MiB · 12 s'`)
	b.until(`document.querySelector('#wait-log pre').textContent === 'one green <b>line</b>\n'`)
	b.shown(`#wait-log pre`)
	w.logs.print("two\nthr")
	b.until(`document.querySelector('#wait-log pre').textContent === 'one green <b>line</b>\ntwo\n'`)
	w.logs.print("ee\n")
	b.until(`document.querySelector('#wait-log pre').textContent.endsWith('two\nthree\n')`)

	// The container ended, and another one was started.
	w.logs.end()
	w.logs.print("again\n")
	b.until(`document.querySelector('#wait-log pre').textContent === 'again\n'`)

	// After a failure the log stays.
	w.observe(id, failed(workspace.ErrRetryExceeded, "it exited"))
	b.shown(`#wait[data-kind=failed]`)
	b.shown(`#wait-log pre`)
}

// Only the owner's pages get the log, and one page gets a bounded amount of it.
func TestLogOfStartIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.add("project", starting)
	w.want(id, "desired_state", "RUNNING")
	line := strings.Repeat("x", 1023) + "\n"
	w.logs.print("secret\n" + strings.Repeat(line, 3*followedBytes/len(line)))
	bob := w.person("bob").listen("?wait=" + string(id))
	bob.until("Access denied")
	total := 0
	for l := w.loggedIn().listen("?wait=" + string(id)); ; {
		within := patience
		if total >= followedBytes/2 {
			within = time.Second
		}
		ev, ok := l.next(within)
		if !ok {
			break
		}
		if ev.name == "log" {
			total += len(ev.data)
		}
	}
	if total < followedBytes/2 || total > followedBytes+1 {
		t.Errorf("the page got %d bytes", total)
	}
	for {
		ev, ok := bob.next(10 * time.Millisecond)
		if !ok {
			break
		}
		if strings.HasPrefix(ev.name, "log") || strings.Contains(ev.data, "secret") {
			t.Errorf("another user's stream has %q", ev.name)
		}
	}
}

// next returns the next event, false if there is none within the time.
func (l *listener) next(within time.Duration) (sseEvent, bool) {
	select {
	case ev, ok := <-l.events:
		return ev, ok
	case <-time.After(within):
		return sseEvent{}, false
	}
}
