package frominside

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/runtime/agent"
	"codehub/internal/testing/agenttest"
	"codehub/internal/testing/harness"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

const id = workspace.ID("019a0000-0000-7000-8000-000000000001")

// world is a Runner that runs, with a workspace that an agent serves.
type world struct {
	*Runner
	t      *testing.T
	socket string
	mu     sync.Mutex
	lists  []postgres.RunningWorkspace
	git    func(context.Context, workspace.ID) (agent.Git, error)
	end    func()
}

func (w *world) running(context.Context) ([]postgres.RunningWorkspace, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lists, nil
}

func (w *world) set(ids ...workspace.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lists = nil
	for _, id := range ids {
		w.lists = append(w.lists, postgres.RunningWorkspace{ID: id})
	}
}

func newWorld(t *testing.T, at runtime.Upstreams, h http.HandlerFunc) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "inside") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	w := &world{t: t, socket: filepath.Join(dir, "client.sock")}
	w.set(id)
	w.Runner, w.end = w.start(at, h)
	return w
}

// start runs a Runner until end or the end of the test.
func (w *world) start(at runtime.Upstreams, h http.HandlerFunc) (r *Runner, end func()) {
	r = New(Config{Runtime: at, Handler: h, Git: w.git, Log: slog.New(slog.DiscardHandler), Socket: w.socket, Interval: time.Second})
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx, w.running) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(end)
	return r, end
}

// ask sends a request as a program in the workspace does, on a connection of its own.
func (w *world) ask() (string, error) { return get(w.client(true)) }

// client returns a client in the workspace, whose connections are for one request or are kept.
func (w *world) client(once bool) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: once, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", w.socket)
	}}}
}

func get(c *http.Client) (string, error) {
	res, err := c.Get("http://codehub/")
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return string(b), err
}

func (w *world) answers() bool {
	_, err := w.ask()
	return err == nil
}

// A program in a running workspace reaches the server, which knows the workspace by the
// connection, and reads the whole of a long response. That continues after a restart of the
// container, and ends with the workspace and the server.
func TestRequestsFromRunningWorkspace(t *testing.T) {
	t.Parallel()
	agents := agenttest.New(t)
	agents.Start(id)
	long := bytes.Repeat([]byte("x"), 4<<20)
	w := newWorld(t, agents, func(w http.ResponseWriter, r *http.Request) {
		from, _ := auth.Inside(r.Context())
		_, _ = io.WriteString(w, string(from))
		_, _ = w.Write(long)
	})
	harness.Eventually(t, "a request is answered", w.answers)
	if got, err := w.ask(); got != string(id)+string(long) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	agents.Start(id)
	w.Changed(id)
	harness.Eventually(t, "a request after a restart is answered", w.answers)
	gone := func() bool { _, err := os.Lstat(w.socket); return os.IsNotExist(err) }
	w.set()
	w.Gap()
	harness.Eventually(t, "the agent does not listen after the workspace has left the list", gone)
	w.set(id)
	w.Changed(id)
	harness.Eventually(t, "a request is answered again", w.answers)
	w.end()
	harness.Eventually(t, "the agent does not listen after the server has ended", gone)
}

// The next leader takes a workspace over from a former one that has not left its agent, such as
// one whose machine has failed, and keeps it when the former one leaves.
func TestNextLeaderTakesOver(t *testing.T) {
	t.Parallel()
	agents := agenttest.New(t)
	agents.Start(id)
	name := func(name string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) }
	}
	w := newWorld(t, agents, name("former"))
	harness.Eventually(t, "the former leader serves", w.answers)
	w.start(agents, name("next"))
	next := func() bool { got, _ := w.ask(); return got == "next" }
	harness.Eventually(t, "the next leader takes over", next)
	w.end()
	harness.Eventually(t, "the next leader serves", next)
}

// An agent of an earlier version refuses the next leader until the former one has left it.
func TestNextLeaderWaitsForEarlierAgent(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	taken := agenttest.Refused(http.StatusConflict, "bind: address already in use")
	h := agenttest.Hostile(t, agenttest.Answers{agent.PathListen: func(c *agenttest.Call) {
		if asked.Add(1) <= 2 {
			taken(c)
			return
		}
		agenttest.Upgraded(func(c *agenttest.Call) {
			agenttest.Raw(agenttest.Frames(agenttest.Event(agent.Listening{}), agenttest.Event(agent.Accepted{ID: "one"})))(c)
			agenttest.Silent(c)
		})(c)
	}, agent.PathAccept: agenttest.Upgraded(func(c *agenttest.Call) {
		agenttest.Raw("GET / HTTP/1.1\r\nHost: codehub\r\n\r\n")(c)
		agenttest.Silent(c)
	})})
	served := make(chan struct{}, 1)
	newWorld(t, upstream(h.Agent), func(http.ResponseWriter, *http.Request) { served <- struct{}{} })
	select {
	case <-served:
	case <-time.After(harness.Patience):
		t.Error("not served")
	}
}

// A workspace has few connections at a time; more wait.
func TestFewRequestsAtATime(t *testing.T) {
	t.Parallel()
	agents := agenttest.New(t)
	agents.Start(id)
	var open, most atomic.Int32
	hold := make(chan struct{})
	w := newWorld(t, agents, func(http.ResponseWriter, *http.Request) {
		n := open.Add(1)
		defer open.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-hold
	})
	harness.Eventually(t, "the agent listens", func() bool { _, err := os.Lstat(w.socket); return err == nil })
	var all sync.WaitGroup
	for range 2 * perWorkspace {
		all.Go(func() {
			if _, err := w.ask(); err != nil {
				t.Error(err)
			}
		})
	}
	harness.Eventually(t, "the first requests are served", func() bool { return open.Load() == perWorkspace })
	close(hold)
	all.Wait()
	if n := most.Load(); n != perWorkspace {
		t.Errorf("%d requests at a time, want %d", n, perWorkspace)
	}
}

// The requests of a workspace have a rate, whether they keep their connection or
// not.
func TestRequestsOfWorkspaceArePaced(t *testing.T) {
	t.Parallel()
	for how, once := range map[string]bool{"connections": true, "requests on one connection": false} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			agents := agenttest.New(t)
			agents.Start(id)
			w := newWorld(t, agents, func(http.ResponseWriter, *http.Request) {})
			harness.Eventually(t, "the agent listens", func() bool { _, err := os.Lstat(w.socket); return err == nil })
			c := w.client(once)
			defer c.CloseIdleConnections()
			began := time.Now()
			const n = burst + perSecond
			for range n {
				if _, err := get(c); err != nil {
					t.Fatal(err)
				}
			}
			// A second for the requests beyond the burst, without the next connection's share.
			if took := time.Since(began); took < time.Second*(perSecond-1)/perSecond {
				t.Errorf("%d requests took %v", n, took)
			}
		})
	}
}

// An agent that does not know the request is not asked in a tight loop.
func TestRefusingAgentIsAskedRarely(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	old := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		http.NotFound(w, nil)
	}))
	t.Cleanup(old.Close)
	w := newWorld(t, upstream(old.Listener.Addr().String()), func(http.ResponseWriter, *http.Request) {})
	harness.Eventually(t, "the agent was asked again", func() bool {
		w.Changed(id)
		return asked.Load() >= 2
	})
	began, before := time.Now(), asked.Load()
	for time.Since(began) < 2*minPause {
		w.Changed(id) // a change of the workspace makes no tight loop either
		time.Sleep(10 * time.Millisecond)
	}
	if n := asked.Load() - before; n > 3 {
		t.Errorf("asked %d times in %v", n, time.Since(began))
	}
}

// An agent that listens and sends no connections is left after each attempt for longer.
func TestFalseAgentIsAskedRarely(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var asked []time.Time
	h := agenttest.Hostile(t, agenttest.Answers{agent.PathListen: agenttest.Upgraded(func(c *agenttest.Call) {
		mu.Lock()
		asked = append(asked, time.Now())
		mu.Unlock()
		agenttest.Endless(agenttest.Frames(agenttest.Event(agent.Listening{})), agenttest.Frames(agent.Frame{Kind: 'z'}))(c)
	})})
	newWorld(t, upstream(h.Agent), func(http.ResponseWriter, *http.Request) {})
	harness.Eventually(t, "the agent was asked four times", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(asked) >= 4
	})
	for i := range 3 {
		if got, want := asked[i+1].Sub(asked[i]), minPause<<i; got < want {
			t.Errorf("pause %d was %v, want %v", i, got, want)
		}
	}
}

type upstream string

func (u upstream) Upstream(context.Context, workspace.ID) (runtime.Upstream, error) {
	return runtime.Upstream{Agent: string(u), Secret: "secret"}, nil
}

// An agent has the settings of git soon after it listens, after a change, and after its restart. They
// are sent only when they have changed.
func TestAgentsHaveSettingsOfGit(t *testing.T) {
	t.Parallel()
	agents := agenttest.New(t)
	agents.Start(id)
	var asked, fails atomic.Int32
	var name atomic.Value
	name.Store("Ann")
	fails.Store(1)
	w := &world{t: t, socket: filepath.Join(t.TempDir(), "client.sock"), git: func(_ context.Context, of workspace.ID) (agent.Git, error) {
		asked.Add(1)
		if fails.Add(-1) >= 0 {
			return agent.Git{}, errors.New("no database")
		}
		return agent.Git{Name: name.Load().(string), Email: string(of) + "@example.com"}, nil
	}}
	w.set(id)
	r, _ := w.start(agents, func(http.ResponseWriter, *http.Request) {})
	has := func(want string) func() bool {
		return func() bool {
			up, err := agents.Upstream(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			c := &agent.Client{Addr: up.Agent, Secret: up.Secret}
			p, err := c.Exec(t.Context(), agent.Command{Args: []string{"sh", "-c", "cat $GIT_CONFIG_SYSTEM"}})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			var out bytes.Buffer
			if _, err := p.Run(&out, io.Discard); err != nil {
				t.Fatal(err)
			}
			return strings.Contains(out.String(), want) && strings.Contains(out.String(), string(id)+"@example.com")
		}
	}
	harness.Eventually(t, "the agent has the name", has(`name = "Ann"`))
	name.Store("Ben")
	r.Changed(id)
	harness.Eventually(t, "the agent has the new name", has(`name = "Ben"`))
	agents.Start(id)
	r.Changed(id)
	harness.Eventually(t, "the agent has the name after a restart", has(`name = "Ben"`))
	before := asked.Load()
	for range 100 {
		r.Changed(id)
	}
	harness.Eventually(t, "the settings are read after events", func() bool { return asked.Load() > before })
	if n := asked.Load() - before; n > 2 {
		t.Errorf("100 events at once made %d reads", n)
	}
}

// An agent of an earlier version is sent the settings of git once.
func TestEarlierAgentTakesNoSettingsOfGit(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	h := agenttest.Hostile(t, agenttest.Answers{agent.PathListen: agenttest.Upgraded(func(c *agenttest.Call) {
		agenttest.Raw(agenttest.Frames(agenttest.Event(agent.Listening{})))(c)
		agenttest.Silent(c)
	}), agent.PathGit: func(c *agenttest.Call) {
		asked.Add(1)
		agenttest.Refused(http.StatusNotFound, "404 page not found")(c)
	}})
	w := &world{t: t, socket: filepath.Join(t.TempDir(), "client.sock"), git: func(context.Context, workspace.ID) (agent.Git, error) {
		return agent.Git{Name: "Ann"}, nil
	}}
	w.set(id)
	r, _ := w.start(upstream(h.Agent), func(http.ResponseWriter, *http.Request) {})
	harness.Eventually(t, "the agent was asked", func() bool { return asked.Load() == 1 })
	for range 3 {
		r.Changed(id)
		time.Sleep(minPause)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
}
