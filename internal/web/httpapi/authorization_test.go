package httpapi

import (
	"net/http"
	"strings"
	"testing"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/users/auth"
)

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
