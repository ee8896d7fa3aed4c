package dashboard

import (
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"codehub/internal/running/attach"
	"codehub/internal/running/ports"
	"codehub/internal/runtime/agent"
	"codehub/internal/testing/agenttest"
	"codehub/internal/workspace"
)

// What a hostile agent says of processes, ports and commands is text on the page, and an agent that
// answers nothing, or of another version, leaves the rest of the page.
func TestPageOfHostileWorkspace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	agents, _ := w.withTerminals()
	w.dash.Ports = ports.New(ports.Config{
		Store: w.DB, Runtime: agents, Attacher: attach.New(attach.Config{Store: w.DB, Runtime: agents, Sessions: w.Auth}),
		Layout: w.layout, Settings: ports.Settings{PortVisibilityMax: string(workspace.VisiblePublic), PortShareMax: time.Hour},
	})
	id := w.add("shell", running)
	b := w.as("admin")
	page := "/workspaces/" + string(id)
	const script = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
	agents.Replace(id, agenttest.Answers{
		agent.PathPorts: agenttest.JSON(agent.Ports{Ports: []agent.Port{
			{Port: 3000, Process: script + "\u202e\x1b[2J", Since: math.MaxInt64}, {Port: -7, Process: "negative"}, {Port: 99999},
		}}),
		agent.PathUsage: agenttest.JSON(agent.Usage{CPUSeconds: math.MaxFloat64, Memory: math.MaxInt64, MemoryLimit: 1, Disk: math.MaxInt64, Holders: []agent.Holder{{What: script, Since: math.MinInt64}}}),
	})
	for path, want := range map[string]string{page: "3000", page + "/usage": "&lt;script&gt;"} {
		res := b.get(path)
		if res.status != http.StatusOK || !strings.Contains(res.body, want) {
			t.Errorf("%s: %d without %q: %s", path, res.status, want, res.body)
		}
		for _, bad := range []string{"<script>alert", "<img src=x", "\u202e", "\x1b", "negative", "99999", "-7--"} {
			if strings.Contains(res.body, bad) {
				t.Errorf("%s has %q", path, bad)
			}
		}
	}
	for name, answers := range map[string]agenttest.Answers{
		"refuses":       {agent.PathPorts: agenttest.Refused(http.StatusTeapot, script), agent.PathUsage: agenttest.Refused(http.StatusTeapot, script)},
		"later version": {agent.PathHello: agenttest.JSON(agent.Hello{Version: 2, Oldest: 2})},
		"no HTTP":       {agent.PathPorts: agenttest.Raw(script), agent.PathUsage: agenttest.Raw(script)},
	} {
		agents.Replace(id, answers)
		for _, path := range []string{page, page + "/usage"} {
			if res := b.get(path); res.status != http.StatusOK || strings.Contains(res.body, "<script>alert") {
				t.Errorf("%s: %s: %d", name, path, res.status)
			}
		}
		if res := b.get(page); !strings.Contains(res.body, "restart it") {
			t.Errorf("%s: the page does not say what helps", name)
		}
	}
}
