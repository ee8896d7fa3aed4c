package e2e

import (
	"io"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/moby/moby/client"

	"codehub/api"
	codehub "codehub/client"
	"codehub/internal/runtime"
	"codehub/internal/runtime/agent"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// A workspace whose repository cannot be cloned runs, and says why. The clone is tried again
// without a restart, and goes on when the server is killed. The next start clones nothing.
func TestWorkspaceOfRepository(t *testing.T) {
	t.Parallel()
	s := startQuick(t, "CODEHUB_DEFAULT_IMAGE="+env.slimImage)
	const port = "42117" // nothing listens there in the workspace yet
	repo := "http://127.0.0.1:" + port + "/api.git"
	id := s.create(api.CreateWorkspace{Name: "api", Repositories: []api.Repository{{URL: repo, Branch: "main"}}})
	s.awaitPhase(id, "RUNNING")
	step := func(state string) api.SetupStep {
		t.Helper()
		var last api.Setup
		var err error
		s.until("the clone is "+state, func() bool {
			last, err = s.api.Setup(t.Context(), id)
			return err == nil && len(last.Steps) == 1 && last.Steps[0].State == state
		})
		return last.Steps[0]
	}
	if st := step("failed"); st.Reason != "git" || !strings.Contains(st.Error, "fatal: unable to access '"+repo+"/'") || st.Name != repo {
		t.Errorf("%+v", st)
	}

	relay := s.serveGit(t, id, port)
	if _, err := s.api.RetrySetup(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	<-relay.asked
	s.Kill()
	<-s.Done()
	s.restart()
	if st := step("running"); st.Folder != "/home/coder/project/api" {
		t.Errorf("%+v", st)
	}
	close(relay.answer)
	step("done")
	run := func(command string) string { return s.run(id, command) }
	if out := run("cd $CODEHUB_FOLDER && pwd && git status --short --branch && cat hello && echo mine > own"); out != "/home/coder/project/api\n## main...origin/main\nhello\n" {
		t.Errorf("%q", out)
	}
	s.setDesired(id, "STANDBY")
	s.awaitPhase(id, "STANDBY")
	s.setDesired(id, "RUNNING")
	s.awaitPhase(id, "RUNNING")
	step("skipped")
	if out := run("cat project/api/own project/api/hello"); out != "mine\nhello\n" {
		t.Errorf("%q", out)
	}
}

// From a link in a README to the code: one button after the login. The page that waits shows why
// the clone fails, tries it again, and enters the IDE with the folder of the repository.
func TestOpenRepositoryInBrowser(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	s := startQuick(t, "CODEHUB_DEFAULT_IMAGE="+env.slimImage)
	const port = "42118"
	b := s.browser(t)
	b.do("open the link", navigate(s.URL+"/new?repo="+url.QueryEscape("http://127.0.0.1:"+port+"/api.git")+"&branch=main"), chromedp.WaitVisible("#username"))
	b.do("log in", chromedp.SendKeys("#username", adminName), chromedp.SendKeys("#password", proc.AdminPassword), chromedp.Click("form button.btn-primary"), chromedp.WaitVisible("#dialog-form"))
	if list, err := s.api.List(t.Context(), codehub.Filter{}); err != nil || len(list) != 0 {
		t.Fatalf("the link has created a workspace: %v, %v", list, err)
	}
	b.do("press the button", chromedp.Click("#dialog-form button[type=submit]"), chromedp.WaitVisible("#setup-retry"))
	list, err := s.api.List(t.Context(), codehub.Filter{})
	if err != nil || len(list) != 1 || list[0].Name != "api" || list[0].Phase != "RUNNING" {
		t.Fatalf("%+v, %v", list, err)
	}
	relay := s.serveGit(t, list[0].ID, port)
	b.do("try again", chromedp.Click("#setup-retry"), chromedp.WaitVisible(`[data-step=clone][data-state=running]`))
	close(relay.answer)
	b.workbench()
	b.do("the folder is open", until(`location.search === '?folder=/home/coder/project/api' || location.search === '?folder=%2Fhome%2Fcoder%2Fproject%2Fapi'`),
		until(`[...document.querySelectorAll('.explorer-folders-view .monaco-list-row')].some(e => e.innerText.includes('hello'))`),
		chromedp.WaitVisible(`.terminal-wrapper.active .xterm-screen`))
	s.expectShell(list[0].ID, "ls ~/.local/state/codehub/terminal", "/home/coder/.local/state/codehub/terminal")
}

// gitRelay is what a workspace reaches on its own loopback address.
type gitRelay struct {
	asked  chan struct{} // closed with the first connection
	answer chan struct{} // connections wait until it is closed
}

// serveGit serves the repository /api.git, with the file hello, on a port of the workspace.
func (s *server) serveGit(t *testing.T, id, port string, wraps ...func(http.Handler) http.Handler) *gitRelay {
	s.Helper()
	return s.serveRepository(t, id, port, "echo hello > hello", wraps...)
}

// serveRepository serves the repository of gitServer on a port of the workspace.
func (s *server) serveRepository(t *testing.T, id, port, command string, wraps ...func(http.Handler) http.Handler) *gitRelay {
	s.Helper()
	return s.relayLater(id, port, gitServer(t, command, wraps...))
}

// gitBackend is git http-backend with the repository /api.git, whose files a shell command makes.
func gitBackend(t *testing.T, command string) http.Handler {
	t.Helper()
	root := scratch(t)
	script := "git init -q -b main work && cd work && " + command + " && git add . && git -c user.name=T -c user.email=t@example.com commit -q -m one && git clone -q --bare . ../api.git"
	cmd := exec.Command("/bin/sh", "-ec", script)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return &cgi.Handler{Path: "/usr/lib/git-core/git-http-backend", Env: []string{"GIT_PROJECT_ROOT=" + filepath.Clean(root), "GIT_HTTP_EXPORT_ALL=1"}}
}

// gitServer serves a gitBackend and returns its address. Each of wraps is around the one before it.
func gitServer(t *testing.T, command string, wraps ...func(http.Handler) http.Handler) (address string) {
	t.Helper()
	backend := gitBackend(t, command)
	for _, wrap := range wraps {
		backend = wrap(backend)
	}
	web := httptest.NewServer(backend)
	t.Cleanup(web.Close)
	return web.Listener.Addr().String()
}

// relayLater is relay whose connections wait until the test lets them pass.
func (s *server) relayLater(id, port, address string) *gitRelay {
	s.Helper()
	l, err := s.agentOf(id).Listen(s.Context(), "tcp", "127.0.0.1:"+port)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { l.Close() })
	g := &gitRelay{asked: make(chan struct{}), answer: make(chan struct{})}
	var once sync.Once
	go func() {
		for {
			from, _, err := l.Accept()
			if err != nil {
				return
			}
			once.Do(func() { close(g.asked) })
			go func() {
				defer from.Close()
				<-g.answer
				to, err := net.Dial("tcp", address)
				if err != nil {
					return
				}
				defer to.Close()
				go func() { _, _ = io.Copy(to, from) }()
				_, _ = io.Copy(from, to)
			}()
		}
	}()
	return g
}

// awaitAgent waits until the agent of a container that has just been started responds.
func (s *server) awaitAgent(id string) {
	s.Helper()
	inside := s.agentOf(id)
	s.until("the agent responds", func() bool { _, err := inside.Hello(s.Context()); return err == nil })
}

// onlyFor serves a user with a password alone.
func onlyFor(login, password string) func(http.Handler) http.Handler {
	return func(served http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if user, given, _ := r.BasicAuth(); user != login || given != password {
				w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			served.ServeHTTP(w, r)
		})
	}
}

// agentOf returns a client of a workspace's agent.
func (s *server) agentOf(id string) *agent.Client {
	s.Helper()
	found, err := s.docker.ContainerInspect(s.Context(), workspace.ID(id).DockerName(), client.ContainerInspectOptions{})
	if err != nil {
		s.Fatal(err)
	}
	c := &agent.Client{}
	for _, e := range found.Container.Config.Env {
		if value, ok := strings.CutPrefix(e, runtime.SecretEnv+"="); ok {
			c.Secret = value
		}
	}
	for of, bindings := range found.Container.NetworkSettings.Ports {
		if of.Num() == runtime.AgentPort && len(bindings) > 0 {
			c.Addr = net.JoinHostPort("127.0.0.1", bindings[0].HostPort)
		}
	}
	for _, network := range found.Container.NetworkSettings.Networks {
		if c.Addr == "" && network.IPAddress.IsValid() {
			c.Addr = net.JoinHostPort(network.IPAddress.String(), strconv.Itoa(runtime.AgentPort))
		}
	}
	return c
}
