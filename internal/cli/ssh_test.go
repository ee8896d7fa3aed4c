package cli

import (
	"context"
	"log/slog"
	"net"
	"testing"

	"codehub/internal/running/attach"
	"codehub/internal/runtime"
	"codehub/internal/runtime/agent/inside"
	"codehub/internal/testing/harness/web"
	"codehub/internal/web/sshgate"
	"codehub/internal/workspace"
)

// agentHere is the runtime of workspaces whose agent runs in the test process.
type agentHere struct{ addr string }

func (a agentHere) Upstream(context.Context, workspace.ID) (runtime.Upstream, error) {
	return runtime.Upstream{ContainerID: "here", Agent: a.addr, Secret: "secret"}, nil
}

// openGate returns the SSH gate of a server, without a listener.
func openGate(t testing.TB, srv *web.Server) *sshgate.Gate {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	agent := inside.NewServer(inside.Config{Secret: "secret", Version: "test", Home: t.TempDir(), Processes: &inside.Processes{}, Log: log})
	go func() { defer close(served); _ = agent.Serve(l) }()
	t.Cleanup(func() { l.Close(); <-served })
	seed, err := srv.DB.SSHHostKey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	gate, err := sshgate.New(sshgate.Config{
		Settings: sshgate.Settings{MaxConnections: 10, MaxPerUser: 10}, Budget: sshgate.BudgetOf(1 << 30), Seed: seed, Store: srv.DB, Log: log,
		Attacher: attach.New(attach.Config{Store: srv.DB, Runtime: agentHere{l.Addr().String()}, Sessions: srv.Auth}),
		PageOf:   func(workspace.ID) string { return "" },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { gate.Close(context.Background()) })
	return gate
}
