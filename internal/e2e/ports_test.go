package e2e

import (
	"encoding/json"
	"fmt"
	"io"
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

// A shared port is open to those it is shared with until the share ends, and to nobody else.
// Its owner shares it on the workspace's page.
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
	eve, stranger := s.visitor("eve"), s.visitor("")
	if _, resp, _ := eve.follow(port+"/", ""); resp.StatusCode != 403 {
		t.Errorf("before it is shared: %d", resp.StatusCode)
	}

	owner := s.browser(t)
	guest := owner.tabOf(chromedp.WithNewBrowserContext()) // it is not logged in
	owner.login(s.URL, proc.AdminPassword)
	const row = `document.querySelector('#ports [data-port="3000"]')`
	listed := func(visibility string) chromedp.Action[chromedp.Void] {
		return until(fmt.Sprintf(`%s.querySelector('.then')?.textContent === %q`, row, visibility))
	}
	// The page grows and is refreshed while the list of ports arrives, so a press may be lost.
	share := func() {
		t.Helper()
		owner.do("share the port", until(`document.querySelector('#dialog-form') !== null && document.querySelector('.htmx-request') === null ||
			(Date.now() - (window.pressed ?? 0) > 5000 && (window.pressed = Date.now(), document.querySelector('#share-3000')?.click()), false)`))
	}
	choose := func(with, seconds string) {
		t.Helper()
		owner.do("choose "+with, chromedp.WaitVisible("#dialog-form"), until(fmt.Sprintf(`(form => {
			form.querySelector('input[name="with"][value=%q]').click()
			form.querySelector('#f-for').value = %q
			return true
		})(document.getElementById('dialog-form'))`, with, seconds)), chromedp.Click("#dialog-form button[type=submit]"))
	}
	closed := until(`document.querySelector('#dialog-form') === null`)
	owner.do("see the port", navigate(s.URL+"/workspaces/"+id), chromedp.WaitVisible("#share-3000"))
	share()
	choose("users", "0")
	owner.do("see that users can open it", closed, listed("All users"))
	if last, resp, _ := stranger.follow(port+"/", "/login"); resp != nil {
		t.Errorf("a port of users without a session: %d at %s", resp.StatusCode, last)
	}
	share()
	choose("public", "0")
	owner.do("be asked for an end", chromedp.WaitVisible("#e-for"))
	choose("public", "3600")
	owner.do("see that it is public, and until when", closed, listed("Public"), until(row+`.textContent.includes('Shared until')`))
	owner.screenshot("public")

	shown := until(fmt.Sprintf(`location.origin === %q && document.querySelector('#request') !== null`, port))
	guest.do("open the public port", navigate(port+"/"), shown)
	guest.expectNothingOfCodehub()
	for name, address := range map[string]string{"another port": other, "the IDE": s.originOf(id)} {
		if last, resp, _ := stranger.follow(address+"/", "/login"); resp != nil {
			t.Errorf("%s without a session: %d at %s", name, resp.StatusCode, last)
		}
		if _, resp, _ := eve.follow(address+"/", ""); resp.StatusCode != 403 {
			t.Errorf("%s as another user: %d", name, resp.StatusCode)
		}
	}
	owner.do("open the port as its owner", navigate(s.originOf(id)+"/"), navigate(other+"/"), navigate(port+"/"), shown)
	owner.expectNothingOfCodehub()

	// A share that expires ends what visitors have open.
	guest.do("open a WebSocket", until(`(window.socket ??= new WebSocket(location.origin.replace('http', 'ws') + '/ws')).readyState === WebSocket.OPEN`))
	owner.do("go back", navigate(s.URL+"/workspaces/"+id), listed("Public"))
	seconds := 2
	if _, err := s.api.SharePort(t.Context(), id, 3000, api.SharePort{With: "public", ExpiresInSeconds: &seconds}); err != nil {
		t.Fatal(err)
	}
	guest.do("be cut off", until(`window.socket.readyState === WebSocket.CLOSED`))
	if status := s.status("GET", port+"/"); status != 401 {
		t.Errorf("after the share has expired: %d", status)
	}
	guest.do("see the login page", navigate(port+"/"), chromedp.WaitVisible("#username"))
	owner.do("see that it is shared no longer", until(row+`.querySelector('.then') === null && document.querySelector('#unshare-3000') === null`))

	// Shared with users: eve enters by a ticket, a visitor without a session logs in first.
	share()
	choose("users", "0")
	owner.do("see that users can open it again", closed, listed("All users"))
	if status := s.status("GET", port+"/"); status != 401 {
		t.Errorf("a port of users without a session: %d", status)
	}
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
	owner.do("stop sharing", until(`(e => { e?.click(); return Boolean(e) })(document.querySelector('#unshare-3000'))`), until(row+`.querySelector('.then') === null`))
	s.ends("the share has ended", conn)
	if status := s.status("GET", port+"/", "Cookie", eve.cookies(port+"/")); status != 403 {
		t.Errorf("after the share: %d", status)
	}
	s.remove(id)
}

// expectNothingOfCodehub checks what an application has received of the browser that shows its
// page: what every browser sends, and the visitor's address.
func (b *browser) expectNothingOfCodehub() {
	b.Helper()
	text, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](`document.querySelector('#request').innerText`))
	if err != nil {
		b.Fatal(err)
	}
	var received struct{ Headers http.Header }
	if err := json.Unmarshal([]byte(text), &received); err != nil {
		b.Fatal(err)
	}
	for name := range received.Headers {
		switch name {
		case "Accept", "Accept-Encoding", "Accept-Language", "Cache-Control", "Pragma", "Priority", "Upgrade-Insecure-Requests", "User-Agent",
			"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto":
		default:
			if !strings.HasPrefix(name, "Sec-") {
				b.Errorf("the application received %s: %q", name, received.Headers[name])
			}
		}
	}
	if strings.Contains(strings.ToLower(text), "codehub") || received.Headers.Get("X-Forwarded-For") == "" {
		b.Errorf("the application received %s", text)
	}
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
	s.listLive(b, id)
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

// listLive checks that the workspace's page, once open, lists a program from when it listens until
// it ends, without a reload.
func (s *server) listLive(b *browser, id string) {
	s.Helper()
	const none = `document.querySelector('#ports')?.innerText.includes('No program listens on a port.') && document.querySelector('#ports [data-port]') === null`
	b.do("see that nothing listens", navigate(s.URL+"/workspaces/"+id), until(none), until(`window.notReloaded = true`))
	before := time.Now().Truncate(time.Second)
	program, err := s.api.Exec(s.Context(), id, api.Exec{Args: []string{"/testserver"}, Env: []string{"TESTSERVER_ADDR=127.0.0.1:3000"}})
	if err != nil {
		s.Fatal(err)
	}
	defer program.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := program.Run(s.Context(), io.Discard, io.Discard, nil)
		ended <- err
	}()
	b.do("see the program", until(`document.querySelector('#ports [data-port="3000"] code')?.textContent === 'testserver'`))
	list, err := s.api.Ports(s.Context(), id)
	if err != nil || len(list.Ports) != 1 || list.Ports[0].Since == nil {
		s.Fatalf("%+v, %v", list, err)
	}
	since := *list.Ports[0].Since
	if since.Before(before) || since.After(time.Now()) {
		s.Errorf("the program listens since %v, and was started after %v", since, before)
	}
	b.do("see since when", until(fmt.Sprintf(`(row => row.querySelector('.num').textContent === '3000' && row.innerText.includes('Listening since') &&
		Date.parse(row.querySelector('time').dateTime) === %d)(document.querySelector('#ports [data-port="3000"]'))`, since.UnixMilli())))
	b.screenshot("listening")
	if err := program.Signal(s.Context(), "TERM"); err != nil {
		s.Fatal(err)
	}
	if err := <-ended; err != nil {
		s.Errorf("end the program: %v", err)
	}
	b.do("see it go", until(none+` && window.notReloaded`))
}

// testForward runs codehub port-forward, also across a restart of the workspace.
func testForward(t *testing.T, s *server, id string) {
	local, err := proc.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	token, err := s.api.CreateToken(t.Context(), api.CreateToken{Name: "forward"})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), env.binary, "port-forward", "--url", s.URL, id, "3000:"+local[strings.LastIndex(local, ":")+1:])
	cmd.Env = append(cmd.Environ(), "CODEHUB_SESSION_TOKEN="+token.Token, "HOME="+t.TempDir())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	fetch := func() string {
		resp, err := (&http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}).Get("http://" + local + "/file?path=page.txt")
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
