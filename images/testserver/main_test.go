package main

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestMain lets the test binary be the server, so that signals and exit codes are
// tested on a process of its own.
func TestMain(m *testing.M) {
	if os.Getenv("TESTSERVER_TEST_AS_MAIN") == "1" {
		main()
	}
	os.Exit(m.Run())
}

// start runs the server as a process and returns it with its output, line by line.
func start(t *testing.T, env ...string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "TESTSERVER_TEST_AS_MAIN=1", "TESTSERVER_ADDR=127.0.0.1:0")
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewScanner(out)
}

// expect reads the next line and returns what follows prefix in it.
func expect(t *testing.T, lines *bufio.Scanner, prefix string) string {
	t.Helper()
	if !lines.Scan() {
		t.Fatalf("output ended, want %q", prefix)
	}
	rest, ok := strings.CutPrefix(lines.Text(), prefix)
	if !ok {
		t.Fatalf("line %q, want %q", lines.Text(), prefix)
	}
	return rest
}

func TestStopsOnTerm(t *testing.T) {
	t.Parallel()
	cmd, lines := start(t)
	addr := expect(t, lines, "testserver: listening on ")
	if res, _ := request(t, "GET", "http://"+addr+"/healthz", ""); res.StatusCode != 200 {
		t.Errorf("healthz: status = %d, want 200", res.StatusCode)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	expect(t, lines, "testserver: stopped")
	if err := cmd.Wait(); err != nil {
		t.Errorf("exit: %v, want code 0", err)
	}
}

func TestStopsOnTermBeforeItListens(t *testing.T) {
	t.Parallel()
	cmd, lines := start(t, "TESTSERVER_START_DELAY=1h")
	expect(t, lines, "testserver: listening in 1h")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if lines.Scan() {
		t.Errorf("line %q, want none", lines.Text())
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("exit: %v, want code 0", err)
	}
}

func TestIgnoresTermWhenTold(t *testing.T) {
	t.Parallel()
	cmd, lines := start(t, "TESTSERVER_IGNORE_TERM=1")
	addr := expect(t, lines, "testserver: listening on ")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	expect(t, lines, "testserver: ignoring SIGTERM")
	if res, _ := request(t, "GET", "http://"+addr+"/healthz", ""); res.StatusCode != 200 {
		t.Errorf("healthz after SIGTERM: status = %d, want 200", res.StatusCode)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // says that it was killed
}

func TestEndsAtOnce(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name, env string
		wantCode  int
	}{
		{"exit code", "TESTSERVER_EXIT=7", 7},
		{"exit code that is none", "TESTSERVER_EXIT=x", 2},
		{"delay that is none", "TESTSERVER_START_DELAY=soon", 2},
		{"address that is none", "TESTSERVER_ADDR=nowhere", 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cmd, _ := start(t, c.env)
			_ = cmd.Wait() // the exit code tells
			if got := cmd.ProcessState.ExitCode(); got != c.wantCode {
				t.Errorf("exit code = %d, want %d", got, c.wantCode)
			}
		})
	}
}
