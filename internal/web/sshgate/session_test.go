package sshgate_test

import (
	"errors"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"codehub/internal/testing/harness"
)

// started is a command of a session without OpenSSH's client, which sends no signals.
type started struct {
	*ssh.Session
	out *safeBuffer
}

// start runs a command and waits until its output begins with ready. prepare changes the session
// before.
func (w *world) start(command, ready string, prepare func(*ssh.Session)) started {
	w.Helper()
	s, err := w.client("demo", w.key).NewSession()
	check(w, err)
	out := &safeBuffer{}
	s.Stdout = out
	prepare(s)
	check(w, s.Start(command))
	harness.Eventually(w, "the output "+ready, func() bool { return strings.HasPrefix(out.String(), ready) })
	return started{s, out}
}

// end waits until the command has ended, and returns its exit status and the signal that ended
// it.
func (s started) end(t testing.TB) (status int, signal string) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- s.Wait() }()
	select {
	case err := <-done:
		var exit *ssh.ExitError
		if errors.As(err, &exit) {
			return exit.ExitStatus(), exit.Signal()
		}
		check(t, err)
	case <-time.After(harness.Patience):
		t.Fatalf("the command has not ended; its output is %q", s.out)
	}
	return 0, ""
}

// pauses is a loop in which a shell runs its traps soon. It ends by itself if nothing else
// ends it.
const pauses = "for i in $(seq 12000); do sleep 0.01; done"

func TestSignalReachesCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.start("trap 'echo trapped; exit 7' TERM; echo ready; "+pauses, "ready\n", func(*ssh.Session) {})
	// Requests that the session refuses do not end it.
	size := ssh.Marshal(struct{ Columns, Rows, Width, Height uint32 }{100, 30, 0, 0})
	for request, payload := range map[string][]byte{"signal": ssh.Marshal(struct{ Name string }{"STOP"}), "window-change": size} {
		if ok, err := s.SendRequest(request, true, payload); err != nil || ok {
			t.Errorf("%s without a terminal: %v %v, want a refusal", request, ok, err)
		}
	}
	check(t, s.Signal(ssh.SIGTERM))
	if status, signal := s.end(t); status != 7 || signal != "" || s.out.String() != "ready\ntrapped\n" {
		t.Errorf("status %d, signal %q, output %q", status, signal, s.out)
	}
}

// The client learns the signal that ended a command. A signal that RFC 4254 does not name has
// OpenSSH's suffix.
func TestExitSignal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const waits = "echo ready; exec sleep 1000"
	for _, c := range []struct {
		command string
		send    ssh.Signal // empty: the command ends by itself
		want    string
	}{
		{waits, ssh.SIGTERM, "TERM"},
		{waits, ssh.SIGKILL, "KILL"},
		{waits, ssh.SIGUSR1, "USR1"},
		{"echo ready; kill -VTALRM $$", "", "VTALRM@openssh.com"},
	} {
		s := w.start(c.command, "ready\n", func(*ssh.Session) {})
		if c.send != "" {
			check(t, s.Signal(c.send))
		}
		if status, signal := s.end(t); signal != c.want || status < 128 {
			t.Errorf("%s after %q: status %d, signal %q, want %q", c.command, c.send, status, signal, c.want)
		}
	}
}

// A command sees the size of the client's window, that of the beginning and each change, and gets
// the signal of a change. Its trap only sets a variable: bash loses a signal that arrives while it
// runs the trap of the one before.
func TestWindowSize(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const command = `trap 'signal=WINCH' WINCH; trap 'exit 3' TERM; while :; do echo "$(stty size) $signal"; sleep 0.05; done`
	s := w.start(command, "30 100 \r\n", func(s *ssh.Session) {
		check(t, s.RequestPty("xterm", 24, 80, ssh.TerminalModes{}))
		check(t, s.WindowChange(30, 100))
	})
	for _, c := range []struct {
		rows, cols int
		output     string
	}{{40, 120, "\n40 120 WINCH\r\n"}, {5, 20, "\n5 20 WINCH\r\n"}} {
		check(t, s.WindowChange(c.rows, c.cols))
		harness.Await(t, harness.Patience, "the new size in the output", s.out.String, func(out string) bool { return strings.Contains(out, c.output) })
	}
	check(t, s.Signal(ssh.SIGTERM))
	if status, signal := s.end(t); status != 3 || signal != "" {
		t.Errorf("status %d, signal %q, output %q", status, signal, s.out)
	}
}

// A command ends while its client's input is open, and the client closes the channel without
// EOF, as OpenSSH's does then. Nothing reads the channel after that. Not parallel: it looks at
// the goroutines of the process.
func TestClosedChannelHasNoReader(t *testing.T) {
	w := newWorld(t)
	const sessions = 20
	c := w.client("demo", w.key)
	for range sessions {
		s, err := c.NewSession()
		check(t, err)
		_, err = s.StdinPipe() // is never closed
		check(t, err)
		check(t, s.Run("true"))
	}
	stacks := func() string {
		var b strings.Builder
		check(t, pprof.Lookup("goroutine").WriteTo(&b, 2))
		return b.String()
	}
	harness.Await(t, harness.Patience, "no goroutine reads a channel", stacks, func(all string) bool { return !strings.Contains(all, "sshgate.(*channel).Read(") })
	c.Close()
	harness.Eventually(t, "the connection ends", func() bool { return w.gate.Open() == 0 })
}
