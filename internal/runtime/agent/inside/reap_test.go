package inside

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// asReaper is the variable by which the test's executable becomes a reaper of orphans
// in a process of its own: a reaper in the test itself would take the commands of
// other tests.
const asReaper = "CODEHUB_TEST_REAPER"

func init() {
	if os.Getenv(asReaper) == "" {
		return
	}
	os.Unsetenv(asReaper)
	if err := json.NewEncoder(os.Stdout).Encode(reapMany()); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// reapMany runs hundreds of commands at once, each of which leaves orphans, and
// returns what went wrong.
func reapMany() (problems []string) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return []string{err.Error()}
	}
	p := &Processes{}
	go p.Reap(nil)
	var mu sync.Mutex
	report := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		problems = append(problems, fmt.Sprintf(format, args...))
	}
	// Its owner waits for it last: until then the kernel names it before all others.
	late := exec.Command("/bin/sh", "-c", "exit 77")
	if err := p.Start(late); err != nil {
		report("start: %v", err)
	}
	turns := make(chan struct{}, 30)
	var all sync.WaitGroup
	for i := range 300 {
		all.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			code := i % 100
			cmd := exec.Command("/bin/sh", "-c", "sleep 0.01 & sleep 0.02 & (true &) ; exit "+strconv.Itoa(code))
			if err := p.Start(cmd); err != nil {
				report("start: %v", err)
				return
			}
			err := p.Wait(cmd)
			var exit *exec.ExitError
			if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != code || code != 0 && !errors.As(err, &exit) {
				report("command %d: %v, %v", code, cmd.ProcessState, err)
			}
		})
	}
	all.Wait()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		left := children()
		if len(left) == 1 && left[0] == late.Process.Pid {
			break
		}
		if time.Now().After(deadline) {
			report("children are left: %v", left)
			break
		}
	}
	if err := p.Wait(late); late.ProcessState.ExitCode() != 77 {
		report("the late command: %v", err)
	}
	if left := children(); len(left) != 0 {
		report("at the end children are left: %v", left)
	}
	return problems
}

func TestReapBesideCommands(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), asReaper+"=1")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	var problems []string
	if err := json.Unmarshal(out.Bytes(), &problems); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	if len(problems) > 0 {
		t.Errorf("%d problems:\n%s", len(problems), strings.Join(problems, "\n"))
	}
}
