package e2e

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"codehub/api"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// A page in a workspace can do nothing on the dashboard, with the API, with a port or with
// another workspace as the user who has it open: neither a page on the workspace's own host
// nor one on a public port.
func TestHostilePage(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	inEach(t, originModes, testHostilePage)
}

// A page of a workspace cannot take the ticket of its visitor, who is led to one for a nonce of
// another browser: no service worker of the IDE's host answers for the ticket's address.
func TestTicketIsNotTaken(t *testing.T) {
	t.Parallel()
	s := startModeQuick(t, ownOrigins, "CODEHUB_DELETE_GRACE=0s")
	id := s.create(api.CreateWorkspace{Name: "hostile"})
	s.awaitPhase(id, "RUNNING")
	h := &hostilePages{server: s, t: t, mine: id, other: id, page: s.originOf(id)}
	if status, body := h.ide("PUT", id, "/file?path=thief.js", `oninstall = () => skipWaiting(); onactivate = e => e.waitUntil(clients.claim())
		onfetch = e => { if (e.request.url.includes('/_codehub/ticket')) e.respondWith(new Response('taken: ' + e.request.url)) }`); status != 200 {
		t.Fatalf("store the service worker: %d %s", status, body)
	}
	h.b = s.browser(t)
	h.b.login(s.URL, proc.AdminPassword)
	h.open(h.page)
	if got := h.run("register", `const r = await navigator.serviceWorker.register('/file?path=thief.js&type=text/javascript', {scope: '/'}); await navigator.serviceWorker.ready; return r.scope`); got != "refused" {
		t.Errorf("a service worker has the scope %s", got)
	}
	thief := s.visitor("")
	asked, _, _ := thief.follow(h.page+"/", "/_codehub/enter")
	h.b.do("be led to a ticket", navigate(asked), until(`document.querySelector('#request') !== null || document.body?.innerText.startsWith('taken')`))
	seen, err := chromedp.Run(h.b.ctx, chromedp.Evaluate[string](`document.body.innerText`))
	if err != nil {
		t.Fatal(err)
	}
	if ticket, taken := strings.CutPrefix(seen, "taken: "); taken {
		last, resp, _ := thief.follow(ticket, "")
		t.Errorf("the page has the ticket, with which another browser enters %s: %d", last, resp.StatusCode)
	}
}

// attackTarget is an origin that a page attacks.
type attackTarget struct {
	Name   string `json:"name"`
	Origin string `json:"origin"`
	Path   string `json:"path"`   // of something to read
	Socket string `json:"socket"` // of a WebSocket

	main bool // codehub's own host
}

// attack is what a page tries with a target. The script, with the target as t, returns
// what it could read or reach, and fails if it is refused. On the page's own origin it
// succeeds, so that it is the origin that refuses it.
type attack struct {
	name, script string
	skip         func(m mode, on attackTarget) bool // what a mode does not refuse, see docs/security.md
}

func never(mode, attackTarget) bool       { return false }
func inPlain(m mode, _ attackTarget) bool { return m == plain }

// attacksOnOrigins read, change or take over another origin.
var attacksOnOrigins = []attack{
	{"read", `return (await fetch(t.origin + t.path, {credentials: 'include'})).text()`, never},
	{"write", `return (await fetch(t.origin + '/file?path=notes.txt', {method: 'PUT', credentials: 'include', body: 'changed'})).status`, never},
	{"a WebSocket", `return new Promise((ok, no) => {
		const w = new WebSocket(t.origin.replace('http', 'ws') + t.socket)
		w.onopen = () => { w.close(); ok('open') }
		w.onerror = no
	})`, never},
	// Over plain http a browser does not say which page wants a script.
	{"a script", `return new Promise((ok, no) => {
		const e = document.createElement('script')
		e.onload = () => ok('loaded')
		e.onerror = no
		e.src = t.origin + (t.path === '/' ? '/api/v1/session' : t.path)
		document.head.append(e)
	})`, func(m mode, on attackTarget) bool { return m == plain && !on.main }},
	{"a window", `
		const w = window.open(t.origin + t.path)
		try {
			for (;;) {
				if (!w || w.closed) throw 0
				const got = isLoaded(w) && reach(w)
				if (got) return got
				await new Promise(r => setTimeout(r, 50))
			}
		} finally {
			w?.close()
		}`, never},
	{"a frame", `
		const f = document.createElement('iframe')
		f.src = t.origin + t.path
		document.body.append(f)
		try {
			await new Promise(r => f.onload = r)
			return reach(f.contentWindow)
		} finally {
			f.remove()
		}`, never},
	{"a service worker of it", `return register(t.origin + worker, location.origin + '/scope/')`, inPlain},
	{"a service worker over it", `return register(location.origin + worker, t.origin + '/scope/')`, inPlain},
}

// attackHelpers are what the scripts use.
const attackHelpers = `
	const worker = '/file?path=worker.js&type=text/javascript'
	const register = async (script, scope) => {
		const r = await navigator.serviceWorker.register(script, {scope})
		await r.unregister()
		return r.scope
	}
	const isLoaded = w => { try { return w.location.href !== 'about:blank' } catch { return true } }
	const reach = w => { // reads its document, or else listens to its messages
		try { return w.document.body?.innerText } catch {}
		w.onmessage = () => {}
		return 'listens'
	}
`

// hostilePages are workspaces of one user: the page is in mine, and its visitor, who has a
// session on every host, also owns other.
type hostilePages struct {
	*server
	t           *testing.T
	b           *browser
	mine, other string
	page        string // the origin of the page that attacks
}

// Where a page has set codehub's cookies for the whole domain, codehub removes them, and a
// button repeats the request.
const tryAgain = `document.querySelector('.message-status, .status')?.innerText === '400' &&
	(b => { if (!b.dataset.clicked) { b.dataset.clicked = 'yes'; b.click() } return false })(document.querySelector('.message .btn-primary, .actions .first'))`

func testHostilePage(t *testing.T, m mode) {
	s := startModeQuick(t, m, "CODEHUB_DELETE_GRACE=0s", "CODEHUB_PORT_VISIBILITY_MAX=public")
	h := &hostilePages{server: s, t: t, mine: s.create(api.CreateWorkspace{Name: "hostile"}), other: s.create(api.CreateWorkspace{Name: "victim"})}
	hour := 3600
	for _, id := range []string{h.mine, h.other} {
		s.awaitPhase(id, "RUNNING")
		s.serveIn(id, ":3000")
		s.serveIn(id, ":3001")
	}
	for id, port := range map[string]int{h.mine: 3000, h.other: 3001} {
		if _, err := s.api.SharePort(t.Context(), id, port, api.SharePort{With: "public", ExpiresInSeconds: &hour}); err != nil {
			t.Fatal(err)
		}
	}
	s.write(h.other, "secret of the victim")
	h.putWorker()
	h.b = s.browser(t)
	h.b.login(s.URL, proc.AdminPassword)
	h.openVictims() // the browser has a session on every host
	port := s.portOf(h.mine, "3000")
	for _, h.page = range []string{s.originOf(h.mine), port} {
		h.open(h.page)
		h.attackOrigins()
		h.attackMain()
		h.send()
	}
	h.expectUnchanged(map[string]string{h.mine: "3000 public, 3001 owner", h.other: "3000 owner, 3001 public"})
	h.expectNoFrames()
	h.expectNoOpener()
	if m != plain {
		h.takeOver()
	}
	for _, h.page = range []string{s.originOf(h.mine), port} {
		h.plantCookies()
	}
	h.dropCookies()
	h.endItself()
	s.remove(h.mine)
	s.remove(h.other)
}

// putWorker stores the script of a service worker that answers every request. At /status it
// answers with the status of its own request for another address.
func (h *hostilePages) putWorker() {
	h.t.Helper()
	const script = `oninstall = () => skipWaiting(); onactivate = e => e.waitUntil(clients.claim())
		const status = url => fetch(url.searchParams.get('of'), {credentials: 'include'}).then(r => r.status, () => 'refused').then(s => new Response(s))
		onfetch = e => {
			const url = new URL(e.request.url)
			e.respondWith(url.pathname === '/status' ? status(url) : new Response('taken over', {headers: {'Content-Type': 'text/html'}}))
		}`
	if status, body := h.ide("PUT", h.mine, "/file?path=worker.js", script); status != 200 {
		h.t.Fatalf("store the service worker: %d %s", status, body)
	}
}

// targets are what the page attacks.
func (h *hostilePages) targets() []attackTarget {
	api := "/api/v1/workspaces"
	list := []attackTarget{
		{"the dashboard", h.URL, "/", "/ws", true},
		{"the API", h.URL, api, api + "/" + h.other + "/exec", true},
		{"the API of ports", h.URL, api + "/" + h.other + "/ports", api + "/" + h.other + "/ports/3000/connect", true},
		{"another workspace by the main origin", h.URL, "/w/" + h.other + "/file?path=notes.txt&type=text/plain", "/w/" + h.other + "/ws", true},
		{"another workspace", h.originOf(h.other), "/file?path=notes.txt&type=text/plain", "/ws", false},
		{"a port of another workspace", h.portOf(h.other, "3000"), "/", "/ws", false},
		{"a public port of another workspace", h.portOf(h.other, "3001"), "/", "/ws", false},
		{"the IDE of its own workspace", h.originOf(h.mine), "/", "/ws", false},
		{"the public port of its own workspace", h.portOf(h.mine, "3000"), "/", "/ws", false},
		{"another port of its own workspace", h.portOf(h.mine, "3001"), "/", "/ws", false},
	}
	if h.page != h.originOf(h.mine) { // to which it leads
		list = append(list, attackTarget{"the IDE of its own workspace by the main origin", h.URL, "/w/" + h.mine + "/", "/w/" + h.mine + "/ws", true})
	}
	return slices.DeleteFunc(list, func(t attackTarget) bool { return t.Origin == h.page })
}

// victims are the origins of other workspaces and ports.
func (h *hostilePages) victims() (origins []string) {
	for _, t := range h.targets() {
		if !t.main {
			origins = append(origins, t.Origin)
		}
	}
	return origins
}

// openVictims opens what the page attacks, which shows that it works.
func (h *hostilePages) openVictims() {
	h.t.Helper()
	for _, origin := range h.victims() {
		h.open(origin)
	}
}

// open opens a workspace's page.
func (h *hostilePages) open(origin string) {
	h.t.Helper()
	h.b.do("open "+origin, navigate(origin+"/"), until(fmt.Sprintf(`location.origin === %q && document.querySelector('#request') !== null || `+tryAgain, origin)))
}

// run runs a script in the page, with the names of the origins as at. It returns its result,
// or "refused" if it fails.
func (h *hostilePages) run(what, script string) string {
	h.t.Helper()
	at, err := json.Marshal(map[string]any{"main": h.URL, "otherID": h.other, "victims": h.victims()})
	if err != nil {
		h.t.Fatal(err)
	}
	h.b.do(what, until(fmt.Sprintf(`(window.result = undefined, (async at => { try { window.result = String(await (async () => { %s })()) } catch (e) { window.result = 'refused' } })(%s), true)`, script, at)),
		until(`window.result !== undefined`))
	result, err := chromedp.Run(h.b.ctx, chromedp.Evaluate[string](`window.result`))
	if err != nil {
		h.t.Fatal(err)
	}
	return result
}

// attackOrigins tries the attacks on all targets at once, and on the page itself.
func (h *hostilePages) attackOrigins() {
	h.t.Helper()
	itself := attackTarget{"itself", h.page, "/", "/ws", false}
	on := append(h.targets(), itself)
	list, err := json.Marshal(on)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, a := range attacksOnOrigins {
		got := map[string]string{}
		result := h.run(a.name, attackHelpers+fmt.Sprintf(`
			const attack = async t => { %s }
			const late = new Promise(r => setTimeout(r, 60000, 'no result'))
			const results = {}
			await Promise.all(%s.map(async t => {
				results[t.name] = String(await Promise.race([attack(t).catch(() => 'refused'), late])).slice(0, 300)
			}))
			return JSON.stringify(results)`, a.script, list))
		if err := json.Unmarshal([]byte(result), &got); err != nil {
			h.t.Fatalf("%s: %s", a.name, result)
		}
		for _, victim := range on {
			switch result := got[victim.Name]; {
			case a.skip(h.mode, victim):
			case victim == itself && h.page == h.originOf(h.mine) && strings.Contains(a.name, "service worker"):
				if result != "refused" { // TestTicketIsNotTaken has the reason
					h.t.Errorf("%s: %s from the root of the IDE's host: %s", h.page, a.name, result)
				}
			case victim == itself && (result == "refused" || result == "no result"):
				h.t.Errorf("%s: %s: the attack does not even work on the page's own origin: %s", h.page, a.name, result)
			case victim != itself && result != "refused":
				h.t.Errorf("%s: %s: %s: %s", h.page, a.name, victim.Name, result)
			}
		}
	}
}

// attackMain tries what exists on codehub's own host alone.
func (h *hostilePages) attackMain() {
	h.t.Helper()
	attacks := map[string]string{
		"events of the dashboard": `return new Promise((ok, no) => { const e = new EventSource(at.main + '/dashboard/events', {withCredentials: true}); e.onopen = () => ok('open'); e.onerror = no })`,
		"read the session cookie": `if (document.cookie.includes('codehub_')) return document.cookie; throw 0`,
	}
	if h.mode != plain { // a browser cuts windows apart on secure origins alone
		attacks["keep a window of the dashboard"] = `const w = window.open(at.main + '/')
			for (let n = 0; n < 200; n++) {
				if (!w || w.closed) throw 0
				await new Promise(r => setTimeout(r, 50))
			}
			return 'it can be sent messages, and to another page'`
	}
	for name, script := range attacks {
		if got := h.run(name, script); got != "refused" {
			h.t.Errorf("%s: %s: %.300s", h.page, name, got)
		}
	}
}

// send sends what a page cannot read, but can send.
func (h *hostilePages) send() {
	h.t.Helper()
	const form = `const f = document.createElement('form'); f.method = 'post'; f.target = '_blank'; `
	const wait = `document.body.append(f); f.submit(); await new Promise(r => setTimeout(r, 500))`
	sent := map[string]string{
		"API":         `await fetch(at.main + '/api/v1/tokens', {method: 'POST', mode: 'no-cors', credentials: 'include', headers: {'Content-Type': 'text/plain'}, body: '{"name": "stolen"}'})`,
		"beacon":      `navigator.sendBeacon(at.main + '/api/v1/tokens', '{"name": "stolen"}'); await new Promise(r => setTimeout(r, 500))`,
		"form":        form + `f.action = at.main + '/settings/tokens'; f.innerHTML = '<input name="name" value="stolen">'; ` + wait,
		"stop":        form + `f.action = at.main + '/workspaces/' + at.otherID + '/stop'; ` + wait,
		"share":       form + `f.action = at.main + '/workspaces/' + at.otherID + '/share-port'; f.innerHTML = '<input name="port" value="3000"><input name="with" value="public"><input name="for" value="3600">'; ` + wait,
		"logout":      `await fetch(at.main + '/logout', {method: 'POST', mode: 'no-cors', credentials: 'include'})`,
		"end another": `await Promise.allSettled(at.victims.map(o => fetch(o + '/exit?code=1', {method: 'POST', mode: 'no-cors', credentials: 'include'})))`,
	}
	if h.mode != plain { // a browser does not say there that another page wants the image
		sent["end by image"] = `await Promise.all(at.victims.map(o => new Promise(r => { const i = new Image(); i.onerror = r; i.onload = r; i.src = o + '/exit?code=1' })))`
		sent["end by frame"] = `await Promise.all(at.victims.map(o => new Promise(r => { const f = document.createElement('iframe'); f.onload = r; f.src = o + '/exit?code=1'; document.body.append(f) })))`
	}
	for name, attack := range sent {
		if got := h.run(name, attack+"; return 'sent'"); got != "sent" && got != "refused" {
			h.t.Errorf("%s: %s: %s", h.page, name, got)
		}
	}
}

// expectUnchanged checks that nothing that was sent has had an effect. ports are those of the
// workspaces, as listening returns them.
func (h *hostilePages) expectUnchanged(ports map[string]string) {
	h.t.Helper()
	for _, path := range []string{"/api/v1/tokens", "/settings/tokens", "/workspaces/" + h.other + "/stop", "/workspaces/" + h.other + "/share-port", "/logout"} {
		harness.Eventually(h.t, "a refused POST "+path, func() bool {
			for line := range strings.Lines(h.Log()) {
				if strings.Contains(line, "method=POST path="+path+" ") && strings.Contains(line, " status=403 ") {
					return true
				}
			}
			return false
		})
	}
	list, err := h.api.Tokens(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	for _, token := range list {
		if token.Name == "stolen" {
			h.t.Error("the page has created a token")
		}
	}
	if w := h.awaitPhase(h.other, "RUNNING"); w.DesiredState != "RUNNING" {
		h.t.Errorf("the page has stopped the victim: %+v", w)
	}
	h.expect(h.other, "secret of the victim")
	for id, want := range ports {
		log, err := exec.CommandContext(h.t.Context(), "docker", "logs", workspace.ID(id).DockerName()).CombinedOutput()
		if err != nil || strings.Contains(string(log), "asked to exit") {
			h.t.Errorf("the page has ended an IDE: %v\n%s", err, log)
		}
		if got := h.listening(id); got != want {
			h.t.Errorf("the ports of %s are %s, want %s", id, got, want)
		}
	}
}

// listening returns the ports of a workspace on which programs listen, and who may open them.
func (h *hostilePages) listening(id string) string {
	h.t.Helper()
	list, err := h.api.Ports(h.t.Context(), id)
	if err != nil {
		h.t.Fatal(err)
	}
	var got []string
	for _, p := range list.Ports {
		if p.Listening {
			got = append(got, fmt.Sprint(p.Port, " ", p.VisibleTo))
		}
	}
	return strings.Join(got, ", ")
}

// takeOver registers a service worker that answers every request on the page's own host. It
// answers none of another host.
func (h *hostilePages) takeOver() {
	h.t.Helper()
	taken := h.registerWorker()
	h.openVictims()
	h.seeDashboard()
	h.b.do("remove the service worker", navigate(h.page+"/"), taken,
		until(`(window.asked ??= navigator.serviceWorker.getRegistrations().then(l => Promise.all(l.map(r => r.unregister()))).then(() => window.removed = true), window.removed === true)`))
	h.open(h.page)
}

// registerWorker registers the service worker of putWorker for all requests on the page's own
// host. taken waits until it has answered one.
func (h *hostilePages) registerWorker() (taken chromedp.Action[chromedp.Void]) {
	h.t.Helper()
	taken = until(`document.body?.innerText === 'taken over'`)
	h.open(h.page)
	h.b.do("register a service worker", until(`(window.asked ??= navigator.serviceWorker.register('/file?path=worker.js&type=text/javascript', {scope: '/'}), navigator.serviceWorker.controller !== null)`))
	h.b.do("see that it answers on its own host", navigate(h.page+"/"), taken)
	return taken
}

func (h *hostilePages) seeDashboard() {
	h.t.Helper()
	h.b.do("see the dashboard", navigate(h.URL+"/"), until(h.dashboard()+" || "+tryAgain))
}

// dashboard is a condition that the page is the dashboard of the logged in user.
func (h *hostilePages) dashboard() string {
	return "document.getElementById('ws-" + h.other + "') !== null"
}

// cookieDomains are all domains that a page may try to set cookies for.
const cookieDomains = `['localhost', '.localhost', 'example.com', '.example.com', location.hostname, new URL(at.main).hostname, ...at.victims.map(o => new URL(o).hostname)]`

// plantCookies sets cookies with codehub's names for every domain and path. All pages open
// in spite of it.
func (h *hostilePages) plantCookies() {
	h.t.Helper()
	h.open(h.page)
	if got := h.run("plant cookies", `const lines = []
		for (const n of ['codehub_session', '__Host-codehub_session', 'codehub_workspace', '__Host-codehub_workspace', 'codehub_nonce', 'codehub_theme', 'codehub_lang'])
			for (const d of `+cookieDomains+`) for (const p of ['/', '/w', '/api', '/_codehub']) for (const a of ['', '; secure']) lines.push(n + '=planted; path=' + p + '; domain=' + d + a)
		const { status } = await fetch('/setcookie?' + lines.filter(l => l.includes('path=/;')).map(l => 'c=' + encodeURIComponent(l)).join('&'))
		for (const line of lines) document.cookie = line
		return status`); got != "200" {
		h.t.Errorf("%s: a response with cookies: %s", h.page, got)
	}
	if h.mode == plain { // elsewhere the browser takes none of them for the main origin
		h.b.do("see the page about planted cookies", navigate(h.URL+"/"), until(`document.querySelector('.message-status')?.innerText === '400'`))
	}
	h.seeDashboard()
	h.openVictims()
	h.open(h.page)
}

// dropCookies sets so many cookies that the browser drops others.
func (h *hostilePages) dropCookies() {
	h.t.Helper()
	h.open(h.page)
	h.run("set many cookies", `for (const d of `+cookieDomains+`) for (let i = 0; i < 400; i++) document.cookie = 'c' + i + '=' + 'x'.repeat(200) + '; path=/; domain=' + d`)
	// It drops the session at any time after that, also once a page was loaded with it.
	for _, address := range []string{h.URL, h.originOf(h.other), h.portOf(h.other, "3000")} {
		shown := h.dashboard()
		if address != h.URL {
			shown = fmt.Sprintf(`location.origin === %q && document.querySelector('#request') !== null`, address)
		}
		for seen := false; !seen; {
			h.b.do("open "+address+" in spite of many cookies", navigate(address+"/"), until(shown+" || document.querySelector('#username') !== null || "+tryAgain))
			dropped, err := chromedp.Run(h.b.ctx, chromedp.Evaluate[bool](`document.querySelector('#username') !== null`))
			if err != nil {
				h.t.Fatal(err)
			}
			if seen = !dropped; dropped {
				h.t.Log("the browser has dropped the session")
				h.b.login(h.URL, proc.AdminPassword)
			}
		}
	}
}

// expectNoFrames checks that codehub's own pages cannot be framed.
func (h *hostilePages) expectNoFrames() {
	h.t.Helper()
	cookie := h.loginCookie("admin")
	for path, cookie := range map[string]string{"/": cookie, "/workspaces/" + h.mine: cookie, "/settings/tokens": cookie, "/admin": cookie, "/login": ""} {
		resp, _ := h.ask("GET", path, "", "Accept", "text/html", "Cookie", cookie)
		if !strings.Contains(resp.Header.Get("Content-Security-Policy"), "frame-ancestors 'none'") || resp.StatusCode != 200 {
			h.t.Errorf("%s can be framed: %d", path, resp.StatusCode)
		}
	}
}

// expectNoOpener opens the page from the dashboard: it cannot reach the window of the dashboard.
func (h *hostilePages) expectNoOpener() {
	h.t.Helper()
	link := fmt.Sprintf(`#ports a[href=%q]`, h.page+"/")
	h.b.do("open the port from the dashboard", navigate(h.URL+"/workspaces/"+h.mine), chromedp.WaitVisible(link),
		// The list of ports moves while it arrives, so a press at a position could miss the link.
		until(fmt.Sprintf(`(a => a !== null && a.click() === undefined)(document.querySelector(%q))`, link)))
	tab := h.b.opened(h.page + "/")
	tab.do("see the page", until(`document.querySelector('#request') !== null`))
	if got, err := chromedp.Run(tab.ctx, chromedp.Evaluate[bool](`window.opener === null && document.referrer === ''`)); err != nil || !got {
		h.t.Errorf("the page of the port has the dashboard's window or its address: %v", err)
	}
}

// endItself shows that the request that ended no other program does end one.
func (h *hostilePages) endItself() {
	h.t.Helper()
	h.open(h.page)
	h.run("end itself", `await fetch(location.origin + '/exit?code=1', {method: 'POST', mode: 'no-cors', credentials: 'include'})`)
	harness.Eventually(h.t, "the page has ended its own program", func() bool { return h.listening(h.mine) == "3001 owner" })
}
