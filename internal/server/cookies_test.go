package server

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"codehub/internal/gateway/origin"
	"codehub/internal/running/service"
	"codehub/internal/testing/harness"
	"codehub/internal/users/auth"
	"codehub/internal/web/dashboard"
	"codehub/internal/workspace"
)

// The page about several session cookies loads codehub's assets on codehub's own host
// alone: on the host of a workspace they would be the workspace's.
func TestCookieConflictOnHosts(t *testing.T) {
	t.Parallel()
	public := &url.URL{Scheme: "http", Host: "localhost:8080"}
	layout, err := origin.Parse(public, "")
	try(t, err)
	log := (&harness.Log{}).Logger()
	pages := dashboard.New(dashboard.Config{Settings: service.Settings{URL: public}, Log: log})
	h := auth.RefuseConflicts(refuseConflict(pages, layout, log), http.NotFoundHandler())
	id := workspace.ID("0198c0de-0000-7000-8000-00000000000a")
	ask := func(address, accept string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, address, nil)
		r.Header.Set("Accept", accept)
		for _, value := range []string{"a", "b"} {
			r.AddCookie(&http.Cookie{Name: auth.CookieNames()[0], Value: value})
		}
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r)
		if rec.Code != http.StatusBadRequest || rec.Header().Get("Cache-Control") != "no-store" || len(rec.Header().Values("Set-Cookie")) == 0 {
			t.Errorf("%s: %d %v", address, rec.Code, rec.Header())
		}
		return rec
	}
	for _, host := range []workspace.Host{{ID: id}, {ID: id, Port: 3000}} {
		rec := ask(layout.URL(host)+"/api/v1/x?y=1", "text/html")
		body := rec.Body.String()
		for _, text := range []string{"<link", "<script", "src=", "/assets/"} {
			if strings.Contains(body, text) {
				t.Errorf("the page on %s has %s: %s", layout.URL(host), text, body)
			}
		}
		if !strings.Contains(body, `href="`+layout.URL(host)+`/api/v1/x?y=1"`) || !strings.Contains(body, `href="http://localhost:8080/"`) ||
			!strings.Contains(rec.Header().Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%v %s", rec.Header(), body)
		}
		if rec := ask(layout.URL(host)+"/x", "*/*"); !strings.Contains(rec.Body.String(), `"cookie_conflict"`) {
			t.Errorf("not a page: %s", rec.Body)
		}
	}
	if body := ask("http://other.example/", "text/html").Body.String(); strings.Contains(body, "/assets/") || strings.Contains(body, "other.example") {
		t.Errorf("an unknown host: %s", body)
	}
	if body := ask("http://localhost:8080/settings", "text/html").Body.String(); !strings.Contains(body, "/assets/") {
		t.Errorf("codehub's own host: %s", body)
	}
}
