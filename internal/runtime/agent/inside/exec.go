package inside

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"codehub/internal/base/flow"
	"codehub/internal/runtime/account"
	"codehub/internal/runtime/agent"
)

const (
	maxCommand = 1 << 20 // bytes of a command as JSON
	// stdinQueue is how much input waits for a command that does not read. Signals behind it
	// still arrive; further input waits in the connection. Each frame counts for stdinCost more.
	stdinQueue, stdinCost = 1 << 20, 64
	// After a command's end, the output on its terminal is read until there is none for
	// lastOutput, and for allOutput at most: processes in the background may hold the
	// terminal open, and print for ever.
	lastOutput, allOutput = 200 * time.Millisecond, 30 * time.Second
	// goneInterval is how often a connection is looked at whose input waits for the
	// command.
	goneInterval = time.Second
)

// exec runs a command for as long as it takes. With a terminal, the end of the
// conversation hangs it up.
func (s *Server) exec(w http.ResponseWriter, r *http.Request) {
	var c agent.Command
	if err := json.NewDecoder(io.LimitReader(r.Body, maxCommand)).Decode(&c); err != nil {
		refuse(w, http.StatusBadRequest, fmt.Errorf("read the command: %w", err))
		return
	}
	cmd, err := s.command(c)
	if err != nil {
		refuse(w, http.StatusUnprocessableEntity, err)
		return
	}
	run, err := s.start(cmd, c.Terminal)
	if err != nil {
		refuse(w, http.StatusUnprocessableEntity, err)
		return
	}
	conn, ok := s.converse(w, r)
	if !ok {
		run.hangUp()
		run.wait()
		return
	}
	defer conn.Close()
	run.converse(conn)
}

// command returns what to execute. It runs in a session of its own.
func (s *Server) command(c agent.Command) (*exec.Cmd, error) {
	user := currentUser()
	env := append(s.environ(), "HOME="+s.cfg.Home, "USER="+user.name, "LOGNAME="+user.name, "SHELL="+user.shell)
	if c.Terminal != nil && c.Terminal.Name != "" {
		env = append(env, "TERM="+c.Terminal.Name)
	}
	env = append(env, c.Env...)
	cmd := &exec.Cmd{Env: env, Dir: s.folder(c.Dir), SysProcAttr: &syscall.SysProcAttr{Setsid: true}}
	if len(c.Args) == 0 {
		if user.shell == "" {
			return nil, errors.New("the image has no shell")
		}
		cmd.Path = user.shell
		cmd.Args = []string{"-" + filepath.Base(user.shell)}
		if c.Shell != "" {
			cmd.Args = []string{filepath.Base(user.shell), "-c", c.Shell}
		}
		return cmd, nil
	}
	path, err := lookPath(c.Args[0], env, cmd.Dir)
	if err != nil {
		return nil, err
	}
	cmd.Path, cmd.Args = path, c.Args
	return cmd, nil
}

// folder returns the folder that a command begins in. One that does not exist is
// replaced by the nearest that does, so that a command can repair the home.
func (s *Server) folder(dir string) string {
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(s.cfg.Home, dir)
	}
	for {
		if info, err := os.Stat(dir); err == nil && info.IsDir() || dir == "/" {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

// lookPath finds a program as a shell with this environment would.
func lookPath(name string, env []string, dir string) (string, error) {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return name, nil
	}
	for _, folder := range filepath.SplitList(searchPath(env)) {
		if file := filepath.Join(folder, name); isProgram(file) {
			return file, nil
		}
	}
	return "", fmt.Errorf("there is no program %q on its PATH", name)
}

// searchPath returns the PATH of an environment.
func searchPath(env []string) string {
	path := account.SearchPath
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			path = v
		}
	}
	return path
}

// isProgram reports whether an absolute path is a file that this user can execute.
func isProgram(file string) bool {
	info, err := os.Stat(file)
	return err == nil && filepath.IsAbs(file) && !info.IsDir() && unix.Access(file, unix.X_OK) == nil
}

// whyNotStarted says in plain words why a program was not started.
func whyNotStarted(path string, err error) error {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		if _, err := os.Stat(path); err == nil {
			return fmt.Errorf("%s needs another program to run, which does not exist", path) // an interpreter or a loader
		}
		return fmt.Errorf("%s does not exist", path)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fmt.Errorf("%s may not be executed", path)
	case errors.Is(err, unix.ENOEXEC):
		return fmt.Errorf("%s is not a program for this machine", path)
	case errors.Is(err, unix.E2BIG):
		return errors.New("its arguments and variables are too long")
	case errors.Is(err, unix.EAGAIN):
		return errors.New("the workspace has reached its limit of processes")
	case errors.Is(err, unix.ENOMEM):
		return errors.New("the workspace has no memory left")
	}
	return err
}

// run is a started command.
type run struct {
	processes *Processes
	cmd       *exec.Cmd
	stdin     *os.File // the terminal, if there is one
	stdout    *os.File // the same
	stderr    *os.File // nil with a terminal
}

// start starts the command on a terminal or on pipes.
func (s *Server) start(cmd *exec.Cmd, t *agent.Terminal) (*run, error) {
	r := &run{processes: s.cfg.Processes, cmd: cmd}
	var theirs []*os.File // the command's ends
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
	}()
	if t != nil {
		terminal, slave, err := openTerminal()
		if err != nil {
			return nil, err
		}
		theirs = []*os.File{slave}
		r.stdin, r.stdout = terminal, terminal
		if err := setModes(slave, t.Modes); err != nil {
			terminal.Close()
			return nil, err
		}
		if err := resize(terminal, t.Rows, t.Cols); err != nil {
			terminal.Close()
			return nil, err
		}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
		cmd.SysProcAttr.Setctty = true
	} else {
		var ends [3][2]*os.File
		for i := range ends {
			reader, writer, err := os.Pipe()
			if err != nil {
				for _, e := range ends[:i] {
					e[0].Close()
					e[1].Close()
				}
				return nil, fmt.Errorf("make a pipe: %w", err)
			}
			ends[i] = [2]*os.File{reader, writer}
		}
		r.stdin, r.stdout, r.stderr = ends[0][1], ends[1][0], ends[2][0]
		cmd.Stdin, cmd.Stdout, cmd.Stderr = ends[0][0], ends[1][1], ends[2][1]
		theirs = []*os.File{ends[0][0], ends[1][1], ends[2][1]}
	}
	if err := r.processes.Start(cmd); err != nil {
		r.hangUp()
		return nil, whyNotStarted(cmd.Path, err)
	}
	return r, nil
}

// hangUp closes this end of the terminal or pipes.
func (r *run) hangUp() {
	r.stdin.Close()
	r.stdout.Close()
	if r.stderr != nil {
		r.stderr.Close()
	}
}

// wait waits for the end of the command alone, not of its output.
func (r *run) wait() agent.Exit {
	_ = r.processes.Wait(r.cmd) // the state says how it ended
	return exitOf(r.cmd.ProcessState)
}

func exitOf(state *os.ProcessState) agent.Exit {
	if state == nil {
		return agent.Exit{Code: 255}
	}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		name := strings.TrimPrefix(unix.SignalName(status.Signal()), "SIG")
		return agent.Exit{Code: 128 + int(status.Signal()), Signal: name, Core: status.CoreDump()}
	}
	return agent.Exit{Code: state.ExitCode()}
}

// converse carries the command's input and output until both its end and that of its
// output.
func (r *run) converse(conn *net.TCPConn) {
	frames := agent.NewFrameWriter(conn)
	outputs := make(chan struct{}, 2)
	output := func(from *os.File, reader io.Reader, kind byte) {
		_, err := io.CopyBuffer(frames.Stream(kind), onlyReader{reader}, make([]byte, 32<<10))
		if err != nil && !errors.Is(err, syscall.EIO) {
			from.Close() // the command gets SIGPIPE instead of waiting for ever
		}
		outputs <- struct{}{}
	}
	open := 1
	terminal := &terminalReader{from: r.stdout}
	if r.stderr != nil {
		open++
		go output(r.stdout, r.stdout, agent.FrameStdout)
		go output(r.stderr, r.stderr, agent.FrameStderr)
	} else {
		go output(r.stdout, terminal, agent.FrameStdout)
	}
	var input sync.WaitGroup
	input.Go(func() { r.input(conn) })

	exit := r.wait()
	if r.stderr == nil {
		terminal.exited()
	}
	for range open {
		<-outputs
	}
	raw, err := json.Marshal(exit)
	if err == nil {
		_ = frames.Write(agent.FrameExit, raw)
	}
	r.hangUp()
	// Input that arrived after a close would reset the connection, and so lose the output in
	// transit. The server closes it when it has read the exit.
	_ = conn.CloseWrite()
	input.Wait()
}

// terminalReader reads the output on a terminal to its end: after the command's, the
// reads wait for lastOutput each, however long the output's own reader takes.
type terminalReader struct {
	from interface { // a file
		io.Reader
		syscall.Conn
		SetReadDeadline(time.Time) error
	}

	mu  sync.Mutex
	end time.Time // of all reads; zero: the command runs
}

// exited says that the command has ended.
func (t *terminalReader) exited() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = time.Now().Add(allOutput)
	_ = t.from.SetReadDeadline(time.Now().Add(lastOutput)) // of the read that goes on
}

func (t *terminalReader) Read(p []byte) (int, error) {
	t.mu.Lock()
	if !t.end.IsZero() {
		deadline := time.Now().Add(lastOutput)
		if t.end.Before(deadline) {
			deadline = t.end
		}
		_ = t.from.SetReadDeadline(deadline)
	}
	t.mu.Unlock()
	n, err := t.from.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		if late := t.unread(p); late > 0 {
			return late, nil
		}
	}
	return n, err
}

// unread reads what there is until the end of all reads, without waiting. A process that was
// held up until a deadline finds it exceeded, also if there is something to read.
func (t *terminalReader) unread(p []byte) (n int) {
	t.mu.Lock()
	over := !time.Now().Before(t.end)
	t.mu.Unlock()
	if over {
		return 0
	}
	raw, err := t.from.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) { n, _ = unix.Read(int(fd), p) }) // an error is the end, as the deadline is
	return max(n, 0)
}

// onlyReader hides the other methods of a file: io.Copy would read it without a
// buffer between.
type onlyReader struct{ io.Reader }

// input passes on what the server sends until the end of the connection, which hangs
// a terminal up.
func (r *run) input(conn *net.TCPConn) {
	queue := flow.NewQueue[[]byte](stdinQueue)
	queue.Stalled(goneInterval, func() {
		if gone(conn) {
			r.loseOutput() // the queue moves on once the processes are hung up
		}
	})
	go r.feed(queue)
	defer queue.End()
	enqueue := func(b []byte) { _ = queue.Put(context.Background(), b, len(b)+stdinCost) }
	for frames := agent.NewFrameReader(conn); ; {
		f, err := frames.Read()
		if err != nil {
			r.loseOutput()
			return
		}
		switch f.Kind {
		case agent.FrameStdin:
			enqueue(append([]byte(nil), f.Payload...))
		case agent.FrameStdinEnd:
			enqueue(nil)
		case agent.FrameResize:
			if len(f.Payload) == 4 && r.stderr == nil {
				_ = resize(r.stdin, binary.BigEndian.Uint16(f.Payload), binary.BigEndian.Uint16(f.Payload[2:]))
			}
		case agent.FrameSignal:
			if n := unix.SignalNum("SIG" + string(f.Payload)); n != 0 {
				_ = syscall.Kill(-r.cmd.Process.Pid, n)
			}
		}
	}
}

// loseOutput closes the ends that the output is read from: it has no reader any more. A
// terminal goes away with that, and its processes are hung up.
func (r *run) loseOutput() {
	_ = r.stdout.Close()
	if r.stderr != nil {
		_ = r.stderr.Close()
	}
}

// gone reports whether the other side has ended a connection whose input is not read
// now.
func gone(conn *net.TCPConn) bool {
	state, ok := stateOf(conn)
	return !ok || state != unix.BPF_TCP_ESTABLISHED
}

// stateOf returns the state of a connection as in TCP_INFO. It returns false once the
// connection is closed here.
func stateOf(conn *net.TCPConn) (state uint8, ok bool) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, false
	}
	state = unix.BPF_TCP_ESTABLISHED // where the kernel does not tell
	err = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO); err == nil {
			state = info.State
		}
	})
	return state, err == nil
}

// feed writes the input from the queue to the command. A nil element marks the end of the
// input: feed closes the command's input, or on a terminal writes Ctrl-D.
func (r *run) feed(queue *flow.Queue[[]byte]) {
	lost := false // the command does not read any more
	for {
		b, err := queue.Get(context.Background())
		switch {
		case err != nil:
			if r.stderr != nil {
				r.stdin.Close()
			}
			return
		case lost:
		case b != nil:
			_, err := r.stdin.Write(b)
			lost = err != nil
		case r.stderr == nil:
			_, _ = r.stdin.Write([]byte{4})
		default:
			r.stdin.Close()
		}
	}
}
