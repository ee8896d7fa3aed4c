package e2e

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// failpointBinary builds a server with failpoints: at a step of an operation it
// takes the action that the test armed (internal/failpoint).
var failpointBinary = sync.OnceValues(func() (string, error) {
	binary := filepath.Join(env.scratch, "codehub-failpoint")
	cmd := exec.Command("go", "build", "-tags", "failpoint", "-trimpath", "-ldflags", "-s -w", "-o", binary, "./cmd/codehub")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the server with failpoints: %w: %s", err, out)
	}
	return binary, nil
})

// failpointServer is a server with failpoints.
type failpointServer struct {
	*server
	spec, log string

	mu    sync.Mutex
	armed map[string]string // "step[@workspace][:n]" → action
	holds map[string]int    // number of holds at the failpoint before it was armed
}

func startWithFailpoints(t *testing.T, settings ...string) *failpointServer {
	t.Helper()
	binary, err := failpointBinary()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	f := &failpointServer{spec: filepath.Join(dir, "failpoints"), log: filepath.Join(dir, "steps"), armed: map[string]string{}, holds: map[string]int{}}
	if !slices.ContainsFunc(settings, func(kv string) bool { return strings.HasPrefix(kv, "CODEHUB_DATABASE_URL=") }) {
		settings = append(settings, "CODEHUB_DATABASE_URL="+database(t))
	}
	f.server = startBinary(t, binary, append(settings, "CODEHUB_FAILPOINT="+f.spec, "CODEHUB_FAILPOINT_LOG="+f.log)...)
	cleanup(t, func() { _ = syscall.Kill(f.Pid(), syscall.SIGCONT) }) // a stopped process does not handle SIGTERM
	return f
}

// arm sets the action that the server takes at a failpoint, for example
// "restore.marked@"+id.
func (f *failpointServer) arm(point, action string) {
	f.Helper()
	f.set(func() { f.armed[point], f.holds[point] = action, f.holdCount(point) })
}

// disarm removes the actions of the failpoints, without arguments of all of
// them. Operations held there continue.
func (f *failpointServer) disarm(points ...string) {
	f.Helper()
	f.set(func() {
		for _, point := range points {
			delete(f.armed, point)
		}
		if len(points) == 0 {
			clear(f.armed)
		}
	})
}

func (f *failpointServer) set(change func()) {
	f.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	var lines strings.Builder
	for _, point := range slices.Sorted(maps.Keys(f.armed)) {
		fmt.Fprintf(&lines, "%s=%s\n", point, f.armed[point])
	}
	err := os.WriteFile(f.spec+".new", []byte(lines.String()), 0o600)
	if err == nil {
		err = os.Rename(f.spec+".new", f.spec)
	}
	if err != nil {
		f.Fatal(err)
	}
}

// steps returns the steps that operations of a workspace have passed, in order.
func (f *failpointServer) steps(id string) []string {
	f.Helper()
	raw, err := os.ReadFile(f.log)
	if err != nil && !os.IsNotExist(err) {
		f.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(raw)) {
		if step, workspace, _ := strings.Cut(strings.TrimSpace(line), " "); workspace == id {
			out = append(out, step)
		}
	}
	return out
}

// awaitHeld waits until an operation is held at the failpoint.
func (f *failpointServer) awaitHeld(point string) {
	f.Helper()
	deadline := time.Now().Add(patience)
	for f.holdCount(point) <= f.holds[point] {
		if time.Now().After(deadline) {
			f.Fatalf("no operation reached the failpoint %s", point)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// holdCount returns how many times an operation was held at the failpoint.
func (f *failpointServer) holdCount(point string) int {
	f.Helper()
	raw, err := os.ReadFile(f.log)
	if err != nil && !os.IsNotExist(err) {
		f.Fatal(err)
	}
	return strings.Count(string(raw), "held "+point+"\n")
}

// awaitExit waits until the server process has exited.
func (f *failpointServer) awaitExit() {
	f.Helper()
	select {
	case <-f.Done():
	case <-time.After(patience):
		f.Fatal("the server has not exited")
	}
}

// awaitStopped waits until the server process is stopped (SIGSTOP).
func (f *failpointServer) awaitStopped() {
	f.Helper()
	deadline := time.Now().Add(patience)
	for {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", f.Pid()))
		if err != nil {
			f.Fatal(err)
		}
		if _, after, _ := strings.Cut(string(stat), ") "); strings.HasPrefix(after, "T") {
			return
		}
		if time.Now().After(deadline) {
			f.Fatal("the server process did not stop")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// resume continues a stopped server process.
func (f *failpointServer) resume() {
	f.Helper()
	if err := syscall.Kill(f.Pid(), syscall.SIGCONT); err != nil {
		f.Fatal(err)
	}
}
