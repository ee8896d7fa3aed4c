package cli

import (
	"context"
	"errors"
	"io"
	"math"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"golang.org/x/term"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

type execCmd struct {
	serverFlags
	TTY       bool     `short:"t" name:"tty" help:"Give the command a terminal. Without a command, the login shell runs."`
	Stdin     bool     `short:"i" name:"stdin" help:"Pass the standard input on (default: if it is a pipe or a file)."`
	Dir       string   `short:"w" name:"workdir" placeholder:"DIR" help:"Folder to run it in, relative to the home."`
	Env       []string `short:"e" name:"env" placeholder:"NAME=VALUE" sep:"none" help:"Set an environment variable."`
	Workspace string   `arg:"" help:"A workspace's name or id."`
	Command   []string `arg:"" optional:"" passthrough:"" help:"Command and its arguments, after --."`
}

// Help describes the command beyond its flags.
func (execCmd) Help() string {
	return "The workspace is started if it is stopped. The exit status is that of the command. " +
		"Ctrl-C is passed on to the command; a second Ctrl-C disconnects."
}

func (cmd execCmd) Run(ctx context.Context, k *kong.Context) error {
	command := cmd.Command
	if len(command) > 0 && command[0] == "--" {
		command = command[1:]
	}
	if len(command) == 0 && !cmd.TTY {
		return errors.New("give a command after --, or --tty for the login shell")
	}
	in := api.Exec{Args: command, Env: cmd.Env, Dir: cmd.Dir}
	if cmd.TTY {
		in.Terminal = localTerminal()
	}
	code, err := cmd.exec(ctx, k, in)
	switch {
	case client.CodeOf(err) == "command_not_started":
		return terminal.Exit(exitNotStarted, err)
	case err != nil:
		return terminal.Exit(exitFailed, err)
	}
	return terminal.Exit(code, nil)
}

// Exit codes of exec in addition to the command's; docker exec has the same.
const (
	exitFailed     = 125
	exitNotStarted = 127
)

// execGrace bounds the time in which an interrupted command closes its connection.
const execGrace = 500 * time.Millisecond

// exec runs the command, and returns its exit status.
func (cmd execCmd) exec(ctx context.Context, k *kong.Context, in api.Exec) (int, error) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	defer notifyResized(signals)()
	// Main's context ends with a signal, which is forwarded to the command here.
	return cmd.withSignals(context.WithoutCancel(ctx), k, in, signals)
}

// withSignals runs the command until it ends, or until the signals end the program. It returns
// the exit status of either.
func (cmd execCmd) withSignals(ctx context.Context, k *kong.Context, in api.Exec, signals <-chan os.Signal) (int, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	from := io.Reader(os.Stdin)
	local := &rawMode{fd: int(os.Stdin.Fd())}
	defer local.restore()
	if !cmd.TTY && !cmd.Stdin && term.IsTerminal(local.fd) {
		from = strings.NewReader("")
	}
	status := newMeter(k.Stderr)
	opened := make(chan *client.Exec, 1)
	interrupted := make(chan int, 1)
	go func() {
		if code := forward(ctx, opened, signals); code != 0 {
			interrupted <- code
		}
	}()
	type result struct {
		code int
		err  error
	}
	ended := make(chan result, 1)
	go func() {
		x, err := cmd.open(ctx, in)
		if err != nil {
			ended <- result{0, err}
			return
		}
		defer x.Close()
		opened <- x
		go func() {
			select {
			case <-x.Started():
			case <-ctx.Done():
				return
			}
			if cmd.TTY {
				local.enter()
			}
			_ = x.Stdin(ctx, from) // it may wait for a key until the program ends
		}()
		code, err := x.Run(ctx, belowMeter{status, k.Stdout}, belowMeter{status, k.Stderr}, status.watch)
		ended <- result{code, err}
	}()
	select {
	case r := <-ended:
		status.clear()
		return r.code, r.err
	case code := <-interrupted:
		cancel()
		select {
		case <-ended:
			status.clear()
		case <-time.After(execGrace):
			// The program that reads the output has stopped reading, so Run does not return.
		}
		return code, nil
	}
}

// open starts the command in its workspace.
func (cmd execCmd) open(ctx context.Context, in api.Exec) (*client.Exec, error) {
	c, err := cmd.connect()
	if err != nil {
		return nil, err
	}
	w, err := resolveEnterable(ctx, c, cmd.Workspace)
	if err != nil {
		return nil, err
	}
	return c.Exec(ctx, w.ID, in)
}

// belowMeter is the writer of output: it removes the line of the progress first.
type belowMeter struct {
	status *meter
	to     io.Writer
}

func (s belowMeter) Write(b []byte) (int, error) {
	s.status.clear()
	return s.to.Write(b)
}

// signalNames are the names that the API knows of the signals that are forwarded.
var signalNames = map[syscall.Signal]string{
	syscall.SIGINT: "INT", syscall.SIGTERM: "TERM", syscall.SIGHUP: "HUP", syscall.SIGQUIT: "QUIT",
}

// forward forwards signals and window sizes to the command that opened receives. It returns the
// exit code of a program that was ended by a signal before the command had started, or by the
// second signal.
func forward(ctx context.Context, opened <-chan *client.Exec, signals <-chan os.Signal) int {
	// The connection may accept no more messages until the command reads its input, so another
	// goroutine sends.
	names, resized := make(chan string, 1), make(chan struct{}, 1)
	var x *client.Exec
	asked := false
	for {
		select {
		case <-ctx.Done():
			return 0
		case x = <-opened:
			go send(ctx, x, names, resized)
		case s := <-signals:
			if s == sigResized {
				select {
				case resized <- struct{}{}:
				default: // the size is not sent yet
				}
				continue
			}
			select {
			case x = <-opened: // before the signal
				go send(ctx, x, names, resized)
			default:
			}
			n, _ := s.(syscall.Signal)
			if asked || x == nil || !running(x) {
				return 128 + int(n)
			}
			asked = true
			names <- signalNames[n]
		}
	}
}

// send sends the command the signal and the sizes of the terminal once it has started.
func send(ctx context.Context, x *client.Exec, names <-chan string, resized <-chan struct{}) {
	select {
	case <-x.Started():
	case <-ctx.Done():
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case name := <-names:
			_ = x.Signal(ctx, name)
		case <-resized:
			t := localTerminal()
			_ = x.Resize(ctx, t.Rows, t.Cols)
		}
	}
}

func running(x *client.Exec) bool {
	select {
	case <-x.Started():
		return true
	default:
		return false
	}
}

// localTerminal describes the terminal that codehub runs in.
func localTerminal() *api.ExecTerminal {
	t := &api.ExecTerminal{Name: os.Getenv("TERM"), Rows: 24, Cols: 80}
	if t.Name == "" {
		t.Name = "xterm-256color"
	}
	for _, f := range []*os.File{os.Stdout, os.Stdin} {
		if cols, rows, err := term.GetSize(int(f.Fd())); err == nil && cols > 0 && rows > 0 {
			t.Rows, t.Cols = uint16(min(rows, math.MaxUint16)), uint16(min(cols, math.MaxUint16))
			break
		}
	}
	return t
}

// rawMode is the mode of the terminal in which every key reaches the command.
type rawMode struct {
	fd    int
	mu    sync.Mutex
	state *term.State // before; nil: not raw
	over  bool
}

// enter does nothing if there is no terminal.
func (m *rawMode) enter() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over || !term.IsTerminal(m.fd) {
		return
	}
	m.state, _ = term.MakeRaw(m.fd)
}

func (m *rawMode) restore() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.over = true
	if m.state != nil {
		_ = term.Restore(m.fd, m.state)
		m.state = nil
	}
}
