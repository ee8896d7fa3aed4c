package dashboard

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"codehub/internal/testing/harness"
	"codehub/internal/workspace"

	"github.com/chromedp/chromedp"
)

// foreignPage is the script of a page on another origin that sends its visitor to the address
// in %q. It sets document.title to "done" when the browser has an answer of any kind.
type foreignPage struct {
	name   string
	method string
	script string
}

const ended = `.onload = e.onerror = () => { document.title = 'done' }; document.body.append(e)`

// Requests that a page sends without its visitor leaving it.
var embedding = []foreignPage{
	{"iframe", "GET", `const e = document.createElement('iframe'); e.src = %q; e` + ended},
	{"image", "GET", `const e = document.createElement('img'); e.src = %q; e` + ended},
	{"script", "GET", `const e = document.createElement('script'); e.src = %q; e` + ended},
	{"object", "GET", `const e = document.createElement('object'); e.data = %q; e` + ended},
	{"prefetch", "GET", `const e = document.createElement('link'); e.rel = 'prefetch'; e.href = %q; e` + ended},
	{"fetch", "GET", `fetch(%q, {credentials: 'include'}).then(r => r.text()).then(t => { document.title = 'read ' + t }, () => { document.title = 'done' })`},
	{"fetch without CORS", "GET", `fetch(%q, {credentials: 'include', mode: 'no-cors', headers: {Accept: 'text/html'}}).finally(() => { document.title = 'done' })`},
	{"fetch POST", "POST", `fetch(%q, {credentials: 'include', mode: 'no-cors', method: 'POST', body: 'x'}).finally(() => { document.title = 'done' })`},
	{"WebSocket", "GET", `const s = new WebSocket(%q.replace('http', 'ws')); s.onopen = () => { document.title = 'open' }; s.onerror = () => { document.title = 'done' }`},
	{"form into a frame", "GET", `const e = document.createElement('iframe'), a = %q; e.name = 'f'; let n = 0; e.onload = () => { if (n++) document.title = 'done' }; document.body.append(e);
		const f = document.createElement('form'); f.action = a; f.target = 'f'; document.body.append(f); setTimeout(() => { n = 1; f.submit() }, 200)`},
	{"POST form into a frame", "POST", `const e = document.createElement('iframe'), a = %q; e.name = 'f'; let n = 0; e.onload = () => { if (n++) document.title = 'done' }; document.body.append(e);
		const f = document.createElement('form'); f.method = 'POST'; f.action = a; f.target = 'f'; document.body.append(f); setTimeout(() => { n = 1; f.submit() }, 200)`},
}

// foreignSite serves pages with the script of their query, on another port, by the name of the
// same host and by that of another one.
func foreignSite(t *testing.T) (byAddress, byName string) {
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(rw, `<!doctype html><title>foreign</title><body><button id="go">Go</button><script>%s</script>`, r.URL.Query().Get("script"))
	}))
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return s.URL, "http://localhost:" + u.Port()
}

// under is the address of a workspace on codehub's own origin, onHost that on its own.
func (w *world) under(id workspace.ID) string  { return w.HTTP.URL + "/w/" + string(id) + "/" }
func (w *world) onHost(id workspace.ID) string { return w.layout.URL(workspace.Host{ID: id}) + "/" }

// byEachAddress runs f for each kind of a workspace's address, and for one of them in make test.
func byEachAddress(t *testing.T, one string, f func(t *testing.T, w *world, address func(workspace.ID) string)) {
	for name, c := range map[string]struct {
		world   func(t *testing.T) *world
		address func(*world, workspace.ID) string
	}{
		"path mode":                  {func(t *testing.T) *world { return newWorld(t) }, (*world).under},
		"own origin":                 {newOriginWorld, (*world).onHost},
		"own origin, codehub's link": {newOriginWorld, (*world).under},
	} {
		if name != one && !harness.Verifying() {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := c.world(t)
			f(t, w, func(id workspace.ID) string { return c.address(w, id) })
		})
	}
}

// A page of another origin starts nothing as long as its visitor stays on it.
func TestForeignPageWakesNothing(t *testing.T) {
	t.Parallel()
	byEachAddress(t, "path mode", testForeignPageWakesNothing)
}

func testForeignPageWakesNothing(t *testing.T, w *world, address func(workspace.ID) string) {
	id := w.add("project", standby)
	at := address(id)
	byAddress, byName := foreignSite(t)
	b := w.tab(byAddress)
	b.expected = "has been blocked by CORS policy"
	b.logIn()
	for _, origin := range []string{byAddress, byName} {
		for _, page := range embedding {
			before := w.requests(page.method, at)
			b.run(chromedp.Navigate(origin + "/?script=" + url.QueryEscape(fmt.Sprintf(page.script, at))))
			b.until(`document.title !== 'foreign' && document.title`)
			if title := value(b, chromedp.Evaluate[string]("document.title")); title != "done" {
				t.Errorf("%s from %s: %s", page.name, origin, title)
			}
			if w.requests(page.method, at) == before {
				t.Errorf("%s from %s: no request has arrived", page.name, origin)
			}
			if ws := w.row(id); ws.DesiredState != workspace.DesiredStandby || ws.NextDesired != "" || w.wakes(id) != 0 {
				t.Fatalf("%s from %s: desired %s, %d wakes", page.name, origin, ws.DesiredState, w.wakes(id))
			}
		}
	}
}

// A page of another origin that sends its visitor to a workspace starts at most a workspace of
// the visitor, within the limits, and receives no information about it.
func TestForeignPageSendsItsVisitor(t *testing.T) {
	t.Parallel()
	byEachAddress(t, "own origin", testForeignPageSendsItsVisitor)
}

// Two workspaces may run.
func testForeignPageSendsItsVisitor(t *testing.T, w *world, address func(workspace.ID) string) {
	bob := w.AddAccount("bob", "another password", false)
	others := w.AddWorkspace(bob, "others").ID
	w.observe(others, standby)
	w.Exec(`UPDATE workspaces SET desired_state = 'STANDBY' WHERE id = $1`, string(others))
	archive := w.add("packed", archived("k", 1))
	w.want(archive, "desired_state", "ARCHIVED")
	broken := w.add("broken", failed(workspace.ErrTimeout, "x"))
	w.want(broken, "desired_state", "STANDBY")
	origin, byName := foreignSite(t)
	if w.URL.Hostname() != "localhost" {
		origin = byName // of another site
	}
	b := w.tab(origin)
	b.logIn()
	send := func(how string, id workspace.ID) {
		t.Helper()
		b.run(chromedp.Navigate(origin + "/?script=" + url.QueryEscape(fmt.Sprintf(how, address(id)))))
	}
	unmoved := func(id workspace.ID, desired string) {
		t.Helper()
		if got := desiredOf(w, id); got != desired+"/" || w.wakes(id) != 0 {
			t.Errorf("%s: desired %s, %d wakes", id, got, w.wakes(id))
		}
	}
	const navigate = `location.href = %q`

	send(navigate, others)
	b.until(`document.querySelector('.message-status')?.textContent === '403'`)
	unmoved(others, "STANDBY")
	send(navigate, archive)
	b.shown(`#wait[data-kind=restore]`)
	unmoved(archive, "ARCHIVED")
	send(navigate, broken)
	b.shown(`#wait[data-kind=failed]`)
	unmoved(broken, "STANDBY")

	// POST navigations start nothing, either.
	mine := w.add("mine", standby)
	send(`const f = document.createElement('form'); f.method = 'POST'; f.action = %q; document.body.append(f); f.submit()`, mine)
	b.until(fmt.Sprintf(`location.href === %q && document.body.textContent.includes('"error"')`, address(mine)))
	unmoved(mine, "STANDBY")

	// A link that the visitor follows starts the visitor's workspace once.
	send(navigate, mine)
	b.shown(`#wait[data-kind=loading]`)
	if w.wakes(mine) != 1 || desiredOf(w, mine) != "RUNNING/" {
		t.Errorf("desired %s, %d wakes", desiredOf(w, mine), w.wakes(mine))
	}
	second := w.add("second", standby)
	send(`const a = %q; document.getElementById('go').onclick = () => { window.opened = open(a) }`, second)
	b.press("#go")
	b.until(`window.opened`)
	harness.EventuallyWithin(t, patience, "the new tab has started the workspace", func() bool { return w.wakes(second) == 1 })
	// The page has no handle on the new tab.
	b.until(`window.opened.closed`)

	third := w.add("third", standby)
	send(navigate, third)
	b.shown(`#wait[data-kind=limit]`)
	unmoved(third, "STANDBY")
}

// desiredOf returns the desired and the queued state.
func desiredOf(w *world, id workspace.ID) string {
	ws, err := w.DB.Workspace(w.t.Context(), workspace.System, id)
	if err != nil {
		w.t.Fatal(err)
	}
	return string(ws.DesiredState) + "/" + string(ws.NextDesired)
}
