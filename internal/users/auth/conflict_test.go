package auth

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"codehub/internal/workspace"
)

// conflicts sends a request through RefuseConflicts. It returns whether the request was
// refused and the removed cookies as path or path@domain.
func conflicts(t *testing.T, target string, headers ...string) (refused bool, removed []string) {
	t.Helper()
	r := httptest.NewRequest("GET", target, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	RefuseConflicts(func(w http.ResponseWriter, _ *http.Request, err error) {
		refused = workspace.CodeOf(err) == workspace.CodeCookieConflict
	}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(w, r)
	for _, c := range w.Result().Cookies() {
		if c.MaxAge >= 0 || c.Value != "" {
			t.Errorf("a cookie is set: %s", c)
		}
		at := c.Path
		if c.Domain != "" {
			at += "@" + c.Domain
		}
		removed = append(removed, at)
	}
	return refused, removed
}

func TestRefuseConflicts(t *testing.T) {
	t.Parallel()
	const mine, hers = plainCookie + "=mine", plainCookie + "=hers"
	for name, c := range map[string]struct {
		target  string
		cookies string
		header  string
		removed []string // nil: accepted
	}{
		"one cookie":          {target: "/api/v1/workspaces", cookies: mine},
		"no cookie":           {target: "/api/v1/workspaces", cookies: "theme=dark"},
		"the same twice":      {target: "/", cookies: mine + "; " + mine},
		"an empty one":        {target: "/", cookies: plainCookie + "=; " + mine},
		"with a token":        {target: "/api/v1/x", cookies: hers + "; " + mine, header: "chub_x"},
		"hers first":          {target: "http://localhost/api/v1/x?a=b/c", cookies: hers + "; " + mine, removed: []string{"/api", "/api/", "/api/v1", "/api/v1/", "/api/v1/x"}},
		"hers last":           {target: "http://localhost/w", cookies: mine + "; " + hers, removed: []string{"/w"}},
		"four planted":        {target: "http://localhost/w", cookies: strings.Repeat(hers+"; ", 4) + mine, removed: []string{"/w"}},
		"more than is honest": {target: "http://localhost/w", cookies: strings.Repeat(mine+"; ", 5), removed: []string{"/w"}},
		"an address":          {target: "http://192.0.2.1:8080/w", cookies: mine + "; " + hers, removed: []string{"/w"}},
		"an IPv6 address":     {target: "http://[2001:db8::1]:8080/w", cookies: mine + "; " + hers, removed: []string{"/w"}},
		"escaped":             {target: "http://localhost/%61pi//x/", cookies: mine + "; " + hers, removed: []string{"/%61pi", "/%61pi/", "/%61pi//", "/%61pi//x", "/%61pi//x/"}},
		"a semicolon":         {target: "http://localhost/a/b;c/d", cookies: mine + "; " + hers, removed: []string{"/a", "/a/"}},
		"a domain": {target: "https://code.example.com:8443/w", cookies: mine + "; " + hers,
			removed: []string{"/@code.example.com", "/@example.com", "/w", "/w@code.example.com", "/w@example.com"}},
		"a session of a workspace": {target: "http://localhost/w", cookies: workspaceCookie + "=a; " + workspaceCookie + "=b", removed: []string{"/w"}},
		"with https":               {target: "http://localhost/w", cookies: secureCookie + "=a; " + secureCookie + "=b", removed: []string{"/w"}},
	} {
		headers := []string{"Cookie", c.cookies}
		if c.header != "" {
			headers = append(headers, "Codehub-Session-Token", c.header)
		}
		refused, removed := conflicts(t, c.target, headers...)
		slices.Sort(removed)
		if refused != (c.removed != nil) || !slices.Equal(removed, c.removed) {
			t.Errorf("%s: refused %v, removed %v, want %v", name, refused, removed, c.removed)
		}
	}
	// HTTP/2 splits the header into lines.
	if refused, _ := conflicts(t, "/w", "Cookie", mine, "Cookie", hers); !refused {
		t.Error("cookies in two lines are accepted")
	}
	if _, removed := conflicts(t, "http://localhost"+strings.Repeat("/x", 5000), "Cookie", mine+"; "+hers); len(removed) > maxExpired+2 {
		t.Errorf("%d cookies are removed", len(removed))
	}
}

// A request that has the honest cookie is never authenticated with another one.
func FuzzSessionCookie(f *testing.F) {
	const honest = "abcdefghijklmnopqrstuvwxyz0123456789-_ABCDE"
	for _, s := range []string{"", plainCookie + "=x", plainCookie + "=", plainCookie + `="` + honest + `"`, "a=b; " + plainCookie + "=x\xff", ";;==;", `q="; ` + plainCookie + "=x", strings.Repeat(plainCookie+"=x;", 9)} {
		f.Add(s, "/api/v1", true)
		f.Add(s, "/a;b//c", false)
	}
	f.Fuzz(func(t *testing.T, planted, path string, first bool) {
		r := httptest.NewRequest("GET", "/", nil)
		r.RequestURI = path
		own := fmt.Sprintf("%s=%s", plainCookie, honest)
		line := planted + "; " + own
		if first {
			line = own + "; " + planted
		}
		r.Header["Cookie"] = []string{line}
		value, err := sessionCookie(r.Cookies(), plainCookie)
		// With too many cookies net/http parses none.
		if err == nil && value != honest && !(value == "" && strings.Count(line, ";") > 1000) {
			t.Errorf("%q gives %q", line, value)
		}
		for _, prefix := range pathPrefixes(r) {
			if strings.ContainsAny(prefix, ";") || !strings.HasPrefix(prefix, "/") {
				t.Errorf("the path %q has the prefix %q", path, prefix)
			}
		}
	})
}
