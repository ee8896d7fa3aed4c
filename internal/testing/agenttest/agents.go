// Package agenttest runs agents of workspaces in a test's own process, where the
// server looks for those of containers.
package agenttest

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"codehub/internal/runtime"
	"codehub/internal/runtime/agent"
	"codehub/internal/runtime/agent/inside"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// Agents are the agents of the workspaces that run. It is what runtime.Upstreams asks.
type Agents struct {
	t         testing.TB
	processes *inside.Processes

	mu sync.Mutex
	by map[workspace.ID]*Agent
}

// Agent is the agent of one workspace.
type Agent struct {
	runtime.Upstream
	Home       string
	BusySocket string // of package busy

	listener net.Listener
	served   chan struct{}
	mu       sync.Mutex
	stopped  bool
	conns    map[net.Conn]struct{}
}

// New returns Agents without one.
func New(t testing.TB) *Agents {
	a := &Agents{t: t, processes: &inside.Processes{}, by: map[workspace.ID]*Agent{}}
	t.Cleanup(func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, agent := range a.by {
			agent.stop()
		}
	})
	return a
}

// Start starts the agent of a workspace, in the place of an earlier one.
func (a *Agents) Start(id workspace.ID) *Agent {
	a.t.Helper()
	a.Stop(id)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		a.t.Fatal(err)
	}
	n := newAgent(l)
	n.Home = a.home()
	n.BusySocket = filepath.Join(a.t.TempDir(), "codehub", "busy.sock")
	sockets := filepath.Dir(n.BusySocket)
	s := inside.NewServer(inside.Config{
		Secret: n.Secret, Version: "test", Home: n.Home, BusySocket: n.BusySocket, Processes: a.processes, Log: slog.New(slog.DiscardHandler),
		AwaitsSetup: true, GitConfig: filepath.Join(a.t.TempDir(), "gitconfig"), SSHSocket: filepath.Join(sockets, filepath.Base(agent.SSHSocket)),
		ClientSocket: filepath.Join(sockets, filepath.Base(agent.ClientSocket)), Workspace: string(id),
	})
	go func() {
		defer close(n.served)
		_ = s.Serve(tracked{l, n})
	}()
	harness.Eventually(a.t, "the agent serves", func() bool {
		conn, err := net.Dial("unix", n.BusySocket)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	a.by[id] = n
	return n
}

func newAgent(l net.Listener) *Agent {
	return &Agent{
		Upstream: runtime.Upstream{ContainerID: rand.Text(), Secret: rand.Text(), Agent: l.Addr().String()},
		listener: l, served: make(chan struct{}), conns: map[net.Conn]struct{}{},
	}
}

// home makes a home. Shells may write their history in it while they are hung up.
func (a *Agents) home() string {
	dir, err := os.MkdirTemp("", "codehub-home")
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() {
		harness.Eventually(a.t, "the home is removed", func() bool { return os.RemoveAll(dir) == nil })
	})
	return dir
}

// Stop ends the agent of a workspace, with its connections, if there is one.
func (a *Agents) Stop(id workspace.ID) {
	a.mu.Lock()
	n := a.by[id]
	delete(a.by, id)
	a.mu.Unlock()
	if n != nil {
		n.stop()
	}
}

// Upstream implements runtime.Upstreams.
func (a *Agents) Upstream(_ context.Context, id workspace.ID) (runtime.Upstream, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.by[id]
	if n == nil {
		return runtime.Upstream{}, fmt.Errorf("workspace %s: %w", id, runtime.ErrNotFound)
	}
	return n.Upstream, nil
}

func (n *Agent) stop() {
	n.listener.Close()
	n.mu.Lock()
	n.stopped = true
	for c := range n.conns {
		c.Close()
	}
	n.mu.Unlock()
	<-n.served
}

// tracked keeps the connections, which the agent's HTTP server gives away.
type tracked struct {
	net.Listener
	agent *Agent
}

func (l tracked) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.agent.mu.Lock()
		defer l.agent.mu.Unlock()
		if l.agent.stopped {
			c.Close()
		}
		l.agent.conns[c] = struct{}{}
	}
	return c, err
}
