package reconcile_test

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	"codehub/internal/control/reconcile"
	"codehub/internal/runtime"
	"codehub/internal/runtime/agent"
	"codehub/internal/runtime/agent/inside"
	"codehub/internal/testing/agenttest"
	"codehub/internal/workspace"
)

// agentOf starts an agent with the secret of a container that waits for a setup.
func agentOf(t *testing.T, secret string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Error(err)
		return ""
	}
	s := inside.NewServer(inside.Config{Secret: secret, Home: t.TempDir(), AwaitsSetup: true, Processes: &inside.Processes{}, Log: slog.New(slog.DiscardHandler)})
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// The agent gets the setup before the IDE is awaited, also from a leader that takes over when
// the container has started.
func TestSetupIsSentAfterFailover(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) {
		w.setups = []reconcile.Setup{func(_ context.Context, row workspace.Workspace, s *agent.Setup) error {
			s.Env = map[string]string{"OF": string(row.ID)}
			return nil
		}}
	})
	g := w.gate(reconcile.SetupStep)
	w.step = g.hold
	w.fake.SetAgent(func(_ workspace.ID, secret string) string { return agentOf(t, secret) })
	stop := w.lead()
	id := w.create("demo", workspace.DesiredRunning)
	w.reached(g)
	time.AfterFunc(10*time.Millisecond, g.letGo) // the executor has ended by then
	stop()
	if _, env := w.fake.Environment(id); env[runtime.SetupEnv] != "1" {
		t.Fatalf("the container does not wait: %v", env)
	}
	up, err := w.fake.Upstream(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	c := &agent.Client{Addr: up.Agent, Secret: up.Secret}
	if s, err := c.SetupStatus(t.Context()); err != nil || !s.Waiting {
		t.Fatalf("%+v, %v", s, err)
	}
	w.lead()
	w.awaitPhase(id, workspace.PhaseRunning)
	if s, err := c.SetupStatus(t.Context()); err != nil || s.Waiting {
		t.Errorf("%+v, %v", s, err)
	}
}

// A workspace that needs nothing starts without a message.
func TestStartWithoutSetup(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake.SetAgent(func(workspace.ID, string) string { return agenttest.Hostile(t, agenttest.Answers{}).Agent })
	w.lead()
	id := w.create("demo", workspace.DesiredRunning)
	w.awaitPhase(id, workspace.PhaseRunning)
	if _, env := w.fake.Environment(id); env[runtime.SetupEnv] != "" {
		t.Errorf("%v", env)
	}
}
