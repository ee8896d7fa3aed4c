package dashboard

import (
	"net/http/httptest"
	"testing"

	"codehub/internal/users/auth"
	"codehub/internal/web/accesslog"
	"codehub/internal/workspace"
)

// The log and the metrics have the route, the user and the workspace of each request. Assets and requests to
// workspaces are not logged.
func TestRequestsNameRouteAndUser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := string(w.add("one", func(*workspace.Workspace) {}))
	admin := w.caller(auth.AdminUsername).UserID
	for _, c := range []struct {
		path string
		want accesslog.Request
	}{
		{"/", accesslog.Request{Route: "GET /{$}", User: admin}},
		{"/workspaces/" + id, accesslog.Request{Route: "GET /workspaces/{id}", User: admin}},
		{"/login", accesslog.Request{Route: "GET /login"}},
		{"/nowhere", accesslog.Request{Route: "/"}},
		{"/assets/base.css", accesslog.Request{Route: "GET /assets/{path...}", Quiet: true}},
		{"/w/" + id + "/", accesslog.Request{Route: "/w/{id}/{path...}", User: admin, Workspace: id, Quiet: true}},
		{"/w/nowhere/", accesslog.Request{Route: "/w/{id}/{path...}", Quiet: true}},
	} {
		var got accesslog.Request
		r := httptest.NewRequest("GET", w.HTTP.URL+c.path, nil)
		r.AddCookie(w.session(auth.AdminUsername))
		w.HTTP.Config.Handler.ServeHTTP(httptest.NewRecorder(), r.WithContext(accesslog.With(r.Context(), &got)))
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", c.path, got, c.want)
		}
	}
}
