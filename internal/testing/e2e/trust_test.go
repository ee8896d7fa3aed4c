package e2e

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"codehub/api"
	"codehub/internal/base/trust"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/authority"
	"codehub/internal/testing/s3test"
	"codehub/internal/workspace"
)

// With CODEHUB_CA_FILE the server connects to an identity provider and to a bucket of a company,
// and its workspaces trust the company's authority.
func TestServerTrustsCompany(t *testing.T) {
	harness.NeedsDocker(t)
	t.Parallel()
	a := authority.New(t)
	bucket := s3test.Start(t, "archives")
	target, err := url.Parse(bucket.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	relay := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host // the signature includes the host
	}}
	var provider *httptest.Server
	provider = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/archives") {
			relay.ServeHTTP(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{
			"issuer": provider.URL, "authorization_endpoint": provider.URL + "/authorize", "token_endpoint": provider.URL + "/token", "jwks_uri": provider.URL + "/keys",
			"id_token_signing_alg_values_supported": []string{"RS256"}, "response_types_supported": []string{"code"}, "subject_types_supported": []string{"public"},
		})
	}))
	provider.TLS = a.Server()
	provider.StartTLS()
	t.Cleanup(provider.Close)
	dir := scratch(t)
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	secret := file("secret", strings.Repeat("s", 32))
	providers, err := json.Marshal(map[string]any{"providers": []any{map[string]any{"id": "company", "issuer": provider.URL, "client_id": "codehub", "client_secret_file": secret}}})
	if err != nil {
		t.Fatal(err)
	}
	// The start fails if the bucket cannot be used.
	s := startQuick(t, append(bucket.Env(), "CODEHUB_CA_FILE="+a.File(), "CODEHUB_OIDC_FILE="+file("providers.json", string(providers)),
		"CODEHUB_ARCHIVE_URL=s3://archives/x?path-style=true&region=us-east-1&endpoint="+url.QueryEscape(provider.URL))...)

	browser := &http.Client{Transport: s.web, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := browser.Get(s.URL + "/login/company")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if to := res.Header.Get("Location"); !strings.HasPrefix(to, provider.URL+"/authorize?") {
		t.Errorf("the login leads to %q, status %d", to, res.StatusCode)
	}

	id := s.create(api.CreateWorkspace{Name: "trusting"})
	s.awaitPhase(id, "RUNNING")
	found, err := s.docker.ContainerInspect(t.Context(), workspace.ID(id).DockerName(), client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(found.Container.Config.Env, "SSL_CERT_FILE="+trust.BundlePath) {
		t.Errorf("the variables are %q", found.Container.Config.Env)
	}
}
