package registry_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"codehub/internal/runtime/registry"
)

// Private addresses are not reached, by their name, by a redirect, or for a login's token, unless
// the registry is listed.
func TestPrivateAddresses(t *testing.T) {
	t.Parallel()
	reached := make(chan string, 10)
	inside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { reached <- r.URL.Path }))
	t.Cleanup(inside.Close)
	host := strings.TrimPrefix(inside.URL, "http://")
	ask := func(c *registry.Client, ref string) registry.Kind {
		_, err := c.Resolve(t.Context(), ref, registry.Login{})
		return registry.KindOf(err)
	}
	guarded := func(listed ...string) *registry.Client {
		return &registry.Client{Plain: []string{host}, HTTP: registry.Public(listed)}
	}
	for _, ref := range []string{host + "/a:1", "localhost:1/a:1", "[::1]:1/a:1", "10.0.0.1/a:1", "192.168.1.1:5000/a:1", "169.254.169.254/a:1", "100.100.100.200/a:1", "[fd00:ec2::254]:443/a:1", "[64:ff9b::a00:1]:443/a:1"} {
		if kind := ask(guarded(), ref); kind != registry.Private {
			t.Errorf("%s: %v", ref, kind)
		}
	}
	for name, leads := range map[string]http.HandlerFunc{
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, inside.URL+"/secret", http.StatusTemporaryRedirect)
		},
		"token": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+inside.URL+`/token",service="it"`)
			w.WriteHeader(http.StatusUnauthorized)
		},
	} {
		srv := httptest.NewServer(leads)
		t.Cleanup(srv.Close)
		listed := strings.TrimPrefix(srv.URL, "http://")
		if kind := ask(guarded(listed), listed+"/a:1"); kind == registry.Missing {
			t.Errorf("%s: %v", name, kind)
		}
	}
	select {
	case path := <-reached:
		t.Errorf("the private server was asked for %s", path)
	default:
	}
	if kind := ask(guarded(host), host+"/a:1"); kind == registry.Private || len(reached) == 0 {
		t.Errorf("a listed registry is not reached: %v", kind)
	}
}
