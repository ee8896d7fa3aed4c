package docker

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"codehub/internal/runtime/docker/helper"
	"codehub/internal/testing/harness"
)

// A confined container has the loopback device and no other, in a network
// namespace of its own.
func TestConfinedContainerHasOnlyLoopback(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	made, err := r.engine.API.ContainerCreate(t.Context(), helper.Confined{
		Image: harness.TestImage(), Labels: r.engine.Labels("test", "", ""), Limits: helper.JobLimits(),
	}.Options())
	check(t, err)
	defer func() {
		if err := r.engine.Discard(t.Context(), made.ID); err != nil {
			t.Error(err)
		}
	}()
	must(t)(r.engine.API.ContainerStart(t.Context(), made.ID, client.ContainerStartOptions{}))
	info, err := r.engine.API.ContainerInspect(t.Context(), made.ID, client.ContainerInspectOptions{})
	check(t, err)
	pid := info.Container.State.Pid
	devices, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", pid))
	check(t, err)
	lines := strings.Split(strings.TrimSpace(string(devices)), "\n")[2:] // after two lines of headings
	if len(lines) != 1 || !strings.HasPrefix(strings.TrimSpace(lines[0]), "lo:") {
		t.Errorf("its network devices are:\n%s", devices)
	}
	ours, err := os.Readlink("/proc/self/ns/net")
	check(t, err)
	its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil || its == ours {
		t.Errorf("it shares the network namespace %s with the host (%v)", its, err)
	}
	if networks := info.Container.NetworkSettings.Networks; len(networks) != 0 {
		t.Errorf("Docker attached it to networks: %v", networks)
	}
}
