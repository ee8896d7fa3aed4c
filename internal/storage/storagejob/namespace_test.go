package storagejob

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// inNamespace is set in the process that may mount file systems.
const inNamespace = "CODEHUB_TEST_IN_NAMESPACE"

// inMountNamespace runs the rest of a test in another process with mounts of its own.
func inMountNamespace(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	if os.Getenv(inNamespace) == t.Name() {
		check(t, syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
		f(t)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), inNamespace+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("in a mount namespace (root or user namespaces are needed): %v\n%s", err, out)
	}
}
