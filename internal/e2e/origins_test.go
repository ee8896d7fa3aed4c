package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/jackc/pgx/v5"

	"codehub/api"
	codehub "codehub/client"
	"codehub/internal/e2e/proc"
	"codehub/internal/harness"
	"codehub/internal/pgtest"
)

// visitor is a client with the cookies of a user's browser, which follows redirects one
// by one.
type visitor struct {
	*server
	jar http.CookieJar
}

func (s *server) visitor(user string) *visitor {
	s.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		s.Fatal(err)
	}
	v := &visitor{s, jar}
	if user != "" {
		u, _ := url.Parse(s.URL)
		name, value, _ := strings.Cut(s.loginCookie(user), "=")
		jar.SetCookies(u, []*http.Cookie{{Name: name, Value: value}})
	}
	return v
}

// step opens an address as a browser does, without following a redirect.
func (v *visitor) step(address string) (*http.Response, string) {
	v.Helper()
	req, err := http.NewRequestWithContext(v.Context(), http.MethodGet, address, nil)
	if err != nil {
		v.Fatal(err)
	}
	for _, c := range v.jar.Cookies(req.URL) {
		req.AddCookie(c)
	}
	req.Header.Set("Accept", "text/html")
	req.Header.Set("Sec-Fetch-Mode", "navigate")
	req.Header.Set("Sec-Fetch-Dest", "document")
	resp, err := v.web.RoundTrip(req)
	if err != nil {
		v.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		v.Fatal(err)
	}
	v.jar.SetCookies(req.URL, resp.Cookies())
	return resp, string(b)
}

// follow opens an address and returns the end of its redirects, or the first address
// that contains stop.
func (v *visitor) follow(address, stop string) (last string, resp *http.Response, body string) {
	v.Helper()
	for range 20 {
		if stop != "" && strings.Contains(address, stop) {
			return address, nil, ""
		}
		resp, body = v.step(address)
		next := resp.Header.Get("Location")
		if next == "" {
			return address, resp, body
		}
		u, err := resp.Request.URL.Parse(next)
		if err != nil {
			v.Fatal(err)
		}
		address = u.String()
	}
	v.Fatalf("redirects without end, at %s", address)
	return "", nil, ""
}

// cookies returns the Cookie header for an address.
func (v *visitor) cookies(address string) string {
	u, _ := url.Parse(address)
	var pairs []string
	for _, c := range v.jar.Cookies(u) {
		pairs = append(pairs, c.Name+"="+c.Value)
	}
	return strings.Join(pairs, "; ")
}

// A ticket lets in the browser that asked for it, once, on the host that it is for.
func TestTicketAttacks(t *testing.T) {
	t.Parallel()
	inEach(t, originModes, testTicketAttacks)
}

func testTicketAttacks(t *testing.T, m mode) {
	dsn := pgtest.New(t, nil)
	s := startMode(t, m, "CODEHUB_DATABASE_URL="+dsn, "CODEHUB_DELETE_GRACE=0s")
	addUser(t, dsn, "eve")
	mine, second := s.create(api.CreateWorkspace{Name: "mine"}), s.create(api.CreateWorkspace{Name: "second"})
	s.awaitPhase(mine, "RUNNING")
	s.awaitPhase(second, "RUNNING")
	const ticketPath = "/_codehub/ticket"

	ann := s.visitor("admin")
	if last, resp, _ := ann.follow(s.URL+"/w/"+mine+"/", ""); resp.StatusCode != 200 || last != s.originOf(mine)+"/" {
		t.Fatalf("the owner ends at %s: %d", last, resp.StatusCode)
	}
	// Another user is not let in, by any address.
	for _, address := range []string{s.URL + "/w/" + mine + "/", s.originOf(mine) + "/"} {
		if last, resp, body := s.visitor("eve").follow(address, ""); resp.StatusCode != 403 || strings.Contains(body, "mine") {
			t.Errorf("another user ends at %s: %d", last, resp.StatusCode)
		}
	}
	// A replayed ticket, also with the nonce of the browser that has used it.
	other := s.visitor("admin")
	ticket, _, _ := other.follow(s.originOf(mine)+"/", ticketPath)
	u, _ := url.Parse(s.originOf(mine))
	nonce := other.jar.Cookies(u)
	if resp, _ := other.step(ticket); resp.StatusCode != 303 || resp.Header.Get("Location") != s.originOf(mine)+"/" {
		t.Fatalf("the ticket: %d %s", resp.StatusCode, resp.Header.Get("Location"))
	}
	thief := s.visitor("")
	thief.jar.SetCookies(u, nonce)
	if last, _, _ := thief.follow(ticket, ""); !strings.HasPrefix(last, s.URL+"/login?") {
		t.Errorf("a replayed ticket leads to %s", last)
	}
	// A ticket that another browser was given.
	ticket, _, _ = s.visitor("admin").follow(s.originOf(mine)+"/", ticketPath)
	if last, _, _ := s.visitor("").follow(ticket, ""); !strings.HasPrefix(last, s.URL+"/login?") {
		t.Errorf("a stolen ticket leads to %s", last)
	}
	// A ticket for another workspace, with the right nonce.
	other = s.visitor("admin")
	ticket, _, _ = other.follow(s.originOf(mine)+"/", ticketPath)
	foreign, _ := url.Parse(s.originOf(second))
	thief = s.visitor("")
	thief.jar.SetCookies(foreign, other.jar.Cookies(u))
	if last, _, _ := thief.follow(strings.Replace(ticket, mine, second, 1), ""); !strings.HasPrefix(last, s.URL+"/login?") {
		t.Errorf("a ticket for another workspace leads to %s", last)
	}
	// The cookie of one host is worth nothing on another.
	cookie := ann.cookies(s.originOf(mine))
	for name, to := range map[string]string{"another workspace": s.originOf(second) + "/echo", "a port": s.originOf("3000--"+mine) + "/", "the API": s.URL + "/api/v1/session"} {
		if status := s.status("GET", to, "Cookie", cookie); status != 401 {
			t.Errorf("the cookie of a workspace at %s: %d", name, status)
		}
	}
	for _, c := range ann.jar.Cookies(u) {
		if status := s.status("GET", s.URL+"/api/v1/session", "Cookie", s.sessionCookie()+"="+c.Value); status != 401 {
			t.Errorf("%s of a workspace as the session of the main origin: %d", c.Name, status)
		}
	}
	session := s.loginCookie("admin")
	for _, name := range []string{"codehub_session", "codehub_workspace"} {
		if status := s.status("GET", s.originOf(mine)+"/echo", "Cookie", strings.Replace(session, "codehub_session", name, 1)); status != 401 {
			t.Errorf("the session of the main origin as %s: %d", name, status)
		}
	}
	// A connection ends with the session on the main origin.
	status, conn := s.upgradeAt(s.originOf(mine), "Cookie", cookie, "Origin", s.originOf(mine))
	if status != 101 {
		t.Fatalf("the owner's WebSocket: %d", status)
	}
	for name, from := range map[string]string{"the main origin": s.URL, "another workspace": s.originOf(second), "none": ""} {
		headers := []string{"Cookie", cookie}
		if from != "" {
			headers = append(headers, "Origin", from)
		}
		if status, _ := s.upgradeAt(s.originOf(mine), headers...); status != 403 {
			t.Errorf("a WebSocket from %s: %d", name, status)
		}
	}
	main := ann.cookies(s.URL)
	s.ask("POST", "/api/v1/logout", "", "Cookie", main)
	s.ends("the WebSocket after the logout", conn)
	if status := s.status("GET", s.originOf(mine)+"/echo", "Cookie", cookie); status != 401 {
		t.Errorf("after the logout the session of the host: %d", status)
	}
	// It also ends with the workspace, when that has another owner, and when its owner is
	// disabled.
	_, conn = s.enter("admin", second)
	if _, err := s.api.Delete(t.Context(), second, true); err != nil {
		t.Fatal(err)
	}
	s.ends("the WebSocket of a deleted workspace", conn)
	s.awaitGone(second)
	hers := s.createAs("eve")
	cookie, conn = s.enter("eve", hers)
	handOver(t, dsn, hers, "admin")
	s.ends("the WebSocket of the former owner", conn)
	if status := s.status("GET", s.originOf(hers)+"/echo", "Cookie", cookie); status != 403 {
		t.Errorf("the former owner's session on the workspace's host: %d", status)
	}
	handOver(t, dsn, hers, "eve")
	cookie, conn = s.enter("eve", hers)
	accounts, err := s.api.Accounts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range accounts {
		if a.Username == "eve" {
			if _, err := s.api.PatchAccount(t.Context(), a.ID, api.PatchAccount{Disabled: new(true)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.ends("the WebSocket of a disabled user", conn)
	if status := s.status("GET", s.originOf(hers)+"/echo", "Cookie", cookie); status != 401 {
		t.Errorf("the session of a disabled user on the workspace's host: %d", status)
	}
	s.remove(mine)
}

// enter opens a running workspace as a user does, and a WebSocket in it.
func (s *server) enter(user, id string) (cookie string, conn net.Conn) {
	s.Helper()
	v := s.visitor(user)
	if last, resp, _ := v.follow(s.URL+"/w/"+id+"/", ""); resp.StatusCode != 200 {
		s.Fatalf("%s enters %s: %d", user, last, resp.StatusCode)
	}
	cookie = v.cookies(s.originOf(id))
	status, conn := s.upgradeAt(s.originOf(id), "Cookie", cookie, "Origin", s.originOf(id))
	if status != 101 {
		s.Fatalf("the WebSocket of %s: %d", user, status)
	}
	return cookie, conn
}

// ends waits until the server has closed a connection, for 5 s.
func (s *server) ends(what string, conn net.Conn) {
	s.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
		s.Errorf("%s is open after 5 s", what)
	}
}

// createAs creates a running workspace of a user with the password of admin.
func (s *server) createAs(user string) string {
	s.Helper()
	c, _, err := codehub.Login(s.Context(), s.URL, api.Login{Username: user, Password: proc.AdminPassword}, codehub.WithHTTPClient(&http.Client{Transport: s.web}))
	if err != nil {
		s.Fatal(err)
	}
	w, err := c.Create(s.Context(), api.CreateWorkspace{Name: "of " + user})
	if err != nil {
		s.Fatal(err)
	}
	theirs := *s
	theirs.api = c
	theirs.awaitPhase(w.ID, "RUNNING")
	return w.ID
}

// addUser creates a user with the password of admin.
func addUser(t *testing.T, dsn, name string) {
	t.Helper()
	execute(t, dsn, `INSERT INTO users (id, username, username_key, password_hash)
		SELECT gen_random_uuid(), $1, $1, password_hash FROM users WHERE username = 'admin'`, name)
}

// handOver gives a workspace to another user.
func handOver(t *testing.T, dsn, id, user string) {
	t.Helper()
	execute(t, dsn, `UPDATE workspaces SET owner_user_id = (SELECT id FROM users WHERE username = $2) WHERE id = $1`, id, user)
}

// execute changes a server's database.
func execute(t *testing.T, dsn, statement string, args ...any) {
	t.Helper()
	db, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(t.Context())
	if _, err := db.Exec(t.Context(), statement, args...); err != nil {
		t.Fatal(err)
	}
}

// status sends a request to any of the server's hosts.
func (s *server) status(method, address string, headers ...string) int {
	s.Helper()
	req, err := http.NewRequestWithContext(s.Context(), method, address, nil)
	if err != nil {
		s.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	resp, err := s.web.RoundTrip(req)
	if err != nil {
		s.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// A page in a workspace can do nothing on the dashboard, with the API or with another
// workspace as the user who has it open.
func TestHostilePage(t *testing.T) {
	t.Parallel()
	inEach(t, originModes, testHostilePage)
}

func testHostilePage(t *testing.T, m mode) {
	s := startModeQuick(t, m, "CODEHUB_DELETE_GRACE=0s")
	id, other := s.create(api.CreateWorkspace{Name: "hostile"}), s.create(api.CreateWorkspace{Name: "victim"})
	s.awaitPhase(id, "RUNNING")
	s.awaitPhase(other, "RUNNING")
	s.write(other, "secret of the victim")
	b := s.browser(t)
	b.login(s.URL, proc.AdminPassword)
	// Where a page has set codehub's cookies for the whole domain, codehub removes them, and a
	// button repeats the request.
	const tryAgain = `document.querySelector('.message-status, .status')?.innerText === '400' &&
		(b => { if (!b.dataset.clicked) { b.dataset.clicked = 'yes'; b.click() } return false })(document.querySelector('.message .btn-primary, .actions .first'))`
	open := func(origin string) {
		t.Helper()
		b.do("open "+origin, navigate(origin+"/"), until(fmt.Sprintf(`location.origin === %q && document.querySelector('#request') !== null || `+tryAgain, origin)))
	}
	open(s.originOf(other)) // the browser has a session there
	open(s.originOf(id))
	// try runs an attack on these origins in the page. Its result is what it could read,
	// or "refused".
	victim := other
	try := func(attack, main, other string) string {
		t.Helper()
		names, err := json.Marshal(map[string]string{"main": main, "other": other, "own": s.originOf(id), "otherID": victim, "ownID": id})
		if err != nil {
			t.Fatal(err)
		}
		b.do("attack", until(fmt.Sprintf(`(window.result = undefined, (async at => { try { window.result = String(await (async () => { %s })()) } catch (e) { window.result = 'refused' } })(%s), true)`, attack, names)),
			until(`window.result !== undefined`))
		result, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](`window.result`))
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
	// These attacks work on the page's own origin, so it is the origin that refuses them.
	onItself := map[string]bool{
		"read the dashboard": true, "read the API": true, "read another workspace": true, "write to another workspace": true, "a WebSocket to another": true,
		"a script of the dashboard": true, "open the dashboard's window": true, "the document of a framed page": true, "the document of a framed victim": true,
	}
	for name, attack := range map[string]string{
		"read the dashboard":              `return (await fetch(at.main + '/', {credentials: 'include'})).text()`,
		"read the API":                    `return (await fetch(at.main + '/api/v1/workspaces', {credentials: 'include'})).text()`,
		"read another workspace":          `return (await fetch(at.other + '/file?path=notes.txt', {credentials: 'include'})).text()`,
		"read it by the main origin":      `return (await fetch(at.main + '/w/' + at.otherID + '/file?path=notes.txt', {credentials: 'include'})).text()`,
		"write to another workspace":      `return (await fetch(at.other + '/file?path=notes.txt', {method: 'PUT', credentials: 'include', body: 'changed'})).status`,
		"a WebSocket to another":          `return new Promise((ok, no) => { const w = new WebSocket(at.other.replace('http', 'ws') + '/ws'); w.onopen = () => ok('open'); w.onerror = no })`,
		"a WebSocket to the main origin":  `return new Promise((ok, no) => { const w = new WebSocket(at.main.replace('http', 'ws') + '/w/' + at.ownID + '/ws'); w.onopen = () => ok('open'); w.onerror = no })`,
		"events of the dashboard":         `return new Promise((ok, no) => { const e = new EventSource(at.main + '/dashboard/events', {withCredentials: true}); e.onopen = () => ok('open'); e.onerror = no })`,
		"a service worker of another":     `return (await navigator.serviceWorker.register(at.main + '/x.js')).scope`,
		"a service worker over others":    `return (await navigator.serviceWorker.register(at.own + '/x.js', {scope: at.main + '/'})).scope`,
		"a script of the dashboard":       `return new Promise((ok, no) => { const e = document.createElement('script'); e.src = at.main + '/api/v1/session'; e.onload = () => ok('loaded'); e.onerror = no; document.head.append(e) })`,
		"read the session cookie":         `if (document.cookie.includes('codehub_')) return document.cookie; throw 0`,
		"open the dashboard's window":     `const w = window.open(at.main + '/'); for (;;) { if (!w || w.closed) throw 0; const text = w.document.body?.innerText; if (text) return text; await new Promise(r => setTimeout(r, 100)) }`,
		"the document of a framed page":   `const f = document.createElement('iframe'); f.src = at.main + '/'; document.body.append(f); await new Promise(r => f.onload = r); return f.contentWindow.document.body.innerText`,
		"the document of a framed victim": `const f = document.createElement('iframe'); f.src = at.other + '/'; document.body.append(f); await new Promise(r => f.onload = r); return f.contentWindow.document.body.innerText`,
	} {
		if got := try(attack, s.URL, s.originOf(other)); got != "refused" {
			t.Errorf("%s: %.300s", name, got)
		}
		if onItself[name] && try(attack, s.originOf(id), s.originOf(id)) == "refused" {
			t.Errorf("%s: the attack does not even work on the page's own origin", name)
		}
	}
	// What a page cannot read, it can still send. None of it changes anything.
	sent := map[string]string{
		"API":         `await fetch(at.main + '/api/v1/tokens', {method: 'POST', mode: 'no-cors', credentials: 'include', headers: {'Content-Type': 'text/plain'}, body: '{"name": "stolen"}'})`,
		"beacon":      `navigator.sendBeacon(at.main + '/api/v1/tokens', '{"name": "stolen"}'); await new Promise(r => setTimeout(r, 500))`,
		"form":        `const f = document.createElement('form'); f.method = 'post'; f.target = '_blank'; f.action = at.main + '/settings/tokens'; f.innerHTML = '<input name="name" value="stolen">'; document.body.append(f); f.submit(); await new Promise(r => setTimeout(r, 500))`,
		"stop":        `const f = document.createElement('form'); f.method = 'post'; f.target = '_blank'; f.action = at.main + '/workspaces/' + at.otherID + '/stop'; document.body.append(f); f.submit(); await new Promise(r => setTimeout(r, 500))`,
		"end another": `await fetch(at.other + '/exit?code=1', {method: 'POST', mode: 'no-cors', credentials: 'include'})`,
		"logout":      `await fetch(at.main + '/logout', {method: 'POST', mode: 'no-cors', credentials: 'include'})`,
	}
	if m != plain { // a browser does not say there that another page wants the image
		sent["end by image"] = `await new Promise(r => { const i = new Image(); i.onerror = r; i.onload = r; i.src = at.other + '/exit?code=1' })`
	}
	for name, attack := range sent {
		if got := try(attack+"; return 'sent'", s.URL, s.originOf(other)); got != "sent" && got != "refused" {
			t.Errorf("%s: %s", name, got)
		}
	}
	for _, path := range []string{"/api/v1/tokens", "/settings/tokens", "/workspaces/" + other + "/stop", "/logout"} {
		harness.Eventually(t, "a refused POST "+path, func() bool {
			for line := range strings.Lines(s.Log()) {
				if strings.Contains(line, "method=POST path="+path+" ") && strings.Contains(line, " status=403 ") {
					return true
				}
			}
			return false
		})
	}
	list, err := s.api.Tokens(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range list {
		if token.Name == "stolen" {
			t.Error("the page has created a token")
		}
	}
	if w := s.awaitPhase(other, "RUNNING"); w.DesiredState != "RUNNING" {
		t.Errorf("the page has stopped the victim: %+v", w)
	}
	s.expect(other, "secret of the victim")
	log, err := exec.CommandContext(t.Context(), "docker", "logs", "codehub-ws-"+other).CombinedOutput()
	if err != nil || strings.Contains(string(log), "asked to exit") {
		t.Errorf("the page has ended the victim's IDE: %v\n%s", err, log)
	}
	// The browser is still logged in, and both workspaces open.
	dashboard := "document.getElementById('ws-" + other + "') !== null"
	b.do("see the dashboard", navigate(s.URL+"/"), until(dashboard))
	open(s.originOf(other))

	// Cookies with codehub's names for every domain that a page may set them for.
	const domains = `['localhost', '.localhost', 'example.com', '.example.com', new URL(at.main).hostname, new URL(at.other).hostname, location.hostname]`
	open(s.originOf(id))
	try(`for (const n of ['codehub_session', '__Host-codehub_session', 'codehub_workspace', '__Host-codehub_workspace', 'codehub_nonce', 'codehub_theme', 'codehub_lang'])
		for (const d of `+domains+`) for (const p of ['/', '/w', '/api', '/_codehub']) for (const a of ['', '; secure']) document.cookie = n + '=planted; path=' + p + '; domain=' + d + a`, s.URL, s.originOf(other))
	if m == plain { // elsewhere the browser takes none of them for the main origin
		b.do("see the page about planted cookies", navigate(s.URL+"/"), until(`document.querySelector('.message-status')?.innerText === '400'`))
	}
	b.do("see the dashboard in spite of planted cookies", navigate(s.URL+"/"), until(dashboard+" || "+tryAgain))
	open(s.originOf(other))
	open(s.originOf(id))

	// So many cookies that the browser drops others.
	try(`for (const d of `+domains+`) for (let i = 0; i < 400; i++) document.cookie = 'c' + i + '=' + 'x'.repeat(200) + '; path=/; domain=' + d`, s.URL, s.originOf(other))
	// It drops the session at any time after that, also once a page was loaded with it.
	for _, step := range []struct{ name, address, seen string }{
		{"see codehub in spite of many cookies", s.URL, dashboard},
		{"open the other in spite of many cookies", s.originOf(other), fmt.Sprintf(`location.origin === %q && document.querySelector('#request') !== null`, s.originOf(other))},
	} {
		for seen := false; !seen; {
			b.do(step.name, navigate(step.address+"/"), until(step.seen+" || document.querySelector('#username') !== null || "+tryAgain))
			dropped, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](`document.querySelector('#username') !== null`))
			if err != nil {
				t.Fatal(err)
			}
			if seen = !dropped; dropped {
				t.Log("the browser has dropped the session")
				b.login(s.URL, proc.AdminPassword)
			}
		}
	}

	// codehub's own pages cannot be framed.
	cookie := s.loginCookie("admin")
	for path, cookie := range map[string]string{"/": cookie, "/workspaces/" + id: cookie, "/settings/tokens": cookie, "/admin": cookie, "/login": ""} {
		resp, _ := s.ask("GET", path, "", "Accept", "text/html", "Cookie", cookie)
		if !strings.Contains(resp.Header.Get("Content-Security-Policy"), "frame-ancestors 'none'") || resp.StatusCode != 200 {
			t.Errorf("%s can be framed: %d", path, resp.StatusCode)
		}
	}
	s.remove(id)
	s.remove(other)
}

// An application on a port of a workspace has an origin of its own, on which absolute
// links work.
func TestPortOfWorkspace(t *testing.T) {
	t.Parallel()
	s := startQuick(t, "CODEHUB_DELETE_GRACE=0s")
	id := s.create(api.CreateWorkspace{Name: "web"})
	s.awaitPhase(id, "RUNNING")
	port := s.originOf("3000--" + id)
	b := newBrowser(t, s.URL)
	b.login(s.URL, proc.AdminPassword)
	b.do("see that nothing listens", navigate(port+"/"), until(`document.querySelector('h1')?.innerText.includes('3000')`))
	b.screenshot("nothing-listens")
	s.serveIn(id, ":3000")
	seen := func(path string) chromedp.Action[chromedp.Void] {
		return until(fmt.Sprintf(`location.href === %q && JSON.parse(document.querySelector('#request').innerText).path === %q`, port+path, path))
	}
	b.do("see the page enter the application", until(`document.querySelector('#request') !== null`), seen("/"))
	b.do("follow an absolute link", until(`(() => { const a = document.createElement('a'); a.href = '/deep/page'; document.body.append(a); a.click(); return true })()`), seen("/deep/page"))
	headers, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](`document.querySelector('#request').innerText`))
	if err != nil || strings.Contains(headers, "codehub_") || strings.Contains(headers, "code-server-session") {
		t.Errorf("the application received %s, %v", headers, err)
	}
	if status := s.status("GET", port+"/"); status != 401 {
		t.Errorf("without a session: %d", status)
	}
	s.remove(id)
}
