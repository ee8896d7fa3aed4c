package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/control/admin"
	"codehub/internal/runtime"
	"codehub/internal/runtime/imagebuild"
	"codehub/internal/testing/buildtest"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

// boss makes ann an administrator.
func (e *env) boss() {
	e.t.Helper()
	e.Change(`UPDATE users SET admin = true WHERE username = 'ann'`)
	e.Auth.InvalidateAll()
}

func TestAccounts(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.boss()
	made := read[api.Account](t, e.want(201, "", "POST", "/users", `{"username":"carl","password":"long enough","max_running":1}`, as(e.ann)))
	if made.Username != "carl" || made.Admin || made.MaxRunning == nil || *made.MaxRunning != 1 || !workspace.ValidID(made.ID) {
		t.Errorf("%+v", made)
	}
	if l := made.Limits; l.Running != (api.Limit{Max: 1, From: api.LimitOwn}) || l.Workspaces != (api.Limit{From: api.LimitServer}) {
		t.Errorf("limits %+v", l)
	}
	e.want(409, "name_taken", "POST", "/users", `{"username":"CARL","password":"long enough"}`, as(e.ann))
	for _, bad := range []string{
		`{"username":"-x","password":"long enough"}`, `{"username":"x","password":"short"}`, `{"username":"longenough","password":"longenough"}`,
		`{"username":"x","password":"long enough","max_running":-1}`, `{"username":"x","password":"long enough","max_running":1000001}`,
		`{"username":"x","password":"long enough","root":true}`,
	} {
		e.want(400, "invalid_request", "POST", "/users", bad, as(e.ann))
	}
	list := read[api.AccountList](t, e.want(200, "", "GET", "/users", "", as(e.ann)))
	var names []string
	for _, a := range list.Users {
		names = append(names, a.Username)
	}
	if strings.Join(names, " ") != "ann carl eve" || list.NextCursor != "" {
		t.Errorf("%v %q", names, list.NextCursor)
	}
	e.want(400, "invalid_request", "GET", "/users?cursor=%21", "", as(e.ann))
	e.want(400, "invalid_request", "GET", "/users?q=%00", "", as(e.ann))
	for q, want := range map[string]int{"AR": 1, "": 3, "_": 0, "%25": 0} {
		if l := read[api.AccountList](t, e.want(200, "", "GET", "/users?q="+q, "", as(e.ann))); len(l.Users) != want {
			t.Errorf("users with %q: %+v", q, l.Users)
		}
	}

	path := "/users/" + made.ID
	if a := read[api.Account](t, e.want(200, "", "PATCH", path, `{"max_running":null}`, as(e.ann))); a.MaxRunning != nil {
		t.Errorf("%+v", a)
	}
	if a := read[api.Account](t, e.want(200, "", "PATCH", path, `{}`, as(e.ann))); a.Admin || a.Disabled {
		t.Errorf("%+v", a)
	}
	e.want(404, "not_found", "PATCH", "/users/019a0000-0000-7000-8000-000000000001", `{"admin":true}`, as(e.ann))
	e.want(404, "not_found", "PATCH", "/users/nobody", `{"admin":true}`, as(e.ann))
	e.want(400, "invalid_request", "PATCH", path, `{"password":"carl"}`, as(e.ann))
	e.want(400, "invalid_request", "PATCH", "/users/"+e.ann.User.ID, `{"password":"long enough"}`, as(e.ann))
	e.want(409, "last_admin", "PATCH", "/users/"+e.ann.User.ID, `{"admin":false}`, as(e.ann))
	e.want(409, "last_admin", "PATCH", "/users/"+e.ann.User.ID, `{"disabled":true}`, as(e.ann))
	e.want(200, "", "PATCH", path, `{"admin":true}`, as(e.ann))
	e.want(200, "", "PATCH", "/users/"+e.ann.User.ID, `{"admin":false}`, as(e.ann))
	e.want(403, "forbidden", "GET", "/users", "", as(e.ann)) // at once
	if n := fixture.Query[int](e, `SELECT count(*) FROM audit_log WHERE username = 'ann' AND host(address) = '127.0.0.1' AND (action = 'user.create' AND target = $1 OR action = 'user.change' AND details ? 'admin')`, made.ID); n != 3 {
		t.Errorf("%d entries in the audit log", n)
	}
}

func TestChangePassword(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	other := e.enter("eve")
	const next = "a better horse"
	e.want(403, "forbidden", "POST", "/users/me/password", `{"current":"wrong","new":"`+next+`"}`, as(e.eve))
	e.want(400, "invalid_request", "POST", "/users/me/password", `{"current":"`+password+`","new":"short"}`, as(e.eve))
	e.want(400, "invalid_request", "POST", "/users/me/password", `{"new":"`+next+`"}`, as(e.eve))
	e.want(200, "", "GET", "/session", "", as(e.eve))
	a := e.want(204, "", "POST", "/users/me/password", `{"current":"`+password+`","new":"`+next+`"}`, as(e.eve))
	e.want(401, "unauthenticated", "GET", "/session", "", as(e.eve))
	e.want(401, "unauthenticated", "GET", "/session", "", as(other))
	cookies := (&http.Response{Header: a.header}).Cookies()
	if len(cookies) != 1 {
		t.Fatalf("cookies %v", cookies)
	}
	e.want(200, "", "GET", "/session", "", func(r *http.Request) { r.AddCookie(cookies[0]) })
	e.want(401, "bad_credentials", "POST", "/login", `{"username":"eve","password":"`+password+`"}`)
	e.want(200, "", "POST", "/login", `{"username":"eve","password":"`+next+`"}`)

	// A token may change the password too, and is revoked by that; wrong passwords are limited
	// like logins.
	_, secret, err := e.Auth.CreateToken(t.Context(), auth.Identity{Caller: e.ann.Caller}, "x", nil, auth.TokenLimits{})
	if err != nil {
		t.Fatal(err)
	}
	a = e.want(204, "", "POST", "/users/me/password", `{"current":"`+password+`","new":"`+next+`"}`, header(api.TokenHeader, secret))
	if a.header.Get("Set-Cookie") != "" {
		t.Error("a token was given a session")
	}
	e.want(401, "unauthenticated", "GET", "/session", "", header(api.TokenHeader, secret))
	ann, err := e.Auth.Login(t.Context(), "ann", next, auth.Client{UserAgent: "test"})
	if err != nil {
		t.Fatal(err)
	}
	p := person{ann, e.Auth.Cookie(ann)}
	for range 5 {
		e.want(403, "forbidden", "POST", "/users/me/password", `{"current":"wrong","new":"`+password+`"}`, as(p))
	}
	e.want(429, "locked_out", "POST", "/users/me/password", `{"current":"`+next+`","new":"`+password+`"}`, as(p))
}

func TestAdminStatus(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.boss()
	ws := e.workspace(e.eve, "one")
	e.Change(`UPDATE workspaces SET operation = 'PROVISIONING', op_id = gen_random_uuid(), op_started_at = now() WHERE id = $1`, ws.ID)
	e.Change(`INSERT INTO replicas (id, hostname, version, health, seen_at) VALUES
		('019a0000-0000-7000-8000-000000000001', 'one', '1', '{"backends": {"engine": {"state": "open", "since": "2026-01-01T00:00:00Z", "failures": 5}},
			"ticked_at": "2026-01-02T00:00:00Z", "observed_at": "2026-01-01T00:00:00Z", "conditions": [{"name": "disk", "since": "2026-01-01T00:00:00Z", "error": "full"}]}', now()),
		('019a0000-0000-7000-8000-000000000002', 'two', '1', '[]', now() - interval '2 minutes')`)
	if _, err := e.Conn().Exec(t.Context(), `
		WITH locked AS (SELECT pg_advisory_lock(7165055918876746241)) -- package lease's
		INSERT INTO leader (replica_id, pid, backend_start)
		SELECT '019a0000-0000-7000-8000-000000000001', pid, backend_start FROM pg_stat_activity, locked WHERE pid = pg_backend_pid()`); err != nil {
		t.Fatal(err)
	}
	s := read[api.AdminStatus](t, e.want(200, "", "GET", "/admin/status", "", as(e.ann)))
	if len(s.Servers) != 2 || s.Phases["PENDING"] != 1 || s.Operations["PROVISIONING"] != 1 || s.PerUser != 100 || s.MaxRunning != 0 {
		t.Fatalf("%+v", s)
	}
	if one, two := s.Servers[0], s.Servers[1]; !one.Leads || !one.Alive || one.Backends["engine"].State != api.BreakerOpen || two.Leads || two.Alive || two.Backends == nil ||
		len(one.Conditions) != 1 || one.Conditions[0].Error != "full" || two.Conditions == nil {
		t.Errorf("%+v", s.Servers)
	}
	if s.TickedAt == nil || s.TickedAt.Day() != 2 || s.ObservedAt == nil || s.ObservedAt.Day() != 1 {
		t.Errorf("last tick %v, observed %v", s.TickedAt, s.ObservedAt)
	}
	if s.LostArchives == nil || s.LostVolumes == nil || s.FailedDeletions == nil || s.IdleStops == nil {
		t.Errorf("an empty list is null: %+v", s)
	}
	gone := e.workspace(e.eve, "gone")
	e.Change(`UPDATE workspaces SET phase = 'DELETING', deleted_at = now(), error_reason = 'Timeout', error_message = 'in use', home_ctx = '{"state": "deleting"}' WHERE id = $1`, gone.ID)
	e.Change(`UPDATE workspaces SET phase = 'ERROR', error_reason = 'DataLost', home_ctx = '{"state": "live"}', operation = 'NONE', op_id = NULL,
		conditions = '{"storage.volume_ready": {"status": "False", "reason": "NoVolume"}}' WHERE id = $1`, ws.ID)
	s = read[api.AdminStatus](t, e.want(200, "", "GET", "/admin/status", "", as(e.ann)))
	if f := s.FailedDeletions; len(f) != 1 || f[0].WorkspaceID != string(gone.ID) || f[0].Owner != "eve" || f[0].Reason != "Timeout" || f[0].Message != "in use" || f[0].Retrying {
		t.Errorf("%+v", f)
	}
	if l := s.LostVolumes; len(l) != 1 || l[0].WorkspaceID != string(ws.ID) || l[0].Reason != "NoVolume" || l[0].Volume != ws.ID.VolumeName() {
		t.Errorf("%+v", l)
	}
	e.Change(`UPDATE workspaces SET error_reason = 'ActionFailed' WHERE id = $1`, gone.ID)
	s = read[api.AdminStatus](t, e.want(200, "", "GET", "/admin/status", "", as(e.ann)))
	if f := s.FailedDeletions; len(f) != 1 || !f[0].Retrying {
		t.Errorf("%+v", f)
	}
	e.Change(`INSERT INTO orphans (kind, name, kept) VALUES ('volume', 'v', true), ('container', 'c', false)`)
	l := read[api.OrphanList](t, e.want(200, "", "GET", "/admin/orphans", "", as(e.ann)))
	if len(l.Orphans) != 2 || l.Orphans[0].RemovedAfter == nil || l.Orphans[1].RemovedAfter != nil {
		t.Errorf("%+v", l)
	}
}

// lostNodes has one node that does not respond, until it is confirmed to be dead.
type lostNodes struct {
	mu   sync.Mutex
	list []runtime.LostNode
}

func (n *lostNodes) LostNodes(context.Context) ([]runtime.LostNode, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.list, nil
}

func (n *lostNodes) NodeIsDead(_ context.Context, name string) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.list) == 0 || n.list[0].Name != name {
		return 0, runtime.ErrNotFound
	}
	if time.Since(n.list[0].Since) < time.Minute {
		return 0, &runtime.BusyError{Reason: "just now"}
	}
	n.list = nil
	return 1, nil
}

// An administrator sees the nodes that do not respond, and confirms once that one is dead,
// which the audit log records.
func TestConfirmDeadNode(t *testing.T) {
	t.Parallel()
	nodes := &lostNodes{}
	e := newEnv(t, func(c *Config) {
		c.Admin = admin.New(admin.Config{Store: c.Store, Passwords: c.Auth, Runtime: "kubernetes", Nodes: nodes})
	})
	e.boss()
	ws := e.workspace(e.eve, "one")
	nodes.list = []runtime.LostNode{{Name: "node1", Since: time.Now(), Workspaces: []workspace.ID{ws.ID}}}
	s := read[api.AdminStatus](t, e.want(200, "", "GET", "/admin/status", "", as(e.ann)))
	if n := s.LostNodes; s.Runtime != "kubernetes" || len(n) != 1 || n[0].Name != "node1" || len(n[0].Workspaces) != 1 || n[0].Workspaces[0].Name != "one" || n[0].Workspaces[0].Owner != "eve" {
		t.Errorf("%+v", s)
	}
	e.want(403, "forbidden", "POST", "/admin/nodes/node1/dead", "", as(e.eve))
	e.want(404, "not_found", "POST", "/admin/nodes/node2/dead", "", as(e.ann))
	if len(nodes.list) != 1 {
		t.Fatal("a refused confirmation had an effect")
	}
	e.want(503, "unavailable", "POST", "/admin/nodes/node1/dead", "", as(e.ann))
	nodes.list[0].Since = time.Now().Add(-time.Hour)
	dead := read[api.DeadNode](t, e.want(200, "", "POST", "/admin/nodes/node1/dead", "", as(e.ann)))
	if dead.Name != "node1" || dead.Removed != 1 {
		t.Errorf("%+v", dead)
	}
	e.want(404, "not_found", "POST", "/admin/nodes/node1/dead", "", as(e.ann))
	var recorded int
	err := e.Conn().QueryRow(t.Context(), `SELECT count(*) FROM audit_log WHERE action = 'node.dead' AND target = 'node1' AND username = 'ann'`).Scan(&recorded)
	if err != nil || recorded != 3 {
		t.Errorf("%d records, %v", recorded, err)
	}
}

// An administrator sees the images that the server makes, and has a failed one made again.
func TestImagesOfServer(t *testing.T) {
	t.Parallel()
	program := buildtest.New(t, buildtest.Image{Name: "ide", Ref: "codehub/ide:latest"})
	builder, err := imagebuild.New(t.Context(), imagebuild.Config{Program: program.Path, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	e := newEnv(t, func(c *Config) {
		c.Admin = admin.New(admin.Config{Store: c.Store, Passwords: c.Auth, Builds: builder})
	})
	e.boss()
	program.Fail("ide")
	ctx, end := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { builder.Run(ctx) })
	t.Cleanup(running.Wait)
	t.Cleanup(end)
	image := func() api.ImageBuild {
		s := read[api.AdminStatus](t, e.want(200, "", "GET", "/admin/status", "", as(e.ann)))
		if len(s.Images) != 1 {
			t.Fatalf("%+v", s.Images)
		}
		return s.Images[0]
	}
	harness.Eventually(t, "the build fails", func() bool { return image().State == "failed" })
	got := image()
	if got.Name != "ide" || got.Image != "codehub/ide:latest" || got.Step != 2 || got.Steps != 2 || got.StepText != "build ide" ||
		got.Error != "exit status 3" || !slices.Contains(got.Log, "no route to the host of ide") || got.StartedAt == nil || got.EndedAt == nil {
		t.Errorf("%+v", got)
	}
	e.want(403, "forbidden", "POST", "/admin/images/ide/retry", "", as(e.eve))
	e.want(404, "not_found", "POST", "/admin/images/full/retry", "", as(e.ann))
	program.Finish("ide")
	if again := read[api.ImageBuild](t, e.want(200, "", "POST", "/admin/images/ide/retry", "", as(e.ann))); again.State == "failed" || again.Error != "" {
		t.Errorf("%+v", again)
	}
	harness.Eventually(t, "the image is ready", func() bool { return image().State == "ready" })
}

// TestInvitations: a user without a password gets a link, whose secret is in that answer alone.
func TestInvitations(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.boss()
	secret := func(a api.Account) string {
		t.Helper()
		link, secret, _ := strings.Cut(a.InvitationURL, "#")
		if link != e.URL.String()+"/invitation" || a.InvitedUntil == nil || time.Until(*a.InvitedUntil).Round(time.Hour) != 72*time.Hour {
			t.Fatalf("%+v", a)
		}
		return secret
	}
	made := read[api.Account](t, e.want(201, "", "POST", "/users", `{"username":"carl","max_workspaces":2}`, as(e.ann)))
	first := secret(made)
	second := secret(read[api.Account](t, e.want(200, "", "POST", "/users/"+made.ID+"/invitation", "", as(e.ann))))
	if _, err := e.Auth.Invited(t.Context(), first, auth.Client{}); workspace.CodeOf(err) != workspace.CodeNotFound {
		t.Errorf("the first link is valid: %v", err)
	}
	list := e.want(200, "", "GET", "/users?q=carl", "", as(e.ann))
	if strings.Contains(list.body, second) || read[api.AccountList](t, list).Users[0].InvitedUntil == nil {
		t.Errorf("%s", list.body)
	}
	e.want(401, "bad_credentials", "POST", "/login", `{"username":"carl","password":"carl"}`)
	for _, bad := range []string{"short", "carl"} {
		if _, err := e.Auth.AcceptInvitation(t.Context(), second, bad, auth.Client{}); workspace.CodeOf(err) != workspace.CodeInvalid {
			t.Errorf("the password %q: %v", bad, err)
		}
	}
	in, err := e.Auth.AcceptInvitation(t.Context(), second, "long enough", auth.Client{})
	if err != nil || in.Session.User.Username != "carl" {
		t.Fatalf("%+v, %v", in, err)
	}
	if _, err := e.Auth.AcceptInvitation(t.Context(), second, "long enough", auth.Client{}); workspace.CodeOf(err) != workspace.CodeNotFound {
		t.Errorf("a second time: %v", err)
	}
	e.want(400, "invalid_request", "POST", "/users/"+e.ann.User.ID+"/invitation", "", as(e.ann))
	e.want(404, "not_found", "POST", "/users/nobody/invitation", "", as(e.ann))
}

// TestImportNamesLines: a list is checked as a whole.
func TestImportNamesLines(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.boss()
	post := func(status int, code, csv string) answer {
		t.Helper()
		body, err := json.Marshal(api.ImportAccounts{CSV: csv})
		if err != nil {
			t.Fatal(err)
		}
		return e.want(status, code, "POST", "/users/import", string(body), as(e.ann))
	}
	for csv, want := range map[string]string{
		"":                                    "1 format",
		"name\n":                              "1 format",
		"user,admin\nx,\n":                    "1 columns 1 columns",
		"name,name\nx,y\n":                    "1 columns",
		"name,admin\nx\n\nEVE,\n\"a b\",no\n": "2 columns 4 taken 5 value 5 name",
		"name\nx\nX\n\"y\n":                   "3 twice 4 format",
		"name,max_running,max_bytes\nx,-1,\ny,,1.5\nz,1000001,99999999999999999\n": "2 value 3 value 4 value 4 value",
		"name\n" + strings.Repeat("u\n", 1001):                                     "",
	} {
		a := post(400, "invalid_request", csv)
		var body struct {
			Details struct{ Lines []api.ImportProblem }
		}
		if err := json.Unmarshal([]byte(a.body), &body); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range body.Details.Lines {
			got = append(got, fmt.Sprint(p.Line, " ", p.Reason))
		}
		if strings.Join(got, " ") != want && want != "" || len(got) == 0 {
			t.Errorf("%q: %v, want %s", csv, got, want)
		}
	}
	made := read[api.ImportedAccounts](t, post(201, "", "\ufeffName, Admin,max_running\r\nria,TRUE,3\r\ntom,,\r\n"))
	if len(made.Users) != 2 || !made.Users[0].Admin || *made.Users[0].MaxRunning != 3 || made.Users[1].Admin || made.Users[1].MaxRunning != nil || made.Users[1].InvitationURL == "" {
		t.Errorf("%+v", made)
	}
}

var testSettings = api.Settings{Server: "alpha.example", Settings: []api.Setting{{Setting: "CODEHUB_URL", Value: "https://code.example.com", From: api.FromEnvironment}}}

func TestAdminSettings(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.boss()
	if s := read[api.Settings](t, e.want(200, "", "GET", "/admin/settings", "", as(e.ann))); !reflect.DeepEqual(s, testSettings) {
		t.Errorf("%+v", s)
	}
	e.want(403, "forbidden", "GET", "/admin/settings", "", as(e.eve))
	_, limited, err := e.Auth.CreateToken(t.Context(), auth.Identity{Caller: e.ann.Caller}, "limited", nil, auth.TokenLimits{Scope: workspace.ScopeWorkspaces})
	if err != nil {
		t.Fatal(err)
	}
	e.want(403, "forbidden", "GET", "/admin/settings", "", header(api.TokenHeader, limited))
}
