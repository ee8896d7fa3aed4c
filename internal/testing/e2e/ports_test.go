package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"codehub/api"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/pgtest"
	"codehub/internal/workspace"
)

// serveIn starts an application in a workspace: the same program as the workspace's own,
// without a secret.
func (s *server) serveIn(id, address string) {
	s.Helper()
	out, err := exec.CommandContext(s.Context(), "docker", "exec", "--detach", "--env", "TESTSERVER_ADDR="+address, "--env", "HASHED_PASSWORD=", workspace.ID(id).DockerName(), "/testserver").CombinedOutput()
	if err != nil {
		s.Fatalf("start the application: %v: %s", err, out)
	}
}

// A shared port is open to those it is shared with until the share ends, and to nobody else.
// Its owner shares it on the workspace's page. It takes over 20 s beside other tests, for a server,
// a workspace and two browsers.
func TestSharedPorts(t *testing.T) {
	t.Parallel()
	inEach(t, orAll([]mode{ownOrigins, siblings}, ownOrigins), testSharedPorts)
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
