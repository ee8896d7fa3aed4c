package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"codehub/api"
	codehub "codehub/client"
	"codehub/internal/e2e/proc"
	"codehub/internal/harness"
)

// guestWorld is a server on which admin shares workspaces: shop with uma for use and with vic for
// view, and trap, whose program attacks its visitors, with uma for use. private belongs to admin
// alone, and own to uma.
type guestWorld struct {
	*server // of admin
	t       *testing.T

	ssh, proxy               string // addresses of SSH, and of a proxy for the command line
	uma, vic                 *server
	shop, trap, private, own string
	umaOnTrap                string // the id of the share
}

// A guest gets nothing of a workspace but what is shared, the owner gets nothing of a guest, and
// the end of a share ends everything that the guest has open.
func TestGuests(t *testing.T) {
	t.Parallel()
	g := newGuestWorld(t)
	g.attackAsGuest()
	g.attackAsViewer()
	h := g.attackGuest()
	g.cut(h)
}

func newGuestWorld(t *testing.T) *guestWorld {
	listen, err := proc.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	s := startModeQuick(t, siblings, "CODEHUB_DELETE_GRACE=0s", "CODEHUB_PORT_VISIBILITY_MAX=users", "CODEHUB_SSH_LISTEN="+listen, "MAX_RUNNING_PER_USER=5")
	g := &guestWorld{server: s, t: t, ssh: listen, proxy: tunnelProxy(t)}
	for _, user := range []string{"uma", "vic"} {
		if _, err := s.api.CreateAccount(t.Context(), api.CreateAccount{Username: user, Password: proc.AdminPassword}); err != nil {
			t.Fatal(err)
		}
	}
	g.uma, g.vic = s.enterAs("uma", proc.AdminPassword), s.enterAs("vic", proc.AdminPassword)
	g.shop = s.create(api.CreateWorkspace{Name: "shop", ImageRef: env.slimImage, Memo: "the key is under the mat", Env: map[string]string{"OWNERS_KEY": "under the mat"}})
	g.trap, g.private, g.own = s.create(api.CreateWorkspace{Name: "trap"}), s.create(api.CreateWorkspace{Name: "private"}), g.uma.create(api.CreateWorkspace{Name: "own"})
	for _, id := range []string{g.shop, g.trap, g.private} {
		s.awaitPhase(id, "RUNNING")
	}
	g.uma.awaitPhase(g.own, "RUNNING")
	for _, id := range []string{g.trap, g.private, g.own} {
		s.serveIn(id, ":3000")
		s.serveIn(id, ":3001")
	}
	s.write(g.private, "secret of the owner")
	g.uma.write(g.own, "secret of the victim")
	g.share(g.shop, "vic", "view")
	g.share(g.shop, "uma", "use")
	g.umaOnTrap = g.share(g.trap, "uma", "use")
	return g
}

func (g *guestWorld) share(id, user, access string) (share string) {
	g.Helper()
	made, err := g.api.Share(g.Context(), id, api.NewShare{User: user, Access: access})
	if err != nil {
		g.Fatal(err)
	}
	return made.ID
}

// tunnelProxy is a proxy for https that leads to this machine by any name, for programs that
// resolve names themselves.
func tunnelProxy(t *testing.T) (address string) {
	t.Helper()
	p := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, port, _ := net.SplitHostPort(r.Host)
		target, err := net.Dial("tcp", "127.0.0.1:"+port)
		if r.Method != http.MethodConnect || err != nil {
			http.Error(w, "no such host", http.StatusBadGateway)
			return
		}
		defer target.Close()
		client, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer client.Close()
		_, _ = io.WriteString(client, "HTTP/1.1 200 OK\r\n\r\n")
		go func() {
			_, _ = io.Copy(target, buffered)
			target.Close()
		}()
		_, _ = io.Copy(client, target)
	}))
	t.Cleanup(p.Close)
	return p.URL
}

// cli prepares a command of codehub's command line as a user.
func (g *guestWorld) cli(user *server, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(g.Context(), env.binary, args...)
	cmd.Env = append(os.Environ(), "CODEHUB_URL="+g.URL, "CODEHUB_SESSION_TOKEN="+user.token, "HTTPS_PROXY="+g.proxy, "SSL_CERT_FILE="+g.certificate.cert,
		"HOME="+g.TempDir(), "XDG_CONFIG_HOME=")
	return cmd
}

// guestRoutes are the routes of the API below a workspace that a guest with use may call, with the
// status of a request that is no WebSocket.
var guestRoutes = map[string]int{
	"GET /workspaces/{id}/exec": http.StatusUpgradeRequired, "GET /workspaces/{id}/ports/{port}/connect": http.StatusUpgradeRequired,
	"GET /workspaces/{id}/ssh": http.StatusBadRequest,
}

// callAll sends a request to every route of a workspace that the server's own description of
// its API lists, and returns the status of each.
func (g *guestWorld) callAll(user *server, id string) map[string]int {
	g.Helper()
	_, text := g.ask("GET", "/api/v1/openapi.json", "")
	var described struct {
		Paths map[string]map[string]json.RawMessage `json:"paths"`
	}
	if err := json.Unmarshal([]byte(text), &described); err != nil {
		g.Fatal(err)
	}
	bodies := map[string]string{
		"PATCH /workspaces/{id}":                  `{"desired_state": "STANDBY", "memo": "changed"}`,
		"POST /workspaces/{id}/shares":            `{"user": "vic", "access": "use"}`,
		"PUT /workspaces/{id}/ports/{port}/share": `{"with": "users"}`,
	}
	got := map[string]int{}
	for path, methods := range described.Paths {
		if !strings.HasPrefix(path, "/workspaces/{id}") {
			continue
		}
		at := strings.NewReplacer("{id}", id, "{port}", "3000", "{share}", g.umaOnTrap).Replace(path)
		for method := range methods {
			method = strings.ToUpper(method)
			if method == "PARAMETERS" {
				continue
			}
			resp, body := g.ask(method, "/api/v1"+at, bodies[method+" "+path], api.TokenHeader, user.token, "Content-Type", "application/json")
			got[method+" "+path] = resp.StatusCode
			if strings.Contains(body, "mat") || strings.Contains(body, "OWNERS_KEY") {
				g.Errorf("%s %s shows a guest the notes or the environment: %s", method, path, body)
			}
		}
	}
	if len(got) < 20 {
		g.Fatalf("the API describes only %d routes of a workspace", len(got))
	}
	return got
}

// refusedPages are pages and forms of a workspace's owner.
var refusedPages = []string{
	"GET logs", "GET env", "GET edit", "GET shares", "GET share-port", "GET usage", "GET download", "GET delete",
	"POST stop", "POST start", "POST restart", "POST archive", "POST delete", "POST force-stop", "POST stay", "POST keep-awake", "POST memo", "POST env", "POST edit",
	"POST image", "POST share", "POST unshare", "POST share-port",
}

// attackAsGuest acts as uma, who uses shop, by every way: only its IDE, its ports, commands and SSH
// are hers, and nothing of the owner's other workspace.
func (g *guestWorld) attackAsGuest() {
	g.t.Helper()
	before := g.ofOwner()
	for name, status := range g.callAll(g.uma, g.shop) {
		if want := guestRoutes[name]; status != cmp.Or(want, http.StatusForbidden) {
			g.t.Errorf("%s by a guest with use: %d, want %d", name, status, cmp.Or(want, http.StatusForbidden))
		}
	}
	for name, status := range g.callAll(g.uma, g.private) {
		if status != http.StatusForbidden {
			g.t.Errorf("%s of another workspace of the owner by a guest: %d", name, status)
		}
	}
	g.expectPagesRefused("uma")

	v := g.visitor("uma")
	if _, resp, _ := v.follow(g.URL+"/w/"+g.shop+"/healthz", ""); resp.StatusCode != http.StatusOK {
		g.t.Fatalf("the guest opens the workspace: %d", resp.StatusCode)
	}
	g.expectHostSession(v)
	g.expectCommands()
	g.expectOneContainer()
	if after := g.ofOwner(); !slices.Equal(before, after) {
		g.t.Errorf("the guest has changed the workspaces of the owner from %q to %q", before, after)
	}
}

// ofOwner is what guests must not change of the owner's workspaces.
func (g *guestWorld) ofOwner() (seen []string) {
	g.Helper()
	for _, id := range []string{g.shop, g.private} {
		w, err := g.api.Get(g.Context(), id)
		if err != nil {
			g.Fatal(err)
		}
		shares, err := g.api.Shares(g.Context(), id)
		if err != nil {
			g.Fatal(err)
		}
		seen = append(seen, fmt.Sprint(w.Name, w.Phase, w.DesiredState, str(w.NextDesiredState), w.Memo, w.Env, w.ImageRef, w.DeletedAt, w.KeepAwakeUntil, w.StandbyTTLSeconds, w.PhaseChangedAt, shares))
	}
	return seen
}

func (g *guestWorld) expectPagesRefused(user string) {
	g.t.Helper()
	cookie := g.loginCookie(user)
	for _, id := range []string{g.shop, g.private} {
		for _, page := range refusedPages {
			method, name, _ := strings.Cut(page, " ")
			resp, body := g.ask(method, "/workspaces/"+id+"/"+name, "user=vic&access=use&memo=changed", "Cookie", cookie, "Content-Type", "application/x-www-form-urlencoded", "Origin", g.URL)
			if resp.StatusCode != http.StatusForbidden || strings.Contains(body, "under the mat") {
				g.t.Errorf("%s of a workspace by %s: %d", page, user, resp.StatusCode)
			}
		}
	}
}

// expectHostSession checks that a guest's session of the workspace's host opens nothing else, and
// changes nothing there.
func (g *guestWorld) expectHostSession(v *visitor) {
	g.t.Helper()
	host := g.originOf(g.shop)
	cookie := v.cookies(host)
	for name, address := range map[string]string{
		"another workspace of the owner": g.originOf(g.private) + "/echo", "its port": g.portOf(g.private, "3000") + "/", "a port of the workspace": g.portOf(g.shop, "3000") + "/",
		"another shared workspace": g.originOf(g.trap) + "/echo", "the guest's own workspace": g.originOf(g.own) + "/echo",
		"the API": g.URL + "/api/v1/session", "the API of the workspace": g.URL + "/api/v1/workspaces/" + g.shop, "the main origin": g.URL + "/w/" + g.shop + "/echo",
	} {
		if status := g.status("GET", address, "Cookie", cookie); status != http.StatusUnauthorized {
			g.t.Errorf("the guest's session of the workspace's host at %s: %d", name, status)
		}
		value := cookie[strings.LastIndex(cookie, "=")+1:]
		if status := g.status("GET", address, "Cookie", g.sessionCookie()+"="+value); status != http.StatusUnauthorized {
			g.t.Errorf("its value as a session of %s: %d", name, status)
		}
	}
	for _, what := range []string{"stop", "stay", "keep-awake"} {
		req, err := http.NewRequestWithContext(g.Context(), http.MethodPost, host+"/_codehub/"+what, strings.NewReader(`{"seconds": 3600}`))
		if err != nil {
			g.t.Fatal(err)
		}
		req.Header = http.Header{"Cookie": {cookie}, "Origin": {host}, "Content-Type": {"application/json"}}
		resp, err := g.web.RoundTrip(req)
		if err != nil {
			g.t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden {
			g.t.Errorf("%s by a guest's IDE: %d", what, resp.StatusCode)
		}
	}
	for _, to := range []string{g.originOf(g.private), g.portOf(g.private, "3000")} {
		if last, resp, body := v.follow(to+"/", ""); resp.StatusCode != http.StatusForbidden || strings.Contains(body, "private") {
			g.t.Errorf("the guest opens %s and ends at %s: %d", to, last, resp.StatusCode)
		}
	}
}

// expectCommands checks the command line and SSH: a guest reaches the shared workspace alone, and
// changes nothing.
func (g *guestWorld) expectCommands() {
	g.t.Helper()
	for _, name := range []string{"admin/shop", g.shop} {
		if out, err := g.cli(g.uma, "exec", name, "--", "id", "-un").CombinedOutput(); err != nil || string(out) != "coder\n" {
			g.t.Errorf("exec in %s: %q, %v", name, out, err)
		}
	}
	for _, args := range [][]string{
		{"stop", "admin/shop"}, {"stop", g.shop}, {"restart", g.shop}, {"delete", g.shop, "--yes"}, {"archive", g.shop}, {"logs", g.shop}, {"show", g.shop}, {"stay", g.shop},
		{"share", g.shop, "--user", "uma"}, {"shares", g.shop}, {"exec", "admin/private", "--", "true"}, {"exec", g.private, "--", "true"}, {"port-forward", g.private, "3000"},
	} {
		if out, err := g.cli(g.uma, args...).CombinedOutput(); err == nil || strings.Contains(string(out), "mat") {
			g.t.Errorf("codehub %v by a guest: %v, %s", args, err, out)
		}
	}
	g.expectForward()
	c := g.uma.sshClient(g.ssh, g.shop, g.private, "shop", "private")
	if out, errs, status := c.run("ssh", "-F", c.options, g.shop, "id -un"); out != "coder\n" || status != 0 {
		g.t.Errorf("SSH: %q %q %d", out, errs, status)
	}
	for _, name := range []string{g.private, "private", "shop"} {
		if out, errs, status := c.run("ssh", "-F", c.options, name, "id -un"); status == 0 || !strings.Contains(errs, "no workspace") {
			g.t.Errorf("SSH to %s: %q %q %d", name, out, errs, status)
		}
	}
}

// expectForward checks that a guest forwards a port of a shared workspace, by its name and its id.
func (g *guestWorld) expectForward() {
	g.t.Helper()
	for _, name := range []string{"admin/trap", g.trap} {
		address, err := proc.FreeAddress()
		if err != nil {
			g.t.Fatal(err)
		}
		cmd := g.cli(g.uma, "port-forward", name, "3000:"+address[strings.LastIndex(address, ":")+1:])
		var errs strings.Builder
		cmd.Stderr = &errs
		if err := cmd.Start(); err != nil {
			g.t.Fatal(err)
		}
		status := 0
		for end := time.Now().Add(harness.Patience); status == 0 && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			if resp, err := http.Get("http://" + address + "/"); err == nil {
				status = resp.StatusCode
				resp.Body.Close()
			}
		}
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil || status != http.StatusOK {
			g.t.Errorf("port-forward %s: %d, %v, %s", name, status, err, &errs)
		}
	}
}

// expectOneContainer checks that the guest's commands reach no other container, and are no one
// for codehub.
func (g *guestWorld) expectOneContainer() {
	g.t.Helper()
	_, at := g.containerAddress(g.private)
	address := net.JoinHostPort(at.String(), "3000")
	conn, err := net.Dial("tcp", address)
	if err != nil {
		g.t.Fatalf("the server's own way to the other workspace: %v", err)
	}
	conn.Close()
	in := func(command string) string {
		out, _ := g.cli(g.uma, "exec", "admin/shop", "--", "bash", "-c", command).CombinedOutput()
		return string(out)
	}
	if out := in("timeout 2 bash -c '</dev/tcp/" + strings.Replace(address, ":", "/", 1) + "' && echo reached"); strings.Contains(out, "reached") {
		g.t.Error("a guest reaches another workspace of the owner from the container")
	}
	u, _ := url.Parse(g.URL)
	out := in(`codehub whoami; curl -sk --max-time 2 --resolve ` + u.Host + `:$(ip route 2>/dev/null | awk '/default/{print $3}') ` + g.URL + `/api/v1/session; env | grep -i -e session -e token; true`)
	if strings.Contains(out, `"user"`) || strings.Contains(out, g.token) {
		g.t.Errorf("the container has a credential: %s", out)
	}
}

// attackAsViewer acts as vic, who views shop.
func (g *guestWorld) attackAsViewer() {
	g.t.Helper()
	for name, status := range g.callAll(g.vic, g.shop) {
		if status != http.StatusForbidden {
			g.t.Errorf("%s by a guest who views: %d", name, status)
		}
	}
	g.expectPagesRefused("vic")
	shared, err := g.vic.api.Shared(g.t.Context())
	if err != nil || len(shared) != 1 || shared[0].ID != g.shop || shared[0].URL != "" {
		g.t.Errorf("shared with vic: %+v, %v", shared, err)
	}
	g.expectOutside("vic", g.vic)
}

// expectOutside checks that a user gets into shop by no way.
func (g *guestWorld) expectOutside(user string, s *server) {
	g.t.Helper()
	v := g.visitor(user)
	for _, to := range []string{g.URL + "/w/" + g.shop + "/", g.originOf(g.shop) + "/", g.portOf(g.shop, "3000") + "/", g.URL + "/w/" + g.shop + "/proxy/3000/"} {
		if last, resp, _ := v.follow(to, ""); resp.StatusCode != http.StatusForbidden {
			g.t.Errorf("%s opens %s and ends at %s: %d", user, to, last, resp.StatusCode)
		}
	}
	for _, host := range []string{g.shop, "3000--" + g.shop} {
		for _, cookie := range []string{v.cookies(g.originOf(host)), v.cookies(g.URL)} {
			if status, conn := g.upgradeAt(g.originOf(host), "Cookie", cookie, "Origin", g.originOf(host)); status != http.StatusForbidden && status != http.StatusUnauthorized {
				g.t.Errorf("a WebSocket of %s at %s: %d", user, host, status)
				conn.Close()
			}
		}
	}
	if status, _ := g.upgrade(g.shop, "Cookie", v.cookies(g.URL), "Origin", g.URL); status != http.StatusForbidden {
		g.t.Errorf("a WebSocket of %s by the main origin: %d", user, status)
	}
	ctx, cancel := context.WithTimeout(g.t.Context(), time.Minute)
	defer cancel()
	if _, err := s.api.Exec(ctx, g.shop, api.Exec{Args: []string{"true"}}); codehub.CodeOf(err) != "forbidden" {
		g.t.Errorf("a command of %s: %v", user, err)
	}
	if _, err := s.api.ConnectPort(ctx, g.shop, 3000); codehub.CodeOf(err) != "forbidden" {
		g.t.Errorf("a port of %s: %v", user, err)
	}
	if _, err := s.api.SSH(ctx, g.shop); codehub.CodeOf(err) != "forbidden" {
		g.t.Errorf("SSH of %s by the API: %v", user, err)
	}
	for _, args := range [][]string{{"exec", "admin/shop", "--", "true"}, {"ssh", "admin/shop", "true"}, {"port-forward", "admin/shop", "3000"}, {"stop", "admin/shop"}} {
		if out, err := g.cli(s, args...).CombinedOutput(); err == nil || !strings.Contains(string(out), "no workspace") {
			g.t.Errorf("codehub %v of %s: %v, %s", args, user, err, out)
		}
	}
	c := s.sshClient(g.ssh, g.shop)
	if out, _, status := c.run("ssh", "-F", c.options, g.shop, "id -un"); status == 0 || out != "" {
		g.t.Errorf("SSH of %s: %q %d", user, out, status)
	}
}

// attackGuest lets the owner's page in trap attack uma, who has it open. It leaves a service worker
// on the host of trap.
func (g *guestWorld) attackGuest() *hostilePages {
	g.t.Helper()
	h := &hostilePages{server: g.uma, t: g.t, mine: g.trap, other: g.own, page: g.originOf(g.trap)}
	h.putWorker()
	h.b = g.browser(g.t)
	h.b.loginAs(g.URL, "uma", proc.AdminPassword)
	h.openVictims()
	h.open(h.page)
	h.attackOrigins()
	h.attackMain()
	h.send()
	h.expectUnchanged(map[string]string{g.own: "3000 owner, 3001 owner"})
	h.plantCookies()
	h.registerWorker()
	h.openVictims()
	h.seeDashboard()
	return h
}

// workerStatus is the status that the service worker on the host of the page gets for an address.
func (h *hostilePages) workerStatus(address string) string {
	h.t.Helper()
	return h.run("ask the service worker", fmt.Sprintf(`return (await fetch('/status?of=' + encodeURIComponent(%q))).text()`, address))
}

// cut ends what uma may do, which ends everything that she has open: shop is narrowed to view, and
// the share of trap ends.
func (g *guestWorld) cut(h *hostilePages) {
	g.t.Helper()
	prepareIDE(g.t, g.shop)
	ide := h.b.tab()
	ide.do("open the IDE", navigate(g.URL+"/w/"+g.shop+"/"))
	ide.workbench()
	h.b.bringToFront()
	h.b.do("go to the page of the trap", navigate(h.page+"/"))
	if got := h.workerStatus(h.page + "/echo"); got != "200" {
		g.t.Errorf("the service worker while the workspace is shared: %s", got)
	}

	open := map[string]<-chan struct{}{}
	ends := func(what string, wait func()) {
		ended := make(chan struct{})
		open[what] = ended
		go func() { defer close(ended); wait() }()
	}
	hostCookie, socket := g.enter("uma", g.trap)
	ends("a WebSocket", func() { _, _ = io.Copy(io.Discard, socket) })
	v := g.visitor("uma")
	port := g.portOf(g.trap, "3000")
	if _, resp, _ := v.follow(port+"/", ""); resp.StatusCode != http.StatusOK {
		g.t.Fatalf("a port of the trap: %d", resp.StatusCode)
	}
	status, portSocket := g.upgradeAt(port, "Cookie", v.cookies(port), "Origin", port)
	if status != http.StatusSwitchingProtocols {
		g.t.Fatalf("a WebSocket to a port: %d", status)
	}
	ends("a WebSocket to a port", func() { _, _ = io.Copy(io.Discard, portSocket) })
	forwarded, err := g.uma.api.ConnectPort(g.t.Context(), g.trap, 3000)
	if err != nil {
		g.t.Fatal(err)
	}
	defer forwarded.Close()
	ends("a forwarded port", func() { _, _ = io.Copy(io.Discard, forwarded) })
	terminal, err := g.uma.api.Exec(g.t.Context(), g.shop, api.Exec{Shell: "exec cat", Terminal: &api.ExecTerminal{Name: "xterm", Rows: 20, Cols: 70}})
	if err != nil {
		g.t.Fatal(err)
	}
	defer terminal.Close()
	var ended error
	ends("a terminal", func() { _, ended = terminal.Run(g.t.Context(), io.Discard, io.Discard, nil) })
	<-terminal.Started()
	c := g.uma.sshClient(g.ssh, g.shop)
	session := c.open(g.shop, "echo up; exec cat")
	session.awaitUp()
	ends("an SSH session", func() { session.awaitEnd() })

	began := time.Now()
	g.share(g.shop, "uma", "view")
	if err := g.api.Unshare(g.t.Context(), g.trap, g.umaOnTrap); err != nil {
		g.t.Fatal(err)
	}
	limit := time.After(2 * accessLimit) // other tests run at the same time
	for what, ended := range open {
		select {
		case <-ended:
		case <-limit:
			g.t.Fatalf("%s is open after %s", what, time.Since(began))
		}
	}
	g.t.Logf("everything was cut after %s", time.Since(began))
	if codehub.CodeOf(ended) != "forbidden" {
		g.t.Errorf("the terminal ended with %v", ended)
	}
	if !strings.Contains(session.errs(), "no longer have access") {
		g.t.Errorf("the SSH session ended with %q", session.errs())
	}
	ide.bringToFront()
	ide.notice("You no longer have access to this workspace.")
	ide.screenshot("cut")
	ide.close()

	g.expectOutside("uma", g.uma)
	for address, cookie := range map[string]string{h.page + "/echo": hostCookie, port + "/": v.cookies(port)} {
		if status := g.status("GET", address, "Cookie", cookie); status != http.StatusForbidden {
			g.t.Errorf("with the session of the former guest, %s: %d", address, status)
		}
	}
	// The service worker outlives the share in the guest's browser. It gets nothing by it.
	h.b.bringToFront()
	for what, address := range map[string]string{
		"the workspace": h.page + "/echo", "the dashboard": g.URL + "/", "the API": g.URL + "/api/v1/shared", "the guest's own workspace": g.originOf(g.own) + "/echo",
	} {
		if got := h.workerStatus(address); got != "refused" && got != "403" {
			g.t.Errorf("the service worker gets of %s after the share: %s", what, got)
		}
	}
	h.seeDashboard()
	h.open(g.originOf(g.own))
}

// A change of access on one server ends what visitors have open by another server of the
// installation: a share that ends, and an owner who is disabled or suspended, whose guests and
// public ports lose their visitors.
func TestAccessEndsOnAllServers(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	settings := append(folderBucket(t).settings, "CODEHUB_DATABASE_URL="+dsn, "CODEHUB_DEFAULT_IMAGE="+env.testImage, "CODEHUB_DELETE_GRACE=0s", "CODEHUB_PORT_VISIBILITY_MAX=public")
	s := start(t, settings...)
	for _, user := range []string{"ann", "uma"} {
		if _, err := s.api.CreateAccount(t.Context(), api.CreateAccount{Username: user, Password: proc.AdminPassword}); err != nil {
			t.Fatal(err)
		}
	}
	id := s.createAs("ann")
	s.serveIn(id, ":3000")
	ann := s.enterAs("ann", proc.AdminPassword)
	other := s.second(settings...)
	hour := 3600
	if _, err := ann.api.SharePort(t.Context(), id, 3000, api.SharePort{With: "public", ExpiresInSeconds: &hour}); err != nil {
		t.Fatal(err)
	}
	share := func() api.Share {
		t.Helper()
		made, err := ann.api.Share(t.Context(), id, api.NewShare{User: "uma", Access: "use"})
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	// public opens a WebSocket to the public port by the other server, without a session.
	public := func() net.Conn {
		t.Helper()
		at := other.portOf(id, "3000")
		status, conn := other.upgradeAt(at, "Origin", at)
		if status != http.StatusSwitchingProtocols {
			t.Fatalf("a WebSocket to the public port: %d", status)
		}
		return conn
	}

	shared := share()
	_, guest := other.enter("uma", id)
	if err := ann.api.Unshare(t.Context(), id, shared.ID); err != nil {
		t.Fatal(err)
	}
	other.ends("the guest's WebSocket after the share", guest)

	share()
	account := s.accountOf("ann")
	for _, end := range []struct {
		name        string
		begin, undo func()
	}{
		{"disabled", func() { s.disable(account, true) }, func() { s.disable(account, false) }},
		{"suspended", func() { execute(t, dsn, `UPDATE users SET suspended_for = 'refused' WHERE username = 'ann'`) },
			func() { execute(t, dsn, `UPDATE users SET suspended_for = NULL WHERE username = 'ann'`) }},
	} {
		_, guest := other.enter("uma", id)
		visitor := public()
		end.begin()
		other.ends("the guest's WebSocket with an owner who is "+end.name, guest)
		other.ends("the public port's WebSocket with an owner who is "+end.name, visitor)
		if status := other.status("GET", other.portOf(id, "3000")+"/"); status != http.StatusUnauthorized {
			t.Errorf("the public port with an owner who is %s: %d", end.name, status)
		}
		end.undo()
	}
	// Both count again.
	_, guest = other.enter("uma", id)
	guest.Close()
	public().Close()
}

func (s *server) accountOf(user string) (id string) {
	s.Helper()
	accounts, err := s.api.Accounts(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	for _, a := range accounts {
		if a.Username == user {
			return a.ID
		}
	}
	s.Fatalf("there is no user %s", user)
	return ""
}

func (s *server) disable(account string, disabled bool) {
	s.Helper()
	if _, err := s.api.PatchAccount(s.Context(), account, api.PatchAccount{Disabled: &disabled}); err != nil {
		s.Fatal(err)
	}
}
