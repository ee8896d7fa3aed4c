package inside

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"codehub/internal/testing/harness"
)

func TestHistory(t *testing.T) {
	t.Parallel()
	type run struct {
		ran      time.Duration
		listened bool
	}
	long, short, slow := run{10 * time.Second, true}, run{time.Second, true}, run{time.Hour, false}
	day := run{24 * time.Hour, true}
	for name, test := range map[string]struct {
		runs   []run
		pauses string // of all runs; "end": no further start
	}{
		"ends at once":                 {[]run{short}, "end"},
		"never listened":               {[]run{slow}, "end"},
		"dies again and again":         {[]run{long, long, long, long, long, long, long, long}, "500ms 1s 2s 4s 8s 16s 30s 30s"},
		"runs for a day in between":    {[]run{long, long, day, long}, "500ms 1s 500ms 1s"},
		"comes up no more":             {[]run{long, short, slow, short, short, short}, "500ms 1s 500ms 1s 2s end"},
		"comes up at the last attempt": {[]run{long, short, short, short, short, long, short}, "500ms 1s 2s 4s 8s 16s 30s"},
	} {
		var h history
		var got []string
		for _, r := range test.runs {
			pause, again := h.next(r.ran, r.listened)
			if !again {
				got = append(got, "end")
				break
			}
			got = append(got, pause.String())
		}
		if text := strings.Join(got, " "); text != test.pauses {
			t.Errorf("%s: %s, want %s", name, text, test.pauses)
		}
	}
}

// world is what a supervisor sees, in place of a container.
type world struct {
	supervisor
	signals chan os.Signal
	mu      sync.Mutex
	told    []syscall.Signal // the others
	others  bool             // there are some, which ignore their signals
	out     bytes.Buffer
}

func (w *world) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.out.Write(p)
}

func newWorld(command ...string) *world {
	w := &world{signals: make(chan os.Signal, 16)}
	w.supervisor = supervisor{
		command: command, env: os.Environ(), processes: &Processes{}, signals: w.signals,
		listens: func() bool { return true }, oomKills: func() int64 { return 0 }, log: slog.New(slog.NewTextHandler(w, nil)),
		others: func(sig syscall.Signal) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if sig != 0 {
				w.told = append(w.told, sig)
			}
			if !w.others {
				return syscall.ESRCH
			}
			return nil
		},
	}
	return w
}

func TestIDEThatFails(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		command []string
		code    int
		reason  string
	}{
		"exit code":   {[]string{"/bin/sh", "-c", "exit 3"}, 3, "exit code 3"},
		"signal":      {[]string{"/bin/sh", "-c", "kill -9 $$"}, 137, "killed by SIGKILL"},
		"not there":   {[]string{"/no/such/file"}, 127, "no such file"},
		"not on PATH": {[]string{"no-such-command"}, 127, "not found"},
		"no program":  {[]string{"/etc/passwd"}, 126, "permission denied"},
	} {
		w := newWorld(test.command...)
		if code := w.run(); code != test.code || !strings.Contains(w.out.String(), test.reason) {
			t.Errorf("%s: code %d, %s", name, code, w.out.String())
		}
	}
}

func TestOutOfMemoryIsNamed(t *testing.T) {
	t.Parallel()
	w := newWorld("/bin/sh", "-c", "kill -9 $$")
	kills := int64(0)
	w.oomKills = func() int64 { kills++; return kills }
	if code := w.run(); code != 137 || !strings.Contains(w.out.String(), "out of memory") {
		t.Errorf("code %d, %s", code, w.out.String())
	}
}

// The IDE's whole group gets the signals that arrive. SIGHUP does not stop the agent.
func TestSignalsReachTheIDE(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const script = `cd "$1"
(trap "" HUP; trap "touch child; exit" TERM; touch ready2; while :; do sleep 0.02; done) &
trap "touch hup" HUP; trap "wait; exit 5" TERM; touch ready; while :; do sleep 0.02; done`
	w := newWorld("/bin/sh", "-c", script, "ide", dir)
	w.others = true
	code := make(chan int, 1)
	go func() { code <- w.run() }()
	there := func(name string) {
		harness.Eventually(t, name, func() bool { _, err := os.Stat(filepath.Join(dir, name)); return err == nil })
	}
	there("ready")
	there("ready2")
	w.signals <- syscall.SIGHUP
	there("hup")
	w.signals <- syscall.SIGTERM
	there("child")
	if got := <-code; got != 5 {
		t.Errorf("code %d", got)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Contains(w.told, syscall.SIGTERM) || !slices.Contains(w.told, syscall.SIGHUP) {
		t.Errorf("the other processes got %v", w.told)
	}
}

func TestListensOn(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0", ":0"} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		if !listensOn(port) {
			t.Errorf("%s: not found", l.Addr())
		}
		l.Close()
		harness.Eventually(t, fmt.Sprintf("port %d is closed", port), func() bool { return !listensOn(port) })
	}
}

func TestAgentIsNotForUseByHand(t *testing.T) {
	t.Parallel()
	if code := Main([]string{"--", "/bin/true"}, "test"); code != 2 {
		t.Errorf("code %d", code)
	}
}
