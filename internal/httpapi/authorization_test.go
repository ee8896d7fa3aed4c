package httpapi

import (
	"encoding/hex"
	"net/http"
	"strings"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/auth"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// bodies has a valid body for each route that needs one.
var bodies = map[string]string{
	"PUT /workspaces/{id}/ports/{port}/share": `{"with":"users"}`,
	"POST /identities/{id}/unlink":            `{"current":"` + password + `"}`,

	"PATCH /passkeys/{id}":                  `{"name":"made"}`,
	"POST /tokens":                          `{"name":"made"}`,
	"POST /keys":                            `{"name":"made","public_key":"` + publicKey + `"}`,
	"POST /workspaces":                      `{"name":"made"}`,
	"PATCH /workspaces/{id}":                `{"memo":"changed"}`,
	"POST /login":                           `{"username":"ann","password":"` + password + `"}`,
	"POST /admin/restore":                   `{}`,
	"POST /users":                           `{"username":"carl","password":"` + password + `"}`,
	"PATCH /users/{id}":                     `{"max_running":3}`,
	"PATCH /admin/workspaces/{id}":          `{"standby_ttl_seconds":600}`,
	"POST /admin/workspaces/{id}/message":   `{"message":"hello"}`,
	"POST /admin/workspaces/{id}/hand-over": `{"to":"019a0000-0000-7000-8000-000000000009"}`,
	"POST /admin/workspaces/{id}/size":      `{"size":"large"}`,
	"POST /workspaces/{id}/shares":          `{"user":"eve","access":"use"}`,
	"POST /groups":                          `{"name":"team"}`,
	"PATCH /groups/{id}":                    `{"max_running":3}`,
	"POST /groups/{id}/members":             `{"user":"eve"}`,
	"PUT /banner":                           `{"message":"hello"}`,
	"POST /login/device":                    `{"name":"laptop"}`,
	"POST /login/token":                     `{"code":"x"}`,

	"POST /users/me/password": `{"current":"` + password + `","new":"another ` + password + `"}`,
}

// forAdmins reports whether only administrators may call a route.
func forAdmins(rt route) bool {
	return strings.HasPrefix(rt.path, "/admin/") || strings.HasPrefix(rt.path, "/audit") || rt.method == "PUT" && rt.path == "/banner" ||
		rt.method == "POST" && rt.path == "/groups" ||
		strings.HasPrefix(rt.path, "/users") && !strings.HasPrefix(rt.path, "/users/me")
}

// Each route against each kind of caller. A refusal changes nothing.
func TestAuthorization(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	ctx := t.Context()
	token := func(p person, d time.Duration) string {
		t.Helper()
		var until *time.Time
		if d != 0 {
			at := time.Now().Add(d)
			until = &at
		}
		_, secret, err := e.Auth.CreateToken(ctx, auth.Identity{Caller: p.Caller}, "x", until, auth.TokenLimits{})
		if err != nil {
			t.Fatal(err)
		}
		return secret
	}
	hash := func(p person) []byte {
		b, err := hex.DecodeString(p.Caller.Session)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	good := token(e.ann, 0)
	over := token(e.ann, time.Hour)
	e.Change(`UPDATE api_tokens SET expires_at = now() - interval '1 second' WHERE expires_at IS NOT NULL`)
	deletedID, deleted, err := e.Auth.CreateToken(ctx, auth.Identity{Caller: e.ann.Caller}, "deleted", nil, auth.TokenLimits{})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Auth.DeleteToken(ctx, e.ann.Caller, deletedID.ID); err != nil {
		t.Fatal(err)
	}
	expired := e.enter("ann")
	e.Change(`UPDATE sessions SET expires_at = now() - interval '1 second' WHERE hash = $1`, hash(expired))
	loggedOut := e.enter("ann")
	if err := e.Auth.Logout(ctx, loggedOut.Caller); err != nil {
		t.Fatal(err)
	}
	gone := e.join("bob")
	goneToken := token(gone, 0)
	e.Change(`UPDATE users SET disabled = true WHERE username = 'bob'`)
	target := e.workspace(e.ann, "target")
	annsToken, _, err := e.Auth.Tokens(ctx, e.ann.Caller, postgres.Page{})
	if err != nil {
		t.Fatal(err)
	}

	annsSessions, _, err := e.Auth.Sessions(ctx, e.ann.Caller, postgres.Page{})
	if err != nil || len(annsSessions) == 0 {
		t.Fatal(annsSessions, err)
	}

	strangers := map[string]with{
		"nobody":                    func(*http.Request) {},
		"expired session":           as(expired),
		"logged out":                as(loggedOut),
		"disabled":                  as(gone),
		"disabled, by token":        header(api.TokenHeader, goneToken),
		"expired token":             header(api.TokenHeader, over),
		"deleted token":             header(api.TokenHeader, deleted),
		"deleted token as bearer":   header("Authorization", "Bearer "+deleted),
		"garbage":                   header(api.TokenHeader, "chub_garbage"),
		"a session id as a token":   header(api.TokenHeader, e.ann.ID),
		"a token as a session":      func(r *http.Request) { r.AddCookie(&http.Cookie{Name: e.ann.cookie.Name, Value: good}) },
		"a good session, bad token": func(r *http.Request) { as(e.ann)(r); header(api.TokenHeader, over)(r) },
	}
	owners := map[string]with{
		"session": as(e.ann), "token": header(api.TokenHeader, good), "bearer": header("Authorization", "Bearer "+good),
	}
	annsKey, err := e.DB.AddSSHKey(ctx, e.ann.Caller, postgres.SSHKey{Name: "key", PublicKey: "ssh-ed25519 AAAA", Hash: make([]byte, 32)})
	if err != nil {
		t.Fatal(err)
	}
	path := func(rt route) string {
		id := string(target.ID)
		switch {
		case strings.HasPrefix(rt.path, "/tokens"):
			id = annsToken[0].ID
		case strings.HasPrefix(rt.path, "/keys"):
			id = annsKey.ID
		case strings.HasPrefix(rt.path, "/sessions"):
			id = annsSessions[0].ID
		case strings.HasPrefix(rt.path, "/users"):
			id = e.eve.User.ID
		}
		return strings.NewReplacer("{id}", id, "{port}", "3000").Replace(rt.path)
	}
	before := e.dump()
	for _, rt := range testServer().routes() {
		name := rt.method + " " + rt.path
		if rt.needs == open {
			continue
		}
		for who, w := range strangers {
			a := e.do(rt.method, Prefix+path(rt), bodies[name], w)
			if a.status != http.StatusUnauthorized || a.code() != string(workspace.CodeUnauthenticated) || a.header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s by %s: %d %s", name, who, a.status, a.body)
			}
		}
		if strings.Contains(rt.path, "{id}") && !strings.HasPrefix(rt.path, "/notices") && !strings.HasPrefix(rt.path, "/identities") && !strings.HasPrefix(rt.path, "/passkeys") || forAdmins(rt) {
			if a := e.do(rt.method, Prefix+path(rt), bodies[name], as(e.eve)); a.status != http.StatusForbidden || a.code() != string(workspace.CodeForbidden) {
				t.Errorf("%s by a stranger: %d %s", name, a.status, a.body)
			}
		}
	}
	if after := e.dump(); after != before {
		t.Errorf("refused requests changed something:\n%s\n\n%s", before, after)
	}
	e.Change(`UPDATE users SET admin = true WHERE username = 'ann'`)
	e.Auth.InvalidateAll()
	// Allowed callers are not refused. Depending on the state, the response may be a 404 or
	// 409, which other tests cover.
	for _, rt := range testServer().routes() {
		name := rt.method + " " + rt.path
		if name == "POST /logout" || name == "POST /login/token" || name == "DELETE /tokens/{id}" || name == "DELETE /keys/{id}" || name == "DELETE /sessions" || name == "DELETE /sessions/{id}" || name == "POST /users/me/password" || name == "DELETE /users/{id}" {
			continue
		}
		if strings.HasPrefix(rt.path, "/admin/move/") {
			continue // refused to every administrator until moves are allowed: TestMoveIsRefused
		}
		if strings.HasPrefix(rt.path, sharedPath) {
			continue // refused to all but guests: TestRoutesByRole
		}
		for who, w := range owners {
			a := e.do(rt.method, Prefix+path(rt), bodies[name], w)
			if a.status == http.StatusUnauthorized || a.status == http.StatusForbidden || a.status >= 500 {
				t.Errorf("%s by the owner's %s: %d %s", name, who, a.status, a.body)
			}
		}
	}
	e.want(204, "", "DELETE", "/tokens/"+annsToken[0].ID, "", as(e.ann))
	e.want(204, "", "POST", "/logout", "", as(e.ann))
	e.want(401, "unauthenticated", "GET", "/session", "", as(e.ann))
}

// A list and a stream have only the caller's own workspaces.
func TestListsShowOnlyOwnWorkspaces(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.workspace(e.ann, "hers")
	if l := read[api.WorkspaceList](t, e.want(200, "", "GET", "/workspaces", "", as(e.eve))); len(l.Workspaces) != 0 || l.Workspaces == nil {
		t.Errorf("%+v", l)
	}
	if l := read[api.TokenList](t, e.want(200, "", "GET", "/tokens", "", as(e.eve))); len(l.Tokens) != 0 || l.Tokens == nil {
		t.Errorf("%+v", l)
	}
}

// Requests that a page of another origin makes a browser send are refused on every
// route that changes something, even with a valid cookie.
func TestCrossOrigin(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	target := e.workspace(e.ann, "target")
	_, secret, err := e.Auth.CreateToken(t.Context(), auth.Identity{Caller: e.ann.Caller}, "x", nil, auth.TokenLimits{})
	if err != nil {
		t.Fatal(err)
	}
	tokens, _, err := e.Auth.Tokens(t.Context(), e.ann.Caller, postgres.Page{})
	if err != nil {
		t.Fatal(err)
	}
	attacks := map[string][]with{
		"cross-site":         {header("Sec-Fetch-Site", "cross-site")},
		"same-site":          {header("Sec-Fetch-Site", "same-site"), header("Origin", "http://evil.localhost")},
		"origin":             {header("Origin", "https://evil.example")},
		"origin null":        {header("Origin", "null")},
		"origin, other port": {header("Origin", "http://127.0.0.1:1")},
		"no-cors":            {header("Sec-Fetch-Site", "same-origin"), header("Sec-Fetch-Mode", "no-cors")},
	}
	before := e.dump()
	for _, rt := range testServer().routes() {
		name := rt.method + " " + rt.path
		id := string(target.ID)
		if strings.HasPrefix(rt.path, "/tokens") {
			id = tokens[0].ID
		}
		path := strings.NewReplacer("{id}", id, "{port}", "3000").Replace(rt.path)
		for attack, headers := range attacks {
			a := e.do(rt.method, Prefix+path, bodies[name], append(headers, as(e.ann))...)
			if rt.method == http.MethodGet {
				// GET changes nothing, and browsers let no other origin read the response.
				if a.header.Get("Access-Control-Allow-Origin") != "" {
					t.Errorf("%s, %s: readable", name, attack)
				}
				continue
			}
			if a.status != http.StatusForbidden || a.code() != string(codeCrossOrigin) {
				t.Errorf("%s, %s: %d %s", name, attack, a.status, a.body)
			}
		}
	}
	if after := e.dump(); after != before {
		t.Errorf("something changed:\n%s\n\n%s", before, after)
	}
	// A GET that is recorded in the audit log is refused, too.
	e.Exec(`UPDATE users SET admin = true WHERE username = 'eve'`)
	e.Auth.InvalidateAll()
	before = e.dump()
	for _, path := range []string{"/admin/workspaces/" + string(target.ID) + "/logs", "/audit/export"} {
		for _, attack := range []string{"cross-site", "same-site", "origin"} {
			e.want(403, string(codeCrossOrigin), http.MethodGet, path, "", append(attacks[attack], as(e.eve))...)
		}
	}
	if after := e.dump(); after != before {
		t.Errorf("something changed:\n%s\n\n%s", before, after)
	}
	e.want(200, "", http.MethodGet, "/audit/export", "", as(e.eve))
	// The dashboard's own page and programs may.
	path := "/workspaces/" + string(target.ID)
	e.want(200, "", "PATCH", path, `{"memo":"1"}`, as(e.ann), header("Sec-Fetch-Site", "same-origin"), header("Sec-Fetch-Mode", "cors"))
	e.want(200, "", "PATCH", path, `{"memo":"2"}`, as(e.ann), header("Origin", e.HTTP.URL))
	e.want(200, "", "PATCH", path, `{"memo":"3"}`, as(e.ann))
	e.want(200, "", "PATCH", path, `{"memo":"4"}`, header(api.TokenHeader, secret))
	// Browsers send forms across origins without a preflight, but not JSON.
	for _, typ := range []string{"text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "application/json/x"} {
		e.want(415, "unsupported_media_type", "PATCH", path, `{"memo":"5"}`, as(e.ann), header("Content-Type", typ))
	}
	e.want(200, "", "PATCH", path, `{"memo":"6"}`, as(e.ann), header("Content-Type", "application/json; charset=utf-8"))
}
