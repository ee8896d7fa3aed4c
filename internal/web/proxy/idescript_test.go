package proxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"codehub/internal/testing/harness/browser"
)

// ideScriptPage loads the script with timers, answers and WebSockets that the page controls.
// check returns what was asked and which timers run, in milliseconds.
const ideScriptPage = `<!doctype html><title>a</title><link rel="icon" href="data:,"><script>
	var wait = window.setTimeout.bind(window)
	var timers = [], asked = 0, sockets = 0, hidden = false
	var running = { open: true, started: '1', name: 'demo' }, answer = {}
	window.setTimeout = function (f, ms) { timers.push({ f: f, ms: ms }); return timers.length }
	window.clearTimeout = function (id) { if (timers[id - 1]) timers[id - 1] = null }
	window.fetch = function () { asked++; return Promise.resolve({ json: function () { return Promise.resolve(answer) } }) }
	window.WebSocket = class extends EventTarget { constructor () { super(); sockets++ } }
	Object.defineProperty(document, 'hidden', { get: function () { return hidden } })
	function fire () { var due = timers; timers = due.map(function () { return null }); due.forEach(function (t) { if (t) t.f() }) }
	function hide (now) { hidden = now; document.dispatchEvent(new Event('visibilitychange')) }
	function notice () { var n = document.getElementById('codehub-notice'); return n ? n.shadowRoot.getElementById('t').textContent : '' }
	async function check () {
		await new Promise(function (done) { wait(done, 0) })
		var was = asked
		asked = 0
		return 'asked ' + was + ', then ' + timers.filter(Boolean).map(function (t) { return t.ms }).join(' ')
	}
	// told is how often the script says what it was told, when it is asked after this many ms.
	function told (later) {
		var now = Date.now, name = 'codehub ' + location.origin + '/_codehub/', answers = 0
		var asks = new BroadcastChannel(name), end = new BroadcastChannel(name)
		Date.now = function () { return now() + later }
		end.onmessage = function (e) { if (e.data === 'state') end.postMessage('end') }
		asks.postMessage('state')
		return new Promise(function (done) {
			asks.onmessage = function (e) { if (e.data === 'end') done(answers); else if (e.data.open) answers++ }
		}).finally(function () { Date.now = now; asks.close(); end.close() })
	}
</script><script src="_codehub/ide.js"></script>`

// The script in the IDE's page asks when it loads, and every 2.5 s until the IDE is connected.
// It asks at once when a connection ends, then every second until the IDE is connected again,
// and every two seconds while a notice is shown. While its tab is hidden it asks less often,
// and at once when it is visible again. A connected tab does not ask, unless it was told
// nothing yet.
func TestIDEScriptAsks(t *testing.T) {
	t.Parallel()
	ctx := openScriptPage(t, ideScriptPage)
	told := func(what string, after time.Duration, want int) {
		t.Helper()
		got, err := chromedp.Run(ctx, chromedp.Evaluate[int](fmt.Sprintf(`told(%d)`, after.Milliseconds()), chromedp.EvalAwaitPromise))
		if err != nil || got != want {
			t.Errorf("%s: the extension gets %d answers, want %d; %v", what, got, want, err)
		}
	}
	told("before an answer", 0, 0)
	const stopped = `answer = { open: false, notice: { text: 'demo was stopped.', action: 'Start again', url: '/w/demo' } };`
	for i, step := range []struct{ what, do, want string }{
		{"the page loads, and gets no answer", ``, "asked 1, then 2500"},
		{"it is connected without an answer", `var first = new WebSocket('ws://x'); first.dispatchEvent(new Event('open'))`, "asked 0, then 2500"},
		{"it gets an answer", `answer = running; fire()`, "asked 1, then "},
		{"that connection ends", `first.dispatchEvent(new Event('close'))`, "asked 1, then 1000"},
		{"it is connected", `var s = new WebSocket('ws://x'); s.dispatchEvent(new Event('open')); fire()`, "asked 0, then "},
		{"it is hidden and shown", `hide(true); hide(false)`, "asked 0, then "},
		{"the connection ends", `s.dispatchEvent(new Event('close'))`, "asked 1, then 1000"},
		{"it cannot connect", `new WebSocket('ws://x').dispatchEvent(new Event('close'))`, "asked 1, then 1000"},
		{"it is hidden", `hide(true); fire()`, "asked 1, then 15000"},
		{"it is visible again", `hide(false)`, "asked 1, then 1000"},
		{"the workspace was stopped", stopped + `fire()`, "asked 1, then 2000"},
		{"it is still stopped", `fire()`, "asked 1, then 2000"},
		{"it is hidden with a notice", `hide(true); fire()`, "asked 1, then 15000"},
		{"it is visible with a notice", `hide(false)`, "asked 1, then 2000"},
	} {
		script := fmt.Sprintf(`%s; window.seen = ''; check().then(function (is) { seen = %d + ': ' + is + '; ' + notice() })`, step.do, i)
		if _, err := chromedp.Run(ctx, chromedp.Evaluate[any](script+`; null`)); err != nil {
			t.Fatalf("%s: %v", step.what, err)
		}
		var seen string
		for seen == "" {
			var err error
			if seen, err = chromedp.Run(ctx, chromedp.Evaluate[string](`seen`)); err != nil {
				t.Fatalf("%s: %v", step.what, err)
			}
		}
		want := fmt.Sprintf("%d: %s; ", i, step.want)
		if strings.Contains(step.want, "2000") || strings.HasPrefix(step.what, "it is hidden with") {
			want += "demo was stopped."
		}
		if seen != want {
			t.Errorf("%s: %s, want %s", step.what, seen, want)
		}
		if step.what == "it gets an answer" {
			told("at once", 0, 1)
			told("later", 10*time.Second, 0)
		}
	}
}

// openScriptPage opens a page that loads the script.
func openScriptPage(t *testing.T, page string) context.Context {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/_codehub/ide.js" {
			serveScript(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, page)
	}))
	t.Cleanup(server.Close)
	ctx, cancel := context.WithTimeout(browser.New(t, server.URL), 2*time.Minute)
	t.Cleanup(cancel)
	if _, err := chromedp.Run(ctx, chromedp.Navigate(server.URL+"/")); err != nil {
		t.Fatal(err)
	}
	return ctx
}

// ideInputPage has a field and, in a frame in a frame, another. did returns what was reported
// after a step.
const ideInputPage = `<!doctype html><title>a</title><link rel="icon" href="data:,"><script>
	var reports = [], later = 0, clock = performance.now.bind(performance)
	performance.now = function () { return later + clock() }
	window.fetch = function (url, o) { if (o.method === 'POST') reports.push(JSON.parse(o.body).used); return new Promise(function () {}) }
	window.WebSocket = class extends EventTarget { constructor (address) { super(); this.address = address } }
	function send (type, target, more) { target.dispatchEvent(new (type === 'keydown' ? target.ownerDocument.defaultView.KeyboardEvent : PointerEvent)(type, Object.assign({ bubbles: true }, more))) }
	function frame () { return document.querySelector('iframe') }
	function inner () { return frame().contentDocument.querySelector('iframe') }
	function field () { return inner().contentDocument.querySelector('input') }
	function did (step) { reports = []; step(); return reports.join() }
</script><script src="_codehub/ide.js"></script><input><iframe srcdoc="<iframe srcdoc='<input>'></iframe>"></iframe>`

// The script reports what a user does, each kind at once and then at most every 15 s, also in
// frames of the page. A pointer that does not move is nothing. VS Code's WebSockets, and no
// others, are marked.
func TestIDEScriptReports(t *testing.T) {
	t.Parallel()
	ctx := openScriptPage(t, ideInputPage)
	for _, step := range []struct{ what, do, want string }{
		{"the page moves below the pointer", `send('pointermove', document.body, { screenX: 1 }); later += 16000; reports = []; send('pointermove', document.body, { screenX: 1 })`, ""},
		{"the pointer moves", `send('pointermove', document.body, { screenX: 2 })`, "presence"},
		{"a click soon after", `send('pointerdown', document.body)`, ""},
		{"a key", `send('keydown', document.querySelector('input'), { key: 'x' })`, "typing"},
		{"more keys", `later += 14000; send('keydown', document.querySelector('input'), { key: 'y' })`, ""},
		{"a key later", `later += 2000; send('keydown', document.querySelector('input'), { key: 'z' })`, "typing"},
		{"only Shift, later", `later += 16000; send('keydown', document.querySelector('input'), { key: 'Shift' })`, "presence"},
		{"a key outside of a field", `later += 16000; send('keydown', document.body, { key: 'x' })`, "presence"},
		{"a key in a frame that the pointer has not entered", `later += 16000; send('keydown', field(), { key: 'x' })`, ""},
		{"the pointer enters the frame", `send('pointerover', frame(), { screenX: 3 })`, "presence"},
		{"and the frame in it", `send('pointerover', inner(), { screenX: 4 })`, ""},
		{"a key in it", `send('keydown', field(), { key: 'x' })`, "typing"},
		{"WebSockets", `reports = ['/?reconnectionToken=1', '/?a=1&reconnectionToken=1', '/'].map(function (a) { return new WebSocket(a).address })`,
			"/?reconnectionToken=1" + reportsUse + ",/?a=1&reconnectionToken=1" + reportsUse + ",/"},
	} {
		got, err := chromedp.Run(ctx, chromedp.Evaluate[string](`did(function () { `+step.do+` })`))
		if err != nil || got != step.want {
			t.Errorf("%s: %q, want %q; %v", step.what, got, step.want, err)
		}
	}
}
