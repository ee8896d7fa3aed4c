package gitapps

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// resolve reads a file with that text.
func resolve(t testing.TB, text string) (Settings, error) {
	t.Helper()
	s := Settings{File: filepath.Join(t.TempDir(), "git.yaml")}
	if err := os.WriteFile(s.File, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return s, s.Resolve()
}

func TestFileHasDefaultsOfEachType(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("from a file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := resolve(t, `apps:
  - {id: github, type: github, client_id: a/b, client_secret: x}
  - {id: ghes, title: Company GitHub, type: github, url: "https://GitHub.example.com/", client_id: a, client_secret_file: `+secret+`, scopes: [repo]}
  - {id: gitlab, type: gitlab, client_id: a, client_secret: x}
  - id: gitea
    type: gitea
    url: http://git.localhost:3000/sub
    hosts: ["http://git.localhost:3000", Git.Example.com]
    client_id: a
    client_secret: x
    token_url: http://127.0.0.1:3000/token
  - {id: forgejo, type: forgejo, url: "https://codeberg.org", client_id: a, client_secret: x}
  - {id: cloud, type: bitbucket, client_id: a, client_secret: x}
  - {id: server, type: bitbucket, url: "https://bitbucket.example.com", client_id: a, client_secret: x}
`)
	if err != nil {
		t.Fatal(err)
	}
	type row struct{ Title, Authorize, Token, User, Revoke, Hosts, Scopes string }
	var got []row
	for _, a := range s.Apps {
		got = append(got, row{a.Title, a.authorize, a.token, a.user, a.revoke, strings.Join(a.Hosts, " "), strings.Join(a.Scopes, " ")})
	}
	want := []row{
		{"GitHub", "https://github.com/login/oauth/authorize", "https://github.com/login/oauth/access_token", "https://api.github.com/user", "https://api.github.com/applications/a%2Fb/token", "github.com gist.github.com", "repo read:org workflow"},
		{"Company GitHub", "https://github.example.com/login/oauth/authorize", "https://github.example.com/login/oauth/access_token", "https://github.example.com/api/v3/user", "https://github.example.com/api/v3/applications/a/token", "github.example.com", "repo"},
		{"GitLab", "https://gitlab.com/oauth/authorize", "https://gitlab.com/oauth/token", "https://gitlab.com/api/v4/user", "https://gitlab.com/oauth/revoke", "gitlab.com", "api write_repository"},
		{"Gitea", "http://git.localhost:3000/sub/login/oauth/authorize", "http://127.0.0.1:3000/token", "http://git.localhost:3000/sub/api/v1/user", "", "http://git.localhost:3000 git.example.com", "read:user write:repository"},
		{"Forgejo", "https://codeberg.org/login/oauth/authorize", "https://codeberg.org/login/oauth/access_token", "https://codeberg.org/api/v1/user", "", "codeberg.org", "read:user write:repository"},
		{"Bitbucket", "https://bitbucket.org/site/oauth2/authorize", "https://bitbucket.org/site/oauth2/access_token", "https://api.bitbucket.org/2.0/user", "", "bitbucket.org", "account repository:write pullrequest:write"},
		{"Bitbucket", "https://bitbucket.example.com/rest/oauth2/latest/authorize", "https://bitbucket.example.com/rest/oauth2/latest/token", "https://bitbucket.example.com/plugins/servlet/applinks/whoami", "https://bitbucket.example.com/rest/oauth2/latest/revoke", "bitbucket.example.com", "PUBLIC_REPOS REPO_WRITE"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if s.Apps[1].secret != "from a file" {
		t.Errorf("secret %q", s.Apps[1].secret)
	}
	if names := s.Clients(); strings.Contains(names, "from a file") || !strings.Contains(names, "ghes https://github.example.com a") {
		t.Error(names)
	}
}

// A wrong file is refused with the line and the field, and without the secret.
func TestWrongFileNamesLineAndField(t *testing.T) {
	t.Parallel()
	app := func(fields string) string {
		return "apps:\n  - id: one\n    client_id: a\n    client_secret: hush\n" + fields
	}
	for name, c := range map[string]struct{ text, want string }{
		"empty":           {"", "line 1: the file is empty"},
		"no YAML":         {"apps: [", "line 1"},
		"a list":          {"- a", "line 1: the file has to have fields"},
		"no apps":         {"apps: []", "line 1: apps has 0 apps"},
		"unknown":         {app("    type: gitlab\n    colour: red\n"), "line 6: apps[0].colour is unknown"},
		"twice":           {app("    type: gitlab\n    type: gitlab\n"), "line 6: apps[0].type is given twice"},
		"no type":         {app(""), "line 2: apps[0].type is missing"},
		"another type":    {app("    type: cvs\n"), `line 5: apps[0].type is "cvs", and not one of: bitbucket, forgejo, gitea, github, gitlab`},
		"no address":      {app("    type: gitea\n"), "line 2: apps[0].url is missing"},
		"plain http":      {app("    type: gitea\n    url: http://git.example.com\n"), `line 6: apps[0].url is "http://git.example.com", and does not begin with https://`},
		"no host":         {app("    type: gitea\n    url: git.example.com\n"), "line 6: apps[0].url"},
		"token address":   {app("    type: gitlab\n    token_url: ftp://x\n"), "line 6: apps[0].token_url"},
		"hosts":           {app("    type: gitlab\n    hosts:\n      - a.example.com\n      - https://b\n"), `line 8: apps[0].hosts has "https://b"`},
		"hosts no list":   {app("    type: gitlab\n    hosts: a\n"), "line 6: apps[0].hosts has to be a list"},
		"scope":           {app("    type: gitlab\n    scopes: [api, {}]\n"), "line 6: apps[0].scopes has to be one text"},
		"two secrets":     {app("    type: gitlab\n    client_secret_file: /x\n"), "line 6: apps[0].client_secret_file or client_secret"},
		"no secret file":  {"apps: [{id: a, type: gitlab, client_id: a, client_secret_file: /nonexistent}]", "line 1: apps[0].client_secret_file cannot be read"},
		"id":              {"apps: [{id: A, type: gitlab, client_id: a, client_secret: hush}]", "line 1: apps[0].id"},
		"same id":         {app("    type: gitlab\n  - {id: one, type: github, client_id: a, client_secret: hush}\n"), `line 6: apps[1].id is "one", like that of apps[0]`},
		"same host":       {app("    type: gitlab\n  - {id: two, type: gitlab, client_id: a, client_secret: hush}\n"), "line 6: apps[1].hosts has gitlab.com, like apps[0]"},
		"several of them": {"apps: [a]", "line 1: apps[0] has to have fields"},
	} {
		if _, err := resolve(t, c.text); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hush") || !strings.Contains(err.Error(), "CODEHUB_GIT_FILE") {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// answering returns an app whose provider answers with do.
func answering(t *testing.T, kind string, do http.HandlerFunc) *App {
	t.Helper()
	h := httptest.NewServer(do)
	t.Cleanup(h.Close)
	s, err := resolve(t, "apps: [{id: a, type: "+kind+", url: '"+h.URL+"', client_id: client, client_secret: hush}]")
	if err != nil {
		t.Fatal(err)
	}
	return &s.Apps[0]
}

// GitHub reports errors with status 200 and in another form, and counts its tokens' time in text.
func TestAnswersOfProviders(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status     int
		kind, body string
		want       error
		tokens     tokens
	}{
		"GitHub app":   {200, "application/x-www-form-urlencoded", "access_token=a&refresh_token=r&expires_in=28800", nil, tokens{"a", "r", 8 * time.Hour}},
		"OAuth app":    {200, "application/x-www-form-urlencoded", "access_token=a&scope=repo", nil, tokens{"a", "old", 0}},
		"GitLab":       {200, "application/json", `{"access_token":"a","refresh_token":"r","expires_in":7200}`, nil, tokens{"a", "r", 2 * time.Hour}},
		"GitHub error": {200, "application/x-www-form-urlencoded", "error=bad_refresh_token", errRevoked, tokens{}},
		"revoked":      {400, "application/json", `{"error":"invalid_grant"}`, errRevoked, tokens{}},
		"client":       {401, "application/json", `{"error":"invalid_client"}`, errClient, tokens{}},
	} {
		asked := 0
		a := answering(t, "github", func(w http.ResponseWriter, r *http.Request) {
			asked++
			if r.FormValue("client_secret") != "hush" || r.FormValue("refresh_token") != "old" {
				t.Errorf("%s: %v", name, r.Form)
			}
			w.Header().Set("Content-Type", c.kind)
			w.WriteHeader(c.status)
			_, _ = w.Write([]byte(c.body))
		})
		got, err := a.renew(t.Context(), "old")
		got.lifetime = got.lifetime.Round(time.Minute)
		if !errors.Is(err, c.want) || got != c.tokens || asked != 1 {
			t.Errorf("%s: %+v, %v, %d requests", name, got, err, asked)
		}
	}
}

// A failure whose answer arrived is not repeated, and says nothing of the answer, which may have
// tokens. A redirect is not followed.
func TestFailuresOfProviders(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]http.HandlerFunc{
		"503":      func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "hush", http.StatusServiceUnavailable) },
		"redirect": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere?hush", http.StatusFound) },
		"no JSON":  func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>hush")) },
		"empty":    func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{}`)) },
		"control":  func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{\"access_token\":\"a\\nb\"}")) },
	} {
		a := answering(t, "gitlab", do)
		_, err := a.renew(t.Context(), "old")
		if err == nil || errors.Is(err, errRevoked) || errors.Is(err, errClient) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLoginAndRevocation(t *testing.T) {
	t.Parallel()
	for kind, c := range map[string]struct{ user, body, login, revoke string }{
		"github":    {"GET /api/v3/user", `{"login":"ann"}`, "ann", "DELETE /api/v3/applications/client/token"},
		"gitlab":    {"GET /api/v4/user", `{"username":"ann"}`, "ann", "POST /oauth/revoke"},
		"gitea":     {"GET /api/v1/user", `{"login":"ann"}`, "ann", ""},
		"bitbucket": {"GET /plugins/servlet/applinks/whoami", "ann\n", "ann", "POST /rest/oauth2/latest/revoke"},
	} {
		revoked := ""
		a := answering(t, kind, func(w http.ResponseWriter, r *http.Request) {
			switch name := r.Method + " " + r.URL.Path; name {
			case c.user:
				if r.Header.Get("Authorization") != "Bearer access" {
					w.WriteHeader(http.StatusUnauthorized)
				}
				_, _ = w.Write([]byte(c.body))
			case c.revoke:
				revoked = name
			default:
				w.WriteHeader(http.StatusNotFound)
			}
		})
		if login, err := a.login(t.Context(), "access"); err != nil || login != c.login {
			t.Errorf("%s: %q, %v", kind, login, err)
		}
		if _, err := a.login(t.Context(), "other"); !errors.Is(err, errRevoked) {
			t.Errorf("%s: %v", kind, err)
		}
		if tried, err := a.end(context.Background(), tokens{access: "access", refresh: "r"}); err != nil || tried != (c.revoke != "") || revoked != c.revoke {
			t.Errorf("%s: %v, %v, %q", kind, tried, err, revoked)
		}
	}
}
