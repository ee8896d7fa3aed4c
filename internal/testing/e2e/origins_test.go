package e2e

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/api"
	codehub "codehub/client"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/pgtest"
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

// A ticket lets in the browser that asked for it, once, on the host that it is for. It takes
// over 20 s beside other tests, for a server and two workspaces.
func TestTicketAttacks(t *testing.T) {
	t.Parallel()
	inEach(t, orAll(originModes, siblings), testTicketAttacks)
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
	// A page of the workspace leads its visitor to a ticket for another browser's nonce. The page
	// that says that there is no nonce has the ticket in its address.
	thief = s.visitor("")
	asked, _, _ := thief.follow(s.originOf(mine)+"/", "/_codehub/enter")
	other = s.visitor("admin")
	ticket, _, _ = other.follow(asked+"&again=1", ticketPath)
	if resp, _ := other.step(ticket); resp.StatusCode != 403 {
		t.Errorf("a ticket in a browser without a nonce: %d", resp.StatusCode)
	}
	if last, resp, _ := thief.follow(ticket, ""); resp.StatusCode != 403 {
		t.Errorf("a ticket in the address of a page leads another browser to %s: %d", last, resp.StatusCode)
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
	if last, resp, body := v.follow(s.URL+"/w/"+id+"/", ""); resp.StatusCode != 200 {
		s.Fatalf("%s enters %s: %d %s", user, last, resp.StatusCode, body)
	}
	cookie = v.cookies(s.originOf(id))
	status, conn := s.upgradeAt(s.originOf(id), "Cookie", cookie, "Origin", s.originOf(id))
	if status != 101 {
		s.Fatalf("the WebSocket of %s: %d", user, status)
	}
	return cookie, conn
}

// ends waits until the server has closed a connection.
func (s *server) ends(what string, conn net.Conn) {
	s.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(2 * accessLimit))
	if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
		s.Errorf("%s is open after %v", what, 2*accessLimit)
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
