package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/coder/websocket"

	"codehub/api"
	"codehub/internal/testing/harness"
)

// execServer serves a workspace whose commands serve runs.
func execServer(t *testing.T, serve http.HandlerFunc) execCmd {
	t.Helper()
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	const id = "019a0000-0000-7000-8000-000000000001"
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/exec") {
			serve(w, r)
			return
		}
		fmt.Fprintf(w, `{"id": %q}`, id)
	}))
	t.Cleanup(s.Close)
	return execCmd{serverFlags: serverFlags{URL: s.URL}, Workspace: id}
}

// startedCommand returns a server's side of a command that has started. serve gets its connection.
func startedCommand(t *testing.T, serve func(ws *websocket.Conn)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer ws.CloseNow()
		_, _, _ = ws.Read(context.Background()) // the command
		_ = ws.Write(context.Background(), websocket.MessageText, []byte(`{"type":"started"}`))
		serve(ws)
	}
}

// start runs the command. Its exit code arrives on the returned channel.
func (cmd execCmd) start(t *testing.T, stdout io.Writer, signals <-chan os.Signal) <-chan int {
	ended := make(chan int, 1)
	go func() {
		code, err := cmd.withSignals(t.Context(), &kong.Context{Kong: &kong.Kong{Stdout: stdout, Stderr: io.Discard}}, api.Exec{Args: []string{"sleep", "1000"}}, signals)
		if err != nil {
			t.Error(err)
		}
		ended <- code
	}()
	return ended
}

func wantEnd(t *testing.T, ended <-chan int, want int) {
	t.Helper()
	select {
	case code := <-ended:
		if code != want {
			t.Errorf("the exit code is %d, not %d", code, want)
		}
	case <-time.After(harness.Patience):
		t.Fatal("the signals have not ended the program")
	}
}

// A signal before the command has started ends the program, also if the server accepts the
// connection and never answers.
func TestExecEndsWithSignalBeforeStart(t *testing.T) {
	for _, tc := range []struct {
		signal syscall.Signal
		code   int
	}{{syscall.SIGINT, 130}, {syscall.SIGTERM, 143}, {syscall.SIGHUP, 129}} {
		dialed, release := make(chan struct{}), make(chan struct{})
		cmd := execServer(t, func(http.ResponseWriter, *http.Request) { close(dialed); <-release })
		t.Cleanup(func() { close(release) }) // before the server's end
		signals := make(chan os.Signal, 4)
		ended := cmd.start(t, io.Discard, signals)
		<-dialed
		signals <- syscall.SIGWINCH
		signals <- tc.signal
		wantEnd(t, ended, tc.code)
	}
}

// The second signal ends the program while the command does not read its input.
func TestExecEndsWithSecondSignalWhileInputWaits(t *testing.T) {
	input, fill, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdin := os.Stdin
	os.Stdin = input
	defer func() { os.Stdin = stdin; input.Close(); fill.Close() }()
	read, release := make(chan struct{}), make(chan struct{})
	cmd := execServer(t, startedCommand(t, func(ws *websocket.Conn) {
		_, _, _ = ws.Read(context.Background())
		close(read)
		<-release
	}))
	defer close(release)
	signals := make(chan os.Signal) // so that a send is complete when the program reads it
	ended := cmd.start(t, io.Discard, signals)
	filled := func() error {
		for { // until no more fits into the connection and the pipe
			if err := fill.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
				return err
			}
			if _, err := fill.Write(make([]byte, 64<<10)); err != nil {
				return err
			}
		}
	}()
	if !errors.Is(filled, os.ErrDeadlineExceeded) {
		t.Fatal(filled)
	}
	<-read
	for range 5 {
		sendSignal(t, signals, syscall.SIGWINCH)
	}
	sendSignal(t, signals, syscall.SIGINT)
	sendSignal(t, signals, syscall.SIGWINCH)
	sendSignal(t, signals, syscall.SIGTERM)
	wantEnd(t, ended, 143)
}

// The second signal ends the program while the reader of its output does not read.
func TestExecEndsWithSecondSignalWhileOutputWaits(t *testing.T) {
	got := make(chan string, 8)
	cmd := execServer(t, startedCommand(t, func(ws *websocket.Conn) {
		_ = ws.Write(context.Background(), websocket.MessageBinary, append([]byte{api.ExecStdout}, "output"...))
		for {
			_, b, err := ws.Read(context.Background())
			if err != nil {
				return
			}
			got <- string(b)
		}
	}))
	r, w := io.Pipe() // holds nothing
	defer r.Close()
	signals := make(chan os.Signal)
	ended := cmd.start(t, w, signals)
	if _, err := io.ReadFull(r, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	sendSignal(t, signals, syscall.SIGINT)
	for forwarded := false; !forwarded; { // the first signal is the command's
		select {
		case m := <-got:
			forwarded = strings.Contains(m, `"signal":"INT"`)
		case code := <-ended:
			t.Fatalf("the first signal ended the program with %d", code)
		case <-time.After(harness.Patience):
			t.Fatal("the first signal was not forwarded")
		}
	}
	sendSignal(t, signals, syscall.SIGINT)
	wantEnd(t, ended, 130)
}

func sendSignal(t *testing.T, to chan<- os.Signal, s os.Signal) {
	t.Helper()
	select {
	case to <- s:
	case <-time.After(harness.Patience):
		t.Fatalf("the program does not read %s", s)
	}
}
