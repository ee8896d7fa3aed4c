package docker

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"codehub/internal/runtime/agent"
)

// The agent of a container with a setup starts the IDE when it has got that, and the setup is
// nowhere in the container's configuration.
func TestAgentAwaitsSetup(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	spec := newHome()
	spec.Setup = true
	seed(t, r, spec)
	started, err := r.StartContainer(t.Context(), spec, nil)
	check(t, err)
	up, err := r.Upstream(t.Context(), spec.Workspace)
	check(t, err)
	hello(t, up)
	c := inspectOf(t, r, up)
	if n := len(childrenOf(t, c.State.Pid)); n != 0 {
		t.Fatalf("%d processes run before the setup", n)
	}
	a := &agent.Client{Addr: up.Agent, Secret: up.Secret}
	if s, err := a.SetupStatus(t.Context()); err != nil || !s.Waiting {
		t.Fatalf("%+v, %v", s, err)
	}
	check(t, a.Setup(t.Context(), agent.Setup{Env: map[string]string{"TOKEN": "of-setup"}, Files: []agent.File{{Path: ".token", Content: []byte("of-file")}}}))
	awaitHealthy(t, r, started)
	if env := procFile(t, ideOf(t, c), "environ"); !slices.Contains(env, "TOKEN=of-setup") {
		t.Errorf("the IDE's environment is %q", env)
	}
	c = inspectOf(t, r, up)
	if raw, err := json.Marshal(c); err != nil || strings.Contains(string(raw), "of-setup") || strings.Contains(string(raw), "of-file") {
		t.Errorf("the container's configuration has the setup: %s, %v", raw, err)
	}
	if s, err := a.SetupStatus(t.Context()); err != nil || s.Waiting || len(s.Steps) > 0 {
		t.Errorf("%+v, %v", s, err)
	}
}
