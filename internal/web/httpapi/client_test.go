package httpapi

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"codehub/api"
	"codehub/internal/gateway/front"
	"codehub/internal/testing/harness/fixture"
)

// Behind a trusted proxy the log, the list of sessions and the audit log have the
// address that the proxy reports; otherwise they have that of the connection, also if
// the client claims another one.
func TestClientAddress(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for trusted, want := range map[string]string{"127.0.0.1": "203.0.113.9", "127.0.0.2": "127.0.0.1"} {
		settings := front.Settings{TrustedProxies: trusted, MinVersion: "1.2"}
		if err := settings.Resolve(); err != nil {
			t.Fatal(err)
		}
		before := len(e.log.String())
		own := func(host string) bool { return host == e.URL.Host }
		server := httptest.NewServer(settings.Proxies.Handler(own, e.HTTP.Config.Handler))
		defer server.Close()
		send := func(method, path, body string, cookies ...*http.Cookie) *http.Response {
			t.Helper()
			r, err := http.NewRequestWithContext(t.Context(), method, server.URL+Prefix+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("X-Forwarded-For", "198.51.100.1, 203.0.113.9")
			for _, c := range cookies {
				r.AddCookie(c)
			}
			res, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { res.Body.Close() })
			return res
		}
		res := send("POST", "/login", `{"username":"ann","password":"`+password+`"}`)
		if res.StatusCode != http.StatusOK {
			t.Fatalf("login: %s", res.Status)
		}
		var list api.SessionList
		if err := json.NewDecoder(send("GET", "/sessions", "", res.Cookies()[0]).Body).Decode(&list); err != nil {
			t.Fatal(err)
		}
		for _, s := range list.Sessions {
			if s.Current && s.Address != want {
				t.Errorf("proxy %s: the session is from %q, want %s", trusted, s.Address, want)
			}
		}
		if got := fixture.Query[string](e, `SELECT host(address) FROM audit_log WHERE action = 'login' ORDER BY id DESC LIMIT 1`); got != want {
			t.Errorf("proxy %s: the audit log has %q, want %s", trusted, got, want)
		}
		if log := e.log.String()[before:]; strings.Count(log, "remote="+want+" ") != strings.Count(log, "msg=request") {
			t.Errorf("proxy %s: the log does not have %s everywhere: %s", trusted, want, log)
		}
	}
}
