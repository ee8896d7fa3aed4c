package gitaccess_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/pgtest"
	"codehub/internal/users/gitaccess"
	"codehub/internal/users/sealed"
	"codehub/internal/workspace"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

type env struct {
	*testing.T
	*fixture.Database
	keys *sealed.Ring
	*gitaccess.Service
}

func open(t *testing.T) *env {
	t.Helper()
	keys, err := sealed.OpenOrCreate(filepath.Join(t.TempDir(), "secret.key"))
	if err != nil {
		t.Fatal(err)
	}
	d := fixture.NewDatabase(t, postgres.Options{Sharing: true})
	return &env{t, d, keys, gitaccess.New(d.DB, keys)}
}

func (e *env) connect(c workspace.Caller, host, token string) api.GitConnection {
	e.T.Helper()
	made, err := e.Connect(e.T.Context(), c, api.NewGitConnection{Host: host, Login: c.Username, Token: token})
	if err != nil {
		e.Fatal(err)
	}
	return made
}

// inside is a program in a workspace.
func inside(owner workspace.Caller, w workspace.Workspace) workspace.Caller {
	return workspace.Caller{UserID: owner.UserID, Username: owner.Username, Only: w.ID, Inside: true}
}

// asks is the answer to a program in a workspace, or the code of the refusal.
func (e *env) asks(owner workspace.Caller, w workspace.Workspace, host string) string {
	e.T.Helper()
	c, err := e.Credential(e.T.Context(), inside(owner, w), host, "")
	if err != nil {
		return string(workspace.CodeOf(err))
	}
	return c.Username + ":" + c.Password
}

func TestParseHost(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"github.com": "github.com", " GitHub.com/ ": "github.com", "https://GitHub.com": "github.com", "https://github.com:443/": "github.com",
		"github.com:8443": "github.com:8443", "http://git.local": "http://git.local", "HTTP://git.local:80": "http://git.local", "http://git.local:443": "http://git.local:443",
		"localhost:3000": "localhost:3000", "10.0.0.1": "10.0.0.1", "[::1]": "[::1]", "https://[0:0::1]:8443": "[::1]:8443", "git_server": "git_server",
		"": "", "https://": "", "ssh://github.com": "", "http://https://github.com": "", "ann@github.com": "", "https://ann:pw@github.com": "", "github.com/team": "",
		"github.com?x": "", "github.com#x": "", "github.com.": "", "-x.com": "", "a..b": "", "github.com:0": "", "github.com:065": "", "github.com:65536": "", "github.com:": "",
		"::1": "", "[::1": "", "[1.2.3.4]": "", "[fe80::1%eth0]": "", "git hub.com": "", "github.com\nhost=evil.com": "", "*.github.com": "", "gïthub.com": "",
	} {
		got, err := gitaccess.ParseHost(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q is %q, want %q (%v)", in, got, want, err)
		}
		if err == nil {
			if again, err := gitaccess.ParseHost(got); again != got || err != nil {
				t.Errorf("%q is %q, %v", got, again, err)
			}
		}
	}
}

// A token answers for its own host, scheme and port, and for its own user.
func TestCredentialOfHost(t *testing.T) {
	t.Parallel()
	e := open(t)
	ann, bob := e.AddUser("ann"), e.AddUser("bob")
	web, other := e.AddWorkspace(ann, "web"), e.AddWorkspace(bob, "other")
	e.connect(ann, "Git.example.com", "old")
	e.connect(ann, "https://git.example.com:443", "secure\n")
	e.connect(ann, "http://git.example.com", "plain")
	e.connect(ann, "git.example.com:8443", "port")
	for host, want := range map[string]string{
		"https://git.example.com": "ann:secure", "https://GIT.example.com:443": "ann:secure", "git.example.com": "ann:secure",
		"http://git.example.com": "ann:plain", "http://git.example.com:443": "not_found", "https://git.example.com:80": "not_found",
		"https://git.example.com:8443": "ann:port", "http://git.example.com:8443": "not_found",
		"https://example.com": "not_found", "https://x.git.example.com": "not_found", "https://git.example.com.evil.org": "not_found", "ssh://git.example.com": "invalid_request",
	} {
		if got := e.asks(ann, web, host); got != want {
			t.Errorf("%s: %s, want %s", host, got, want)
		}
	}
	if got := e.asks(bob, other, "git.example.com"); got != "not_found" {
		t.Errorf("another user: %s", got)
	}
	if _, err := e.Credential(t.Context(), ann, "git.example.com", ""); workspace.CodeOf(err) != workspace.CodeForbidden {
		t.Errorf("outside a workspace: %v", err)
	}
	list, err := e.List(t.Context(), ann)
	if err != nil || len(list) != 3 || list[0].Host != "git.example.com" || list[0].Login != "ann" || list[0].Kind != api.GitToken {
		t.Fatal(list, err)
	}
	if _, err := e.Disconnect(t.Context(), bob, list[0].ID); workspace.CodeOf(err) != workspace.CodeNotFound {
		t.Errorf("another user disconnects: %v", err)
	}
	if _, err := e.Disconnect(t.Context(), ann, list[0].ID); err != nil {
		t.Error(err)
	}
	if got := e.asks(ann, web, "git.example.com"); got != "not_found" {
		t.Errorf("disconnected: %s", got)
	}
}

// Neither rows nor the audit log have a token, and one opens for its own row, user and host alone.
func TestTokenIsSealed(t *testing.T) {
	t.Parallel()
	e := open(t)
	ann, bob := e.AddUser("ann"), e.AddUser("bob")
	web := e.AddWorkspace(ann, "web")
	c, err := e.Store(t.Context(), ann, api.GitConnection{Host: "git.example.com", Kind: api.GitOAuth, Provider: "git", Login: "ann"}, gitaccess.Tokens{Access: "hunter2", Refresh: "hunter3"})
	if err != nil {
		t.Fatal(err)
	}
	e.connect(ann, "evil.example.com", "x")
	e.connect(bob, "git.example.com", "hunter4")
	if _, err := e.Disconnect(t.Context(), ann, e.connect(ann, "gone.example.com", "hunter5").ID); err != nil {
		t.Fatal(err)
	}
	dump := fixture.Query[string](e.Database, `SELECT concat((SELECT string_agg(c::text, '') FROM git_connections c), (SELECT string_agg(a::text, '') FROM audit_log a))`)
	if strings.Contains(dump, "hunter") || !strings.Contains(dump, postgres.AuditGitConnect) || !strings.Contains(dump, postgres.AuditGitDisconnect) {
		t.Error(dump)
	}
	stored, err := e.DB.GitTokensFor(t.Context(), ann.UserID, c.Host)
	if err != nil {
		t.Fatal(err)
	}
	if tokens, err := e.Open(stored); err != nil || tokens.Access != "hunter2" || tokens.Refresh != "hunter3" {
		t.Errorf("%+v, %v", tokens, err)
	}
	keys := func() (n int) {
		if err := e.DB.SealedValues(t.Context(), func(v postgres.SealedValue) error {
			n++
			_, err := e.keys.Open(v.Value, v.Owner)
			return err
		}); err != nil {
			t.Error(err)
		}
		return n
	}
	if n := keys(); n != 4 {
		t.Errorf("%d sealed values", n)
	}
	for what, sql := range map[string]string{
		"host":    `UPDATE git_connections SET access_token = (SELECT access_token FROM git_connections WHERE host = 'git.example.com' AND login = 'ann') WHERE host = 'evil.example.com'`,
		"user":    `UPDATE git_connections SET access_token = (SELECT access_token FROM git_connections WHERE login = 'bob') WHERE login = 'ann'`,
		"refresh": `UPDATE git_connections SET access_token = refresh_token WHERE refresh_token IS NOT NULL`,
	} {
		e.Exec(sql)
		host := map[string]string{"host": "evil.example.com"}[what]
		if host == "" {
			host = "git.example.com"
		}
		if got := e.asks(ann, web, host); got != "unavailable" {
			t.Errorf("a token of another %s: %s", what, got)
		}
	}
}

// apps has an app for git.example.com and gist.example.com, whose tokens are those of a function.
type apps func(host, rejected string) (gitaccess.Tokens, error)

func (apps) Primary(host string) string { return strings.Replace(host, "gist.", "git.", 1) }

func (f apps) Fresh(_ context.Context, c postgres.GitTokens, rejected string) (gitaccess.Tokens, error) {
	return f(c.Host, rejected)
}

func (apps) Ending(context.Context, workspace.Caller, string) (func() bool, error) {
	return func() bool { return true }, nil
}

func TestFreshTokens(t *testing.T) {
	t.Parallel()
	e := open(t)
	ann := e.AddUser("ann")
	web := e.AddWorkspace(ann, "web")
	if _, err := e.Store(t.Context(), ann, api.GitConnection{Host: "git.example.com", Kind: api.GitOAuth, Provider: "git", Login: "oauth2"}, gitaccess.Tokens{Access: "old", Refresh: "r"}); err != nil {
		t.Fatal(err)
	}
	e.connect(ann, "other.example.com", "token")
	if got := e.asks(ann, web, "git.example.com"); got != "oauth2:old" {
		t.Error(got)
	}
	var fail error
	e.Apps = apps(func(host, rejected string) (gitaccess.Tokens, error) {
		return gitaccess.Tokens{Access: "fresh " + host + rejected}, fail
	})
	if got := e.asks(ann, web, "gist.example.com"); got != "oauth2:fresh git.example.com" {
		t.Error(got)
	}
	if got := e.asks(ann, web, "git.example.com"); got != "oauth2:fresh git.example.com" {
		t.Error(got)
	}
	if got := e.asks(ann, web, "other.example.com"); got != "ann:token" {
		t.Error(got)
	}
	// A token that a user entered is for its own host alone.
	bob := e.AddUser("bob")
	e.connect(bob, "git.example.com", "entered")
	if got := e.asks(bob, e.AddWorkspace(bob, "web"), "gist.example.com"); got != "not_found" {
		t.Error(got)
	}
	fail = workspace.Errorf(workspace.CodeUnavailable, "The provider does not answer.")
	if _, err := e.Credential(t.Context(), inside(ann, web), "git.example.com", ""); !errors.Is(err, fail) {
		t.Error(err)
	}
}

// A guest who may run programs in the workspace may be the one who asks.
func TestGuestsAndCredentials(t *testing.T) {
	t.Parallel()
	e := open(t)
	ann, bob, boss := e.AddUser("ann"), e.AddUser("bob"), e.AddUser("boss")
	e.Exec(`UPDATE users SET admin = true WHERE id = $1`, boss.UserID)
	web, other := e.AddWorkspace(ann, "web"), e.AddWorkspace(ann, "other")
	e.connect(ann, "git.example.com", "token")
	e.connect(bob, "git.example.com", "bobs")
	g, err := e.DB.CreateGroup(t.Context(), boss, postgres.Group{Name: "team"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.DB.SetMember(t.Context(), boss, g.ID, "ann", nil); err != nil {
		t.Fatal(err)
	}
	share := func(n postgres.NewShare) string {
		t.Helper()
		made, err := e.DB.Share(t.Context(), ann, web.ID, n)
		if err != nil {
			t.Fatal(err)
		}
		if got := e.asks(ann, other, "git.example.com"); got != "ann:token" {
			t.Errorf("another workspace: %s", got)
		}
		return made.ID
	}
	want := func(what, want string) {
		t.Helper()
		if got := e.asks(ann, web, "git.example.com"); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	share(postgres.NewShare{User: "bob", Access: workspace.AccessView})
	want("a guest who views", "ann:token")
	share(postgres.NewShare{User: "bob", Access: workspace.AccessUse})
	want("a guest who uses", "forbidden")
	share(postgres.NewShare{User: "bob", Access: workspace.AccessUse, Git: true})
	want("allowed", "ann:token")
	team := share(postgres.NewShare{Group: "team", Access: workspace.AccessUse})
	want("a group that is not allowed", "forbidden")
	if err := e.DB.Unshare(t.Context(), ann, web.ID, team); err != nil {
		t.Fatal(err)
	}
	want("after the share", "ann:token")
	if _, err := e.DB.Share(t.Context(), ann, web.ID, postgres.NewShare{User: "bob", Access: workspace.AccessView, Git: true}); workspace.CodeOf(err) != workspace.CodeInvalid {
		t.Errorf("for view: %v", err)
	}
	if n := fixture.Query[int](e.Database, `SELECT count(*)::int FROM audit_log WHERE action = 'workspace.share' AND details ->> 'git' = 'true'`); n != 1 {
		t.Errorf("%d shares with Git in the audit log", n)
	}
}

func TestRefusedConnections(t *testing.T) {
	t.Parallel()
	e := open(t)
	ann := e.AddUser("ann")
	for name, c := range map[string]struct {
		in    api.NewGitConnection
		field string
	}{
		"host":           {api.NewGitConnection{Host: "github.com/team", Login: "ann", Token: "x"}, "host"},
		"no login":       {api.NewGitConnection{Host: "github.com", Login: " ", Token: "x"}, "login"},
		"two lines":      {api.NewGitConnection{Host: "github.com", Login: "ann\nhost=x", Token: "x"}, "login"},
		"empty":          {api.NewGitConnection{Host: "github.com", Login: "ann", Token: "\n"}, "token"},
		"lines of token": {api.NewGitConnection{Host: "github.com", Login: "ann", Token: "x\nhost=evil.com"}, "token"},
		"zero":           {api.NewGitConnection{Host: "github.com", Login: "ann", Token: "x\x00"}, "token"},
		"long":           {api.NewGitConnection{Host: "github.com", Login: "ann", Token: strings.Repeat("x", 8<<10+1)}, "token"},
	} {
		_, err := e.Connect(t.Context(), ann, c.in)
		var coded *workspace.Error
		if !errors.As(err, &coded) || coded.Code != workspace.CodeInvalid || coded.Details["field"] != c.field {
			t.Errorf("%s: %v", name, err)
		}
	}
	none := gitaccess.New(e.DB, &sealed.Ring{})
	if _, err := none.Connect(t.Context(), ann, api.NewGitConnection{Host: "github.com", Login: "ann", Token: "x"}); workspace.CodeOf(err) != workspace.CodeNotSupported {
		t.Errorf("without keys: %v", err)
	}
	for i := range postgres.MaxGitConnections {
		e.connect(ann, fmt.Sprintf("git%d.example.com", i), "x")
	}
	e.connect(ann, "git0.example.com", "again")
	if _, err := e.Connect(t.Context(), ann, api.NewGitConnection{Host: "github.com", Login: "ann", Token: "x"}); workspace.CodeOf(err) != workspace.CodeQuotaExceeded {
		t.Errorf("%v", err)
	}
}
