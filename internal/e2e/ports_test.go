package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"codehub/api"
	"codehub/internal/e2e/proc"
	"codehub/internal/harness"
	"codehub/internal/pgtest"
)

// serveIn starts an application in a workspace: the same program as the workspace's own,
// without a secret.
func (s *server) serveIn(id, address string) {
	s.Helper()
	out, err := exec.CommandContext(s.Context(), "docker", "exec", "--detach", "--env", "TESTSERVER_ADDR="+address, "--env", "HASHED_PASSWORD=", "codehub-ws-"+id, "/testserver").CombinedOutput()
	if err != nil {
		s.Fatalf("start the application: %v: %s", err, out)
	}
}

// Attacks from a page on a shared port, which its visitor opens who is logged in to
// codehub: each must fail. What it returns is what it could read.
var portAttacks = map[string]string{
	"read the dashboard":         `return (await fetch(at.main + '/', {credentials: 'include'})).text()`,
	"read the API":               `return (await fetch(at.main + '/api/v1/workspaces', {credentials: 'include'})).text()`,
	"read another port":          `return (await fetch(at.port, {credentials: 'include'})).text()`,
	"read the IDE":               `return (await fetch(at.ide, {credentials: 'include'})).text()`,
	"read the visitor's own IDE": `return (await fetch(at.own, {credentials: 'include'})).text()`,
	"a WebSocket to it":          `return new Promise((ok, no) => { const w = new WebSocket(at.own.replace('http', 'ws') + '/ws'); w.onopen = () => ok('open'); w.onerror = no })`,
	"a WebSocket to the API":     `return new Promise((ok, no) => { const w = new WebSocket(at.main.replace('http', 'ws') + '/api/v1/workspaces/' + at.id + '/ports/3000/connect'); w.onopen = () => ok('open'); w.onerror = no })`,
	"a service worker of others": `return (await navigator.serviceWorker.register(at.main + '/x.js', {scope: at.main + '/'})).scope`,
	"read the session cookie":    `if (document.cookie.includes('codehub_')) return document.cookie; throw 0`,
	"the document of a frame":    `const f = document.createElement('iframe'); f.src = at.own + '/'; document.body.append(f); await new Promise(r => f.onload = r); return f.contentWindow.document.body.innerText`,
	"a window of the dashboard":  `const w = window.open(at.main + '/'); for (let n = 0; n < 20; n++) { await new Promise(r => setTimeout(r, 50)); if (!w || w.closed) throw 0; const text = w.document.body?.innerText; if (text) return text } throw 0`,
}

// A shared port is open to those it is shared with, and its page and visitors reach
// nothing else.
func TestSharedPorts(t *testing.T) {
	t.Parallel()
	for _, m := range []mode{ownOrigins, siblings} {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			testSharedPorts(t, m)
		})
	}
}

func testSharedPorts(t *testing.T, m mode) {
	dsn := pgtest.New(t, nil)
	s := startMode(t, m, "CODEHUB_DATABASE_URL="+dsn, "CODEHUB_DELETE_GRACE=0s", "CODEHUB_PORT_VISIBILITY_MAX=public")
	addUser(t, dsn, "eve")
	id := s.create(api.CreateWorkspace{Name: "shared"})
	s.awaitPhase(id, "RUNNING")
	s.serveIn(id, ":3000")
	s.serveIn(id, ":3001")
	port, other := s.portOf(id, "3000"), s.portOf(id, "3001")
	eve := s.visitor("eve")
	if _, resp, _ := eve.follow(port+"/", ""); resp.StatusCode != 403 {
		t.Errorf("before it is shared: %d", resp.StatusCode)
	}
	hour := 3600
	if _, err := s.api.SharePort(t.Context(), id, 3000, api.SharePort{With: "public", ExpiresInSeconds: &hour}); err != nil {
		t.Fatal(err)
	}
	b := s.browser(t) // it is not logged in
	shown := until(fmt.Sprintf(`location.origin === %q && document.querySelector('#request') !== null`, port))
	b.do("open the public port", navigate(port+"/"), shown)
	received, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](`document.querySelector('#request').innerText`))
	if err != nil || strings.Contains(strings.ToLower(received), "codehub") {
		t.Errorf("the application received %s, %v", received, err)
	}
	stranger := s.visitor("")
	for name, address := range map[string]string{"another port": other, "the IDE": s.originOf(id)} {
		if last, resp, _ := stranger.follow(address+"/", "/login"); resp != nil {
			t.Errorf("%s without a session: %d at %s", name, resp.StatusCode, last)
		}
		if _, resp, _ := eve.follow(address+"/", ""); resp.StatusCode != 403 {
			t.Errorf("%s as another user: %d", name, resp.StatusCode)
		}
	}

	// The owner's browser has sessions everywhere, and opens a page on the public port.
	owner := b
	owner.login(s.URL, proc.AdminPassword)
	for _, address := range []string{s.originOf(id), other, port} {
		owner.do("open "+address, navigate(address+"/"), until(fmt.Sprintf(`location.origin === %q && document.querySelector('#request') !== null`, address)))
	}
	at, err := json.Marshal(map[string]string{"main": s.URL, "port": other, "ide": s.originOf(id), "own": s.originOf(id), "id": id})
	if err != nil {
		t.Fatal(err)
	}
	for name, attack := range portAttacks {
		owner.do("attack: "+name, until(fmt.Sprintf(`(window.result = undefined, (async at => { try { window.result = String(await (async () => { %s })()) } catch (e) { window.result = 'refused' } })(%s), true)`, attack, at)),
			until(`window.result !== undefined`))
		if got, err := chromedp.Run(owner.ctx, chromedp.Evaluate[string](`window.result`)); err != nil || got != "refused" {
			t.Errorf("%s: %.300s, %v", name, got, err)
		}
	}

	// Narrowed to users: eve enters by a ticket, a visitor without a session logs in first.
	if _, err := s.api.SharePort(t.Context(), id, 3000, api.SharePort{With: "users"}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "visitors without a session are refused", func() bool { return s.status("GET", port+"/") == 401 })
	if _, resp, _ := eve.follow(port+"/", ""); resp.StatusCode != 200 {
		t.Errorf("a user on the shared port: %d", resp.StatusCode)
	}
	// Her session of the shared port is worth nothing elsewhere.
	for _, address := range []string{other, s.originOf(id)} {
		if status := s.status("GET", address+"/", "Cookie", eve.cookies(port+"/")); status != 401 {
			t.Errorf("the session of the shared port at %s: %d", address, status)
		}
	}
	status, conn := s.upgradeAt(port, "Cookie", eve.cookies(port+"/"), "Origin", port)
	if status != http.StatusSwitchingProtocols {
		t.Fatalf("a WebSocket to the shared port: %d", status)
	}
	if err := s.api.UnsharePort(t.Context(), id, 3000); err != nil {
		t.Fatal(err)
	}
	s.ends("the share has ended", conn)
	if status := s.status("GET", port+"/", "Cookie", eve.cookies(port+"/")); status != 403 {
		t.Errorf("after the share: %d", status)
	}
	s.remove(id)
}

// An application that listens on 127.0.0.1 alone is listed, opened in a browser with its
// WebSockets, and forwarded.
func TestLoopbackPortOfWorkspace(t *testing.T) {
	t.Parallel()
	s := startQuick(t, "CODEHUB_DELETE_GRACE=0s")
	id := s.create(api.CreateWorkspace{Name: "dev"})
	s.awaitPhase(id, "RUNNING")
	port := s.portOf(id, "3000")
	b := newBrowser(t, s.URL)
	b.login(s.URL, proc.AdminPassword)
	b.do("wait for the application", navigate(port+"/"), until(`document.querySelector('#wait') !== null`))
	s.serveIn(id, "127.0.0.1:3000")
	b.do("see it enter", until(`document.querySelector('#request') !== null`))
	// As a development server reloads a page: a file changes, and the page shows it after a
	// message on its WebSocket.
	b.do("change and see", until(`(window.asked ??= (async () => {
		const socket = new WebSocket(location.origin.replace('http', 'ws') + '/ws');
		await new Promise((ok, no) => { socket.onopen = ok; socket.onerror = no });
		socket.onmessage = async () => { document.title = await (await fetch('/file?path=page.txt')).text() };
		await fetch('/file?path=page.txt', {method: 'PUT', body: 'changed'});
		socket.send('reload');
	})(), document.title === 'changed')`))
	b.do("see it on the workspace's page", navigate(s.URL+"/workspaces/"+id), until(`document.querySelector('#ports [data-port="3000"]')?.innerText.includes('testserver')`))
	var listed api.Port
	list, err := s.api.Ports(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list.Ports {
		if p.Port == 3000 {
			listed = p
		}
	}
	if !listed.Listening || !listed.Local || listed.URL != port+"/" {
		t.Errorf("%+v", list)
	}
	conn, err := s.api.ConnectPort(t.Context(), id, 3000)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "GET /file?path=page.txt HTTP/1.0\r\n\r\n")
	if err := conn.CloseWrite(); err != nil {
		t.Error(err)
	}
	if got, err := io.ReadAll(conn); err != nil || !strings.HasSuffix(string(got), "changed") {
		t.Errorf("forwarded: %q, %v", got, err)
	}
	testForward(t, s, id)
	s.remove(id)
}

// testForward runs codehub port-forward, also across a restart of the workspace.
func testForward(t *testing.T, s *server, id string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	local := l.Addr().(*net.TCPAddr).Port
	l.Close()
	token, err := s.api.CreateToken(t.Context(), api.CreateToken{Name: "forward"})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), env.binary, "port-forward", "--url", s.URL, id, fmt.Sprintf("3000:%d", local))
	cmd.Env = append(cmd.Environ(), "CODEHUB_SESSION_TOKEN="+token.Token, "HOME="+t.TempDir())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	fetch := func() string {
		resp, err := (&http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}).Get(fmt.Sprintf("http://127.0.0.1:%d/file?path=page.txt", local))
		if err != nil {
			return ""
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return string(b)
	}
	harness.Eventually(t, "the forwarded port leads to the application", func() bool { return fetch() == "changed" })
	before := s.containerOf(id)
	if _, err := s.api.Restart(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	s.await(id, "runs again", func(w api.Workspace) bool {
		return w.Phase == "RUNNING" && w.Operation == "NONE" && s.containerOf(id) != before
	})
	s.serveIn(id, "127.0.0.1:3000")
	harness.Eventually(t, "it does after a restart of the workspace", func() bool { return fetch() == "changed" })
}
