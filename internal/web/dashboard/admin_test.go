package dashboard

import (
	"context"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"codehub/internal/control/admin"
	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// servers inserts two servers and the backends that they cannot reach into the database.
func (w *world) servers() {
	w.t.Helper()
	w.Exec(`INSERT INTO replicas (id, hostname, version, started_at, seen_at, flushed_at, health) VALUES
		('01900000-0000-7000-8000-0000000000a1', 'alpha.example', '1.2.0', now() - interval '3 days', now(), now(), '{"backends": {"engine": {"state": "closed", "since": "2026-03-01T10:00:00Z", "failures": 0}, "bucket": {"state": "open", "since": "2026-03-01T10:00:00Z", "failures": 7, "error": "dial tcp <10.0.0.9>:9000: connection refused"}}, "conditions": [{"name": "disk", "since": "2026-03-01T10:00:00Z", "error": "/srv <home> is full"}]}'),
		('01900000-0000-7000-8000-0000000000a2', 'beta.example', '1.1.9', now() - interval '9 days', now() - interval '1 hour', NULL, '{}')`)
	w.Exec(`INSERT INTO orphans (kind, name, workspace_id, detail, first_seen_at) VALUES
		('container', 'codehub-ws-0198c0de-0000-7000-8000-000000000009', '0198c0de-0000-7000-8000-000000000009', 'Up 3 days <b>', now() - interval '10 minutes')`)
	w.Exec(`INSERT INTO orphans (kind, name, detail, first_seen_at, kept) VALUES ('volume', 'ws-0198c0de-0000-7000-8000-000000000009-home', '', now() - interval '2 days', true)`)
}

func (w *world) userID(name string) string {
	w.t.Helper()
	u, err := w.DB.UserByName(w.t.Context(), name)
	if err != nil {
		w.t.Fatal(err)
	}
	return u.ID
}

func TestAdminPage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.servers()
	w.add("one", standby)
	w.want(w.add("two", operating(standby, workspace.OpStarting)), "desired_state", "RUNNING")
	w.person("ann")
	b := w.loggedIn()
	contains(t, "the list", b.get("/").body, `<a href="/admin">Administration</a>`)
	page := b.get("/admin").body
	contains(t, "the page", page, `<a href="/admin" aria-current="page">`, "alpha.example", "Version 1.2.0", "beta.example", "not responding",
		"Docker</strong>: responding", "Archive storage</strong>: not responding, will be retried", "dial tcp &lt;10.0.0.9&gt;:9000: connection refused",
		"Stopped 2", "Starting 1", "Up 3 days &lt;b&gt;", "will be removed in", "not removed automatically", ">Container<", ">Volume<",
		"1 of 2<", "0 of 2<", "2, no limit", "0, no limit", "0 B, no limit", ">server<", ">ann<", ">you<", ">administrator<",
		"Activity recorded through", "Automatic stops are paused until activity is recorded again.", `sse-connect="/dashboard/events?admin=1&amp;cursor=&amp;seen=`)
	lacks(t, "the page", page, "Lost home volumes", "Failed deletions")
	lost := w.add("thesis", volumeLost)
	contains(t, "a lost volume", b.get("/admin").body, "Lost home volumes", ">thesis<", lost.VolumeName())
	w.Exec(`UPDATE activity_clock SET watched_until = now() - interval '20 seconds'`)
	page = b.get("/admin").body
	lacks(t, "watched", page, "Automatic stops are paused")
	w.Exec(`INSERT INTO audit_log (username, action, target, details) VALUES ('system', 'workspace.desired_state', $1, '{"cause": "idle"}')`, string(lost))
	contains(t, "what idle timeouts stopped", b.get("/admin").body, "Last observed", "Last tick", `data-idle-stop="`+string(lost)+`"`, "Stopped because of inactivity")
	contains(t, "in Korean", b.get("/admin", "Accept-Language", "ko").body, "활동 기록 시각", "정상", "자동으로 제거되지 않음")
	// Administrators cannot lock themselves out by accident.
	self := "/admin/people/" + w.userID("admin")
	lacks(t, "the page", page, self+"/disable", self+"/take-admin", self+"/password")

	page = b.get("/admin?find=AN").body
	contains(t, "one user", page, `value="AN"`, ">ann<", "find=AN")
	lacks(t, "one user", page, ">you<")
	contains(t, "no user", b.get("/admin?find=nobody").body, "No user matches.")

	// The stream does not send what the page already shows.
	b.listen(html.UnescapeString(regexp.MustCompile(`sse-connect="/dashboard/events([^"]+)"`).FindStringSubmatch(b.get("/admin").body)[1])).until("hello")
	l := b.listen("?admin=1&cursor=")
	l.until("update", `id="admin-status"`, `id="admin-people"`, `id="admin-orphans"`, "ann")
	if _, err := w.Auth.CreateUser(t.Context(), "new-here", "another password", false); err != nil {
		t.Fatal(err)
	}
	l.until("update", `id="admin-people"`, "new-here")
}

func TestAdminStreamEndsWithTheRights(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := w.Auth.CreateUser(t.Context(), "second", "another password", true); err != nil {
		t.Fatal(err)
	}
	b := w.browser()
	b.post("/login", url.Values{"username": {"second"}, "password": {"another password"}})
	l := b.listen("?admin=1")
	l.until("update", `id="admin-people"`)
	w.Exec(`UPDATE users SET admin = false WHERE username = 'second'`)
	ev := l.until("update", `id="admin-over"`, "You are not an administrator of this server")
	lacks(t, "after that", ev.data, "admin-people")
}

func TestUserAdministration(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	contains(t, "the form", b.get("/admin/people/new").body, "Add user", `type="password"`, `autocomplete="new-password"`, "Limit of groups, else server (2)")
	for name, c := range map[string]struct {
		form url.Values
		want string
	}{
		"nothing":                 {url.Values{"limit": {"server"}}, "This field is required."},
		"a short one":             {url.Values{"username": {"ann"}, "password": {"short"}, "password2": {"short"}, "limit": {"server"}}, "at least 8 characters"},
		"another":                 {url.Values{"username": {"ann"}, "password": {"a long password"}, "password2": {"a longer password"}, "limit": {"server"}}, "do not match"},
		"a bad limit":             {url.Values{"username": {"ann"}, "password": {"a long password"}, "password2": {"a long password"}, "limit": {"own"}, "limit_n": {"0"}}, "between 1 and"},
		"a bad name":              {url.Values{"username": {"an n"}, "password": {"a long password"}, "password2": {"a long password"}, "limit": {"server"}}, "starts with a letter or digit"},
		"a name in use":           {url.Values{"username": {"ADMIN"}, "password": {"a long password"}, "password2": {"a long password"}, "limit": {"server"}}, "username is already taken"},
		"a name that is too long": {url.Values{"username": {strings.Repeat("x", 65)}, "password": {"a long password"}, "password2": {"a long password"}, "limit": {"server"}}, "at most 64"},
	} {
		a := b.htmx("/admin/people", c.form)
		if a.status != http.StatusUnprocessableEntity {
			t.Errorf("%s: %d", name, a.status)
		}
		contains(t, name, a.body, c.want, `id="dialog-form"`)
		lacks(t, name, a.body, "a long password", "short\"")
	}
	a := b.htmx("/admin/people", url.Values{"username": {"ann"}, "password": {"a long password"}, "password2": {"a long password"}, "limit": {"own"}, "limit_n": {"5"}})
	if a.status != http.StatusOK {
		t.Fatalf("add: %d %s", a.status, a.body)
	}
	contains(t, "added", a.body, "The user ann was added.", `id="admin-people"`, "0 of 5", "custom", `id="dialog" hx-swap-oob="innerHTML"`)
	ann := w.browser()
	if a := ann.post("/login", url.Values{"username": {"ann"}, "password": {"a long password"}}); a.status != http.StatusSeeOther {
		t.Fatalf("ann logs in: %d", a.status)
	}

	person := "/admin/people/" + w.userID("ann")
	// The database's notification drops the session from the cache. Without it the session would
	// be known for a minute.
	loggedOut := func() {
		t.Helper()
		harness.EventuallyWithin(t, 30*time.Second, "ann is logged out", func() bool { return ann.get("/").status == http.StatusSeeOther })
	}
	contains(t, "the limit's form", b.get(person+"/limit", "HX-Request", "true").body, "Running limit for ann", `value="5"`, `<option value="own" selected>`)
	contains(t, "no limit", b.htmx(person+"/limit", url.Values{"limit": {"none"}}).body, "The running limit of ann was changed.", "0, no limit", "custom")
	contains(t, "the server's", b.htmx(person+"/limit", url.Values{"limit": {"server"}}).body, "0 of 2")
	contains(t, "another", b.htmx(person+"/limit", url.Values{"limit": {"own"}, "limit_n": {"1000001"}}).body, "between 1 and")

	contains(t, "make admin", b.htmx(person+"/make-admin", nil).body, "ann is now an administrator.")
	if a := ann.get("/admin"); a.status != http.StatusOK {
		t.Errorf("ann's page: %d", a.status)
	}
	contains(t, "remove admin", b.htmx(person+"/take-admin", nil).body, "ann is no longer an administrator.")

	contains(t, "a bad password", b.htmx(person+"/password", url.Values{"password": {"ann-ann-ann"}, "password2": {"x"}}).body, "do not match")
	contains(t, "a password", b.htmx(person+"/password", url.Values{"password": {"quite another one"}, "password2": {"quite another one"}}).body, "The password of ann was changed.")
	loggedOut()
	if a := ann.post("/login", url.Values{"username": {"ann"}, "password": {"quite another one"}}); a.status != http.StatusSeeOther {
		t.Errorf("ann logs in with it: %d", a.status)
	}

	contains(t, "the confirmation", b.get(person+"/disable").body, "Disable ann?", "Their workspaces and files are kept.")
	contains(t, "disable", b.htmx(person+"/disable", nil).body, "ann was disabled.", ">disabled<", person+"/enable")
	loggedOut()
	contains(t, "enable", b.htmx(person+"/enable", nil).body, "ann was enabled.")

	// No request can demote the last administrator.
	self := "/admin/people/" + w.userID("admin")
	for _, p := range []string{"/take-admin", "/disable"} {
		a := b.htmx(self+p, nil)
		if a.status != http.StatusUnprocessableEntity {
			t.Errorf("%s of the last administrator: %d", p, a.status)
		}
		contains(t, p, a.body, "This is the only administrator")
	}
	// Without scripts.
	if a := b.post(person+"/make-admin", nil); a.header.Get("Location") != "/admin?note=person" {
		t.Errorf("without scripts: %d %s", a.status, a.header.Get("Location"))
	}
	contains(t, "after the redirect", b.get("/admin?note=person").body, "The change was saved.")
	for _, p := range []string{"/admin/people/nobody/limit", "/admin/people/0198c0de-0000-7000-8000-000000000001/disable"} {
		if a := b.post(p, nil); a.status != http.StatusNotFound {
			t.Errorf("%s: %d", p, a.status)
		}
	}
}

// lostNodes has one node that does not respond, until it is confirmed to be dead.
type lostNodes struct {
	found []runtime.LostNode
	dead  []string
}

func (n *lostNodes) LostNodes(context.Context) ([]runtime.LostNode, error) { return n.found, nil }

func (n *lostNodes) NodeIsDead(_ context.Context, name string) (int, error) {
	n.found, n.dead = nil, append(n.dead, name)
	return 1, nil
}

// Pages call the cluster by its name. A workspace on a node that does not respond says so, and
// an administrator confirms that the node is dead.
func TestLostNode(t *testing.T) {
	t.Parallel()
	nodes := &lostNodes{}
	w := newWorld(t, func(c *Config) {
		c.StorageBackend = workspace.StorageKubernetes
		c.Admin = admin.New(admin.Config{Store: c.Store, Passwords: c.Auth, Runtime: "kubernetes", Nodes: nodes})
	})
	w.servers()
	w.Exec(`UPDATE replicas SET health = '{"backends": {"engine": {"state": "closed", "since": "2026-03-01T10:00:00Z", "failures": 0}}, "conditions": [{"name": "isolation", "since": "2026-03-01T10:00:00Z", "error": "` +
		runtime.MsgPoliciesIgnored + " " + runtime.MsgReached + " " + runtime.ReachedWorkspace + ` (10.0.0.1:8080)"}]}' WHERE hostname = 'alpha.example'`)
	lost := w.add("thesis", func(ws *workspace.Workspace) {
		running(ws)
		ws.Conditions = ws.Conditions.With(workspace.ContainerReady, true, workspace.ReasonNodeUnreachable, fmt.Sprintf(workspace.MsgNodeLost, "node1"), time.Now().UTC())
	})
	nodes.found = []runtime.LostNode{{Name: "node1", Since: time.Now(), Workspaces: []workspace.ID{lost}}}
	b := w.loggedIn()
	detail := "/workspaces/" + string(lost)
	contains(t, "the workspace", b.get(detail).body, "Node unreachable", "The node node1 does not respond")
	contains(t, "the workspace in Korean", b.get(detail, "Accept-Language", "ko").body, "노드에 연결할 수 없습니다", "노드 node1: 응답하지 않으며")

	page := b.get("/admin").body
	contains(t, "the page", page, "Unreachable nodes", ">node1<", "stopped responding", "thesis (admin)", "Confirm dead node", runtime.MsgPoliciesIgnored, "Kubernetes")
	lacks(t, "the page", page, "Docker")
	ko := b.get("/admin", "Accept-Language", "ko").body
	contains(t, "the page in Korean", ko, "연결할 수 없는 노드", "응답 중단:", "노드 중단 확인", "다른 워크스페이스 (10.0.0.1:8080)")
	lacks(t, "the page in Korean", ko, "Docker")

	if a := b.post("/admin/nodes/node1/dead", url.Values{}); a.status != http.StatusBadRequest || len(nodes.dead) > 0 {
		t.Errorf("without a confirmation: %d, %v", a.status, nodes.dead)
	}
	b.post("/admin/nodes/node1/dead", url.Values{"confirm": {"yes"}})
	if !slices.Equal(nodes.dead, []string{"node1"}) {
		t.Errorf("dead: %v", nodes.dead)
	}
	lacks(t, "the page afterwards", b.get("/admin").body, "Unreachable nodes")
}
