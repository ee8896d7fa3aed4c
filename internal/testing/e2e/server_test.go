package e2e

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"codehub/api"
	codehub "codehub/client"
	"codehub/internal/testing/dockertest"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/pgtest"
)

// test reports failures to a testing.TB.
type test struct{ testing.TB }

// patience is the default timeout of waits. It is long because a machine that
// runs other tests at the same time may need minutes for an operation of
// seconds; only a failing test takes that long.
const patience = 5 * time.Minute

// server is a codehub process, with the administrator logged in. Its resources
// in Docker are removed when the test ends.
type server struct {
	test
	*proc.Server
	api         *codehub.Client
	token       string
	home        string // the data folder
	mode        mode
	web         *http.Transport // reaches the server by all of its names
	certificate *certificate    // nil in the modes without https
	subnet      *dockertest.Subnet
	docker      *client.Client
	runtime     runtimeState

	patience time.Duration // timeout of await; 0: patience
}

// withPatience returns a copy of the server with another timeout for await.
func (s *server) withPatience(patience time.Duration) *server {
	other := *s
	other.patience = patience
	return &other
}

func start(t *testing.T, settings ...string) *server {
	t.Helper()
	return startBinary(t, env.binary, settings...)
}

func startBinary(t *testing.T, binary string, settings ...string) *server {
	t.Helper()
	return startIn(t, binary, filepath.Join(scratch(t), "data"), settings...)
}

// scratch returns a folder that other users can enter, as the embedded database's.
func scratch(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "codehub-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func startIn(t *testing.T, binary, home string, settings ...string) *server {
	t.Helper()
	return startServer(t, ownOrigins, binary, home, settings...)
}

// startMode starts a server in a mode.
func startMode(t *testing.T, m mode, settings ...string) *server {
	t.Helper()
	return startServer(t, m, env.binary, filepath.Join(scratch(t), "data"), settings...)
}

// startModeQuick starts a server in a mode, on a database from database.
func startModeQuick(t *testing.T, m mode, settings ...string) *server {
	t.Helper()
	return startMode(t, m, append(settings, "CODEHUB_DATABASE_URL="+database(t))...)
}

func startServer(t *testing.T, m mode, binary, home string, settings ...string) *server {
	t.Helper()
	s := &server{test: test{t}, home: home, docker: env.docker, runtime: dockerState{}, mode: m, web: anyLocalhost}
	s.subnet = dockertest.NewSubnet(t)
	listen, err := proc.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(listen)
	if m.https() {
		s.certificate = newCertificate(scratch(t))
		s.certificate.issue(t, "*.example.com")
		s.web = transport(s.certificate.roots)
		t.Cleanup(s.web.CloseIdleConnections)
	}
	for _, kv := range settings {
		if host, ok := strings.CutPrefix(kv, "DOCKER_HOST="); ok {
			if s.docker, err = client.New(client.WithHost(host)); err != nil {
				t.Fatal(err)
			}
		}
	}
	all := slices.Concat([]string{"CODEHUB_DEFAULT_IMAGE=" + env.testImage, "CODEHUB_IDE_IMAGE=" + harness.IDEImage(), "CODEHUB_BALLAST=1m", s.subnet.Setting()}, m.settings(port, s.certificate), settings)
	if s.Server, err = proc.New(proc.Options{Binary: binary, DataDir: s.home, Listen: listen, URL: strings.Replace(m.main, "PORT", port, 1), Client: &http.Client{Transport: s.web}, Env: all}); err != nil {
		t.Fatal(err)
	}
	cleanup(t, func() {
		s.logIfFailed("server")
		s.Close()
		s.sweep()
		os.RemoveAll(home)
		os.Remove(filepath.Dir(home)) // fails if other files are in it
	})
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	if err := s.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.subnet.UsedBy(s.Installation()); err != nil {
		t.Fatal(err)
	}
	s.login(adminName, proc.AdminPassword)
	return s
}

// database creates a database for one server. It needs no start of PostgreSQL,
// but it loses its content if the machine loses power.
func database(t *testing.T) string {
	t.Helper()
	return pgtest.New(t, nil)
}

// startQuick starts a server on a database from database.
func startQuick(t *testing.T, settings ...string) *server {
	t.Helper()
	return startModeQuick(t, ownOrigins, settings...)
}

// restart starts the server after it was killed or stopped.
func (s *server) restart() {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), harness.Patience)
	defer cancel()
	if err := s.Start(ctx); err != nil {
		s.Fatal(err)
	}
}

func (s *server) login(user, password string) {
	s.Helper()
	web := codehub.WithHTTPClient(&http.Client{Transport: s.web})
	c, _, err := codehub.Login(s.Context(), s.URL, api.Login{Username: user, Password: password}, web)
	if err != nil {
		s.Fatal(err)
	}
	tok, err := c.CreateToken(s.Context(), api.CreateToken{Name: "e2e"})
	if err != nil {
		s.Fatal(err)
	}
	s.token = tok.Token
	if s.api, err = codehub.New(s.URL, tok.Token, web); err != nil {
		s.Fatal(err)
	}
}

// expectNothingLeft checks that what this server's installation had in the runtime is gone,
// once the helpers have ended that still run.
func (s *server) expectNothingLeft() {
	s.Helper()
	var left []string
	defer func() {
		if s.Failed() {
			s.Logf("left in the runtime: %v", left)
		}
	}()
	harness.Eventually(s.TB, "nothing is left in the runtime", func() bool {
		left = s.runtime.all(s)
		return len(left) == 0
	})
}

// endedHelper reports whether a container is a helper that does not run. A killed server
// leaves the one that it waited for, which is removed ten minutes later.
func endedHelper(c container.Summary) bool {
	return c.Labels["codehub.role"] == "helper" && c.State != container.StateRunning
}

// ofInstallation reports whether a volume belongs to the installation, not to a
// workspace.
func ofInstallation(labels map[string]string) bool {
	return slices.Contains([]string{"mark", "agent", "ide"}, labels["codehub.role"])
}

// sweep removes the server's resources from Docker.
func (s *server) sweep() {
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	if err := proc.Sweep(ctx, s.docker, s.Installation()); err != nil {
		s.Errorf("clean up in Docker: %v", err)
	}
}

func (s *server) create(in api.CreateWorkspace) string {
	s.Helper()
	w, err := s.api.Create(s.Context(), in)
	if err != nil {
		s.Fatal(err)
	}
	return w.ID
}

// run runs a command in a workspace, which has to succeed, and returns what it prints.
func (s *server) run(id, command string) string {
	s.Helper()
	x, err := s.api.Exec(s.Context(), id, api.Exec{Shell: command})
	if err != nil {
		s.Fatal(err)
	}
	var out bytes.Buffer
	if code, err := x.Run(s.Context(), &out, &out, nil); err != nil || code != 0 {
		s.Fatalf("%s: %d, %v: %s", command, code, err, out.String())
	}
	return out.String()
}

// await polls the workspace until ok returns true. It does not use the event
// stream, which ends when the server is killed.
func (s *server) await(id, what string, ok func(api.Workspace) bool) api.Workspace {
	s.Helper()
	deadline := time.Now().Add(cmp.Or(s.patience, patience))
	var last api.Workspace
	var err error
	for time.Now().Before(deadline) {
		var w api.Workspace
		if w, err = s.api.Get(s.Context(), id); err == nil {
			last = w
			if ok(w) {
				return w
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	s.Fatalf("workspace %s did not become %s: phase %s, operation %s, error %v %v (%v)", id, what, last.Phase, last.Operation, str(last.ErrorReason), str(last.ErrorMessage), err)
	return last
}

func (s *server) awaitPhase(id, phase string) api.Workspace {
	s.Helper()
	return s.await(id, phase+" without an operation", func(w api.Workspace) bool { return w.Phase == phase && w.Operation == "NONE" })
}

func (s *server) setDesired(id, desired string) {
	s.Helper()
	if _, err := s.api.Want(s.Context(), id, desired, true); err != nil {
		s.Fatal(err)
	}
}

// remove deletes a workspace without grace and waits until it is DELETED.
func (s *server) remove(id string) {
	s.Helper()
	if _, err := s.api.Delete(s.Context(), id, true); err != nil {
		s.Fatal(err)
	}
	s.awaitGone(id)
}

// awaitGone waits until a deleted workspace is DELETED. This can take a minute
// if it has archives, because garbage collection removes them.
func (s *server) awaitGone(id string) {
	s.Helper()
	deadline := time.Now().Add(patience)
	for {
		_, err := s.api.Get(s.Context(), id)
		var e *codehub.Error
		if errors.As(err, &e) && e.Status == http.StatusNotFound {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("workspace %s still exists: %v", id, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// ide sends a request to a workspace through the proxy.
func (s *server) ide(method, id, path string, body string) (int, string) {
	s.Helper()
	req, err := http.NewRequestWithContext(s.Context(), method, s.URL+"/w/"+id+path, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	req.Header.Set(api.TokenHeader, s.token)
	resp, err := s.web.RoundTrip(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b := new(strings.Builder)
	if _, err := io.Copy(b, resp.Body); err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, b.String()
}

func (s *server) write(id, content string) {
	s.Helper()
	if status, body := s.ide(http.MethodPut, id, "/file?path=notes.txt", content); status >= 300 || status == 0 {
		s.Fatalf("write a file in %s: %d %s", id, status, body)
	}
}

func (s *server) expect(id, content string) {
	s.Helper()
	if status, body := s.ide(http.MethodGet, id, "/file?path=notes.txt", ""); status != 200 || body != content {
		s.Errorf("notes.txt of %s: %d %q, want %q", id, status, body, content)
	}
}

func str(p *string) string {
	if p == nil {
		return ""
	}
	return *p
}

// logIfFailed logs what a server's log says about a failure, and keeps the whole log in a file. The
// test's own messages are before it.
func (s *server) logIfFailed(name string) {
	if !s.Failed() {
		return
	}
	kept := filepath.Join(env.output, strings.ReplaceAll(s.Name(), "/", "-")+"-"+strings.ReplaceAll(name, " ", "-")+".log")
	err := os.MkdirAll(env.output, 0o755)
	if err == nil {
		err = os.WriteFile(kept, []byte(s.Log()), 0o644)
	}
	s.Logf("What failed is above. The log of the %s is in %s (%v):\n%s", name, kept, err, s.Excerpt())
}

var clientFilter codehub.Filter // matches all workspaces of the caller

// boss creates another administrator and logs in.
func (s *server) boss() *codehub.Client {
	s.Helper()
	boss := api.CreateAccount{Username: "boss", Password: "a password", Admin: true}
	if _, err := s.api.CreateAccount(s.Context(), boss); err != nil {
		s.Fatal(err)
	}
	c, _, err := codehub.Login(s.Context(), s.URL, api.Login{Username: boss.Username, Password: boss.Password}, codehub.WithHTTPClient(&http.Client{Transport: s.web}))
	if err != nil {
		s.Fatal(err)
	}
	return c
}

// as returns the server with the token of a new user.
func (s *server) as(username string) *server {
	s.Helper()
	const password = "a password of theirs"
	if _, err := s.api.CreateAccount(s.Context(), api.CreateAccount{Username: username, Password: password}); err != nil {
		s.Fatal(err)
	}
	return s.enterAs(username, password)
}

// enterAs returns the server with another user logged in.
func (s *server) enterAs(username, password string) *server {
	s.Helper()
	other := *s
	other.login(username, password)
	return &other
}
