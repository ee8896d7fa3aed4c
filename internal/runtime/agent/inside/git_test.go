package inside_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"codehub/internal/runtime/agent"
	"codehub/internal/workspace"
)

// withHelper is an agent whose workspace has a program in the place of codehub, which answers Git
// with a credential for one host and writes what it is asked to a file.
type withHelper struct {
	awaiting
	asked string
}

func awaitWithHelper(t *testing.T, host, login, token string) withHelper {
	t.Helper()
	dir := t.TempDir()
	h := withHelper{asked: filepath.Join(dir, "asked")}
	script := fmt.Sprintf(`#!/bin/sh
[ "$1 $2" = "git-credential get" ] || exit 0
request=$(cat)
echo "$request wait=$CODEHUB_GIT_WAIT" >> %s
case $request in
*host=%s*) printf 'username=%s\npassword=%s\n' ;;
*) echo "codehub: The owner of the workspace has no connection." >&2 ;;
esac
`, h.asked, host, login, token)
	program := filepath.Join(dir, "codehub")
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	h.awaiting = awaitWith(t, t.TempDir(), program)
	return h
}

// private serves the repositories of g with basic authentication.
func (g *gitServer) private(t *testing.T, login, token string) (host string) {
	t.Helper()
	backend := &cgi.Handler{Path: "/usr/lib/git-core/git-http-backend", Env: []string{"GIT_PROJECT_ROOT=" + g.dir, "GIT_HTTP_EXPORT_ALL=1"}, Stderr: io.Discard}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if l, p, ok := r.BasicAuth(); !ok || l != login || p != token {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(w, r)
	}))
	t.Cleanup(web.Close)
	return web.Listener.Addr().String()
}

// The clone of a private repository and of its submodules, and Git in terminals, get the credential
// by the helper alone: it is in no file of the home.
func TestClonePrivateRepository(t *testing.T) {
	t.Parallel()
	g := serveGit(t)
	host := g.private(t, "ann", "hunter2")
	g.add(t, "sub.git", map[string]string{"s": "secret"})
	g.add(t, "api.git", map[string]string{"a": "1"},
		"git -c protocol.file.allow=always submodule --quiet add "+filepath.Join(g.dir, "sub.git")+" lib",
		"git config -f .gitmodules submodule.lib.url http://"+host+"/sub.git", "git commit -qam two")
	a := awaitWithHelper(t, host, "ann", "hunter2")
	st := a.cloned(t, workspace.Repository{URL: "http://" + host + "/api.git", Submodules: true})
	if st.State != agent.StepDone || read(t, filepath.Join(a.home, "project/api/lib/s")) != "secret" {
		t.Fatalf("%+v", st)
	}
	if asked := read(t, a.asked); !strings.Contains(asked, "protocol=http\nhost="+host+" wait=2m") {
		t.Errorf("%q", asked)
	}
	out, errs, _ := run(t, a.Client, agent.Command{Dir: "project/api", Shell: "git fetch -q && git config --show-scope --get-all credential.helper"}, "")
	if !strings.HasPrefix(out, "command\t") || errs != "" {
		t.Errorf("%q %q", out, errs)
	}
	if strings.Contains(st.Log, "hunter2") {
		t.Error("the log has the token")
	}
	if err := filepath.WalkDir(a.home, func(path string, e os.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() && strings.Contains(read(t, path), "hunter2") {
			t.Errorf("%s has the token", path)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// A repository that needs a login says so, and a helper of the user precedes.
func TestCloneWithoutCredential(t *testing.T) {
	t.Parallel()
	g := serveGit(t)
	g.add(t, "api.git", map[string]string{"a": "1"})
	host := g.private(t, "ann", "hunter2")
	a := awaitWithHelper(t, "git.example.com", "ann", "hunter2")
	st := a.cloned(t, workspace.Repository{URL: "http://" + host + "/api.git"})
	if st.State != agent.StepFailed || st.Reason != "login" || !strings.Contains(st.Error, "codehub: The owner of the workspace has no connection.") || !strings.Contains(st.Error, "fatal: could not read Username for 'http://"+host+"'") {
		t.Errorf("%+v", st)
	}
	b := awaitWithHelper(t, host, "ann", "revoked")
	if st := b.cloned(t, workspace.Repository{URL: "http://" + host + "/api.git"}); st.State != agent.StepFailed || st.Reason != "login" || !strings.Contains(st.Error, "Authentication failed") {
		t.Errorf("%+v", st)
	}
	own := "[credential]\n\thelper = \"!printf 'username=ann\\\\npassword=hunter2\\\\n' #\"\n"
	if err := os.WriteFile(filepath.Join(b.home, ".gitconfig"), []byte(own), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := b.RetrySetup(t.Context()); err != nil {
		t.Fatal(err)
	}
	if st := b.settled(t)[0]; st.State != agent.StepDone {
		t.Errorf("%+v", st)
	}
}

// Variables of the user that configure Git stay.
func TestGitConfigurationOfUserStays(t *testing.T) {
	t.Parallel()
	a := awaitWithHelper(t, "git.example.com", "ann", "hunter2")
	if err := a.Setup(t.Context(), agent.Setup{Env: map[string]string{"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "user.name", "GIT_CONFIG_VALUE_0": "Ann"}}); err != nil {
		t.Fatal(err)
	}
	ask := "git config user.name && printf 'protocol=https\\nhost=git.example.com\\n' | git credential fill | grep password"
	if out, errs, _ := run(t, a.Client, agent.Command{Shell: ask}, ""); out != "Ann\npassword=hunter2\n" {
		t.Errorf("%q %q", out, errs)
	}
}

// codehub is before gh and glab on the PATH, if they are installed.
func TestGitClientsAreLinked(t *testing.T) {
	t.Parallel()
	a := awaitWithHelper(t, "git.example.com", "ann", "hunter2")
	bin := t.TempDir()
	if err := a.Setup(t.Context(), agent.Setup{Env: map[string]string{"PATH": bin + ":/usr/bin:/bin"}}); err != nil {
		t.Fatal(err)
	}
	glab, link := filepath.Join(bin, "glab"), filepath.Join(a.files, "bin/glab")
	find := func(want string) {
		t.Helper()
		if out, _, _ := run(t, a.Client, agent.Command{Shell: "command -v glab; true"}, ""); strings.TrimSpace(out) != want {
			t.Errorf("%q, want %q", out, want)
		}
	}
	find("")
	if err := os.WriteFile(glab, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	find(link)
	if target, err := os.Readlink(link); err != nil || target != filepath.Join(filepath.Dir(a.asked), "codehub") {
		t.Error(target, err)
	}
	if err := os.Remove(glab); err != nil {
		t.Fatal(err)
	}
	find("")
}
