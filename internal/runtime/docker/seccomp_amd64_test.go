package docker

import "testing"

// Only amd64 runs programs for 386.
func TestSystemCallsOf32BitProgram(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	up := running(t, r)
	putProbe(t, r, up.ContainerID, "386")
	got := probeInside[map[string]string](t, r, up.ContainerID, "/probe386", "calls")
	compareCalls(t, callsOf(map[string]string{"socketcall vsock": "ENOSYS"}), got)
}
