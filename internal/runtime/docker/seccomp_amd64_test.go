package docker

import (
	"errors"
	"os/exec"
	"syscall"
	"testing"

	"codehub/internal/testing/harness"
)

// Only amd64 runs programs for 386, and not every kernel does.
func TestSystemCallsOf32BitProgram(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	if err := exec.Command(probeBinary(t, "386")).Run(); errors.Is(err, syscall.ENOEXEC) {
		t.Skip("skipped: the kernel of this machine runs no 32-bit programs, so none can make system calls")
	}
	r := newRuntime(t, nil)
	up := running(t, r)
	putProbe(t, r, up.ContainerID, "386")
	got := probeInside[map[string]string](t, r, up.ContainerID, "/probe386", "calls")
	compareCalls(t, callsOf(map[string]string{"socketcall vsock": "ENOSYS"}), got)
}
