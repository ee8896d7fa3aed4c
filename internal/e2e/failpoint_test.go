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

// withFailpoints builds the server so that it does at the steps of its
// operations what a test says (internal/failpoint).
var withFailpoints = sync.OnceValues(func() (string, error) {
	binary := filepath.Join(env.scratch, "codehub-failpoint")
	cmd := exec.Command("go", "build", "-tags", "failpoint", "-trimpath", "-ldflags", "-s -w", "-o", binary, "./cmd/codehub")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the server with failpoints: %w: %s", err, out)
	}
	return binary, nil
})

// failing is a server with failpoints.
type failing struct {
	*server
	spec, log string

	mu    sync.Mutex
	armed map[string]string // "step[@workspace][:n]" → action
	holds map[string]int    // how often somebody was held there before it was armed
}

func startFailing(t *testing.T, settings ...string) *failing {
	t.Helper()
	binary, err := withFailpoints()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	f := &failing{spec: filepath.Join(dir, "failpoints"), log: filepath.Join(dir, "steps"), armed: map[string]string{}, holds: map[string]int{}}
	if !slices.ContainsFunc(settings, func(kv string) bool { return strings.HasPrefix(kv, "CODEHUB_DATABASE_URL=") }) {
		settings = append(settings, "CODEHUB_DATABASE_URL="+database(t))
	}
	f.server = startBinary(t, binary, append(settings, "CODEHUB_FAILPOINT="+f.spec, "CODEHUB_FAILPOINT_LOG="+f.log)...)
	cleanup(t, func() { _ = syscall.Kill(f.Pid(), syscall.SIGCONT) }) // one that is stopped cannot end
	return f
}

// arm has an action taken when a step is passed, say "restore.marked@"+id.
func (f *failing) arm(ask, action string) {
	f.Helper()
	f.set(func() { f.armed[ask], f.holds[ask] = action, f.heldAt(ask) })
}

// disarm takes it back; without a name, everything. What is held goes on.
func (f *failing) disarm(asks ...string) {
	f.Helper()
	f.set(func() {
		for _, ask := range asks {
			delete(f.armed, ask)
		}
		if len(asks) == 0 {
			clear(f.armed)
		}
	})
}

func (f *failing) set(change func()) {
	f.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	var lines strings.Builder
	for _, ask := range slices.Sorted(maps.Keys(f.armed)) {
		fmt.Fprintf(&lines, "%s=%s\n", ask, f.armed[ask])
	}
	err := os.WriteFile(f.spec+".new", []byte(lines.String()), 0o600)
	if err == nil {
		err = os.Rename(f.spec+".new", f.spec)
	}
	if err != nil {
		f.Fatal(err)
	}
}

// steps are the steps that a workspace has passed, in order.
func (f *failing) steps(id string) []string {
	f.Helper()
	raw, err := os.ReadFile(f.log)
	if err != nil && !os.IsNotExist(err) {
		f.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(raw)) {
		if step, of, _ := strings.Cut(strings.TrimSpace(line), " "); of == id {
			out = append(out, step)
		}
	}
	return out
}

// held waits until an operation waits at a step where it was asked to.
func (f *failing) held(ask string) {
	f.Helper()
	deadline := time.Now().Add(patience)
	for f.heldAt(ask) <= f.holds[ask] {
		if time.Now().After(deadline) {
			f.Fatalf("nobody came by %s", ask)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// heldAt is how often somebody was held there.
func (f *failing) heldAt(ask string) int {
	f.Helper()
	raw, err := os.ReadFile(f.log)
	if err != nil && !os.IsNotExist(err) {
		f.Fatal(err)
	}
	return strings.Count(string(raw), "held "+ask+"\n")
}

// died waits until the server has ended by itself.
func (f *failing) died() {
	f.Helper()
	select {
	case <-f.Done():
	case <-time.After(time.Minute):
		f.Fatal("the server lives on")
	}
}

// stopped waits until the server's process is stopped (SIGSTOP).
func (f *failing) stopped() {
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
			f.Fatal("the server was never stopped")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// resume lets a stopped server go on.
func (f *failing) resume() {
	f.Helper()
	if err := syscall.Kill(f.Pid(), syscall.SIGCONT); err != nil {
		f.Fatal(err)
	}
}
