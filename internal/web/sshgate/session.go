package sshgate

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"codehub/internal/base/flow"
	"codehub/internal/bus/activity"
	"codehub/internal/running/attach"
	"codehub/internal/runtime/agent"
)

const (
	// quietWait is how long the wait for a workspace lasts before the user is told.
	quietWait = time.Second
	// maxEarly is how much of a client's input is kept while the workspace starts; one read more
	// may exceed it. The client keeps the rest.
	maxEarly = 64 << 10
	// interrupt is Ctrl-C as a terminal sends it.
	interrupt = 0x03
)

// session is a session channel: a shell, a command or a subsystem.
type session struct {
	conn     *connection
	ch       *channel
	answered <-chan struct{} // closed when the requests before the session are answered

	ctx    context.Context // ends with the channel
	cancel context.CancelCauseFunc

	env     []string
	envSize int
	agent   bool // the client's SSH agent is forwarded
	started bool
	told    atomic.Bool // that the session waits for the workspace

	mu       sync.Mutex
	terminal *agent.Terminal
	controls chan<- func(*agent.Process) error // what is sent to the process apart from input; nil: it has not begun
}

// maxControls is how many signals and changes of the window's size wait for a command
// that does not take them.
const maxControls = 32

// forwardsWait limits how long a session waits for the forwarded ports that the client
// requested before it. It starts without them then.
const forwardsWait = 10 * time.Second

// session serves a session channel. answered is closed when the requests before it are
// answered.
func (c *connection) session(n ssh.NewChannel, answered <-chan struct{}) {
	ch, requests, err := n.Accept()
	if err != nil {
		return
	}
	c.sessions.Add(1)
	defer c.sessions.Add(-1)
	s := &session{conn: c, answered: answered}
	s.ctx, s.cancel = context.WithCancelCause(c.ctx)
	defer s.cancel(nil)
	s.ch = c.newChannel(ch, func() { s.cancel(errUnread) })
	defer s.ch.input.done()
	s.ch.input.begin() // until it is read
	noProgram := time.AfterFunc(programWait, func() { s.cancel(errNoProgram) })
	defer noProgram.Stop()
	var running sync.WaitGroup
	run := func(start func()) {
		running.Go(func() {
			start()
			s.ch.Close()
			s.ch.discard()
		})
	}
	for ended := s.ctx.Done(); ; {
		select {
		case r, ok := <-requests:
			if !ok {
				// The client has closed the channel.
				close(s.ch.closed)
				s.cancel(io.EOF)
				running.Wait()
				s.ch.Close()
				return
			}
			start, ok := s.request(r)
			if r.WantReply {
				_ = r.Reply(ok, nil)
			}
			if ok && start != nil {
				noProgram.Stop()
				run(start)
			}
		case <-ended:
			ended = nil
			if !s.started {
				s.started = true // so it starts no program any more
				s.ch.discard()
				run(func() { s.fail(context.Cause(s.ctx)) })
			}
		}
	}
}

// programWait is how long a session may take to ask for its program.
const programWait = 10 * time.Second

var errNoProgram = errors.New("the session asked for no program")

// request handles a request of the channel. start is what it begins; nil: nothing.
func (s *session) request(r *ssh.Request) (start func(), ok bool) {
	switch r.Type {
	case "pty-req":
		t, ok := parsePTY(r.Payload)
		if ok && !s.started {
			s.mu.Lock()
			s.terminal = t
			s.mu.Unlock()
		}
		return nil, ok && !s.started
	case "env":
		return nil, s.setenv(r.Payload)
	case "auth-agent-req@openssh.com":
		if s.started {
			return nil, false
		}
		s.agent = true
		return nil, true
	case "shell":
		return s.begin(func() { s.run("") })
	case "exec":
		var e execRequest
		if ssh.Unmarshal(r.Payload, &e) != nil || len(e.Command) > maxCommand {
			return nil, false
		}
		return s.begin(func() { s.run(e.Command) })
	case "subsystem":
		var b subsystemRequest
		if ssh.Unmarshal(r.Payload, &b) != nil || b.Name != "sftp" {
			return nil, false
		}
		return s.begin(s.files)
	case "window-change":
		return nil, s.resize(r.Payload)
	case "signal":
		return nil, s.signal(r.Payload)
	}
	return nil, false
}

// begin starts the session's one program.
func (s *session) begin(start func()) (func(), bool) {
	if s.started {
		return nil, false
	}
	s.started = true
	return start, true
}

func (s *session) setenv(payload []byte) bool {
	entry, ok := parseEnv(payload)
	if !ok || s.started || len(s.env) >= maxEnv || s.envSize+len(entry) > maxEnvSize {
		return false
	}
	s.env, s.envSize = append(s.env, entry), s.envSize+len(entry)
	return true
}

func (s *session) resize(payload []byte) bool {
	var w windowChange
	if ssh.Unmarshal(payload, &w) != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.terminal == nil {
		return false
	}
	s.terminal.Rows, s.terminal.Cols = size(w.Rows), size(w.Cols)
	return s.controls == nil || s.control(s.sendSize)
}

func (s *session) signal(payload []byte) bool {
	name, ok := parseSignal(payload)
	s.mu.Lock()
	defer s.mu.Unlock()
	return ok && s.controls != nil && s.control(func(p *agent.Process) error { return p.Signal(name) })
}

// control passes something on to the process without waiting for it: the client's next
// requests are read meanwhile. The caller holds mu.
func (s *session) control(f func(*agent.Process) error) bool {
	select {
	case s.controls <- f:
		return true
	default:
		return false
	}
}

// sendSize sends the terminal's size of this moment.
func (s *session) sendSize(p *agent.Process) error {
	s.mu.Lock()
	rows, cols := s.terminal.Rows, s.terminal.Cols
	s.mu.Unlock()
	return p.Resize(rows, cols)
}

// steer sends the process what control passes on, until the process has ended.
func (s *session) steer(ctx context.Context, p *agent.Process, controls <-chan func(*agent.Process) error) {
	for {
		select {
		case f := <-controls:
			if f(p) != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// hasTerminal reports whether the session has a terminal.
func (s *session) hasTerminal() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.terminal != nil
}

// say shows the user a message of codehub, apart from the output of programs.
func (s *session) say(text string) {
	end := "\n"
	if s.hasTerminal() {
		end = "\r\n" // the client's terminal is in raw mode
	}
	_, _ = io.WriteString(s.ch.Stderr(), "codehub: "+text+end)
}

// await waits for the workspace, and then for the forwarded ports that were requested
// before the session, because its command may use them. It tells the user what for.
func (s *session) await() (*attach.Attachment, error) {
	quiet := time.NewTimer(quietWait)
	defer quiet.Stop()
	ready := s.conn.ready
	var answered, changed <-chan struct{} // nil: not waited for yet
	var late <-chan time.Time
	said := ""
	for {
		select {
		case <-ready:
			ready, answered, late = nil, s.answered, time.After(forwardsWait)
			continue
		case <-answered:
			return s.conn.await(s.ctx)
		case <-late:
			return s.conn.await(s.ctx)
		case <-s.ctx.Done():
			return nil, context.Cause(s.ctx)
		case <-quiet.C:
		case <-changed:
		}
		var state string
		if state, changed = s.conn.waitsFor(); ready == nil {
			state, changed = "The forwarded ports are being opened.", nil
		}
		if state != "" && state != said {
			s.say(plain(state))
			s.told.Store(true)
			said = state
		}
	}
}

// fail tells the user why the session ends. Without an exit status, clients exit with
// 255.
func (s *session) fail(err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, errInterrupted) {
		return // the client has gone
	}
	s.say(s.conn.explain(err))
}

var errInterrupted = errors.New("interrupted by the user")

// run runs a command line, or the login shell if it is empty.
func (s *session) run(command string) {
	in := newInput(s)
	defer in.stop()
	way, err := s.await()
	if err != nil {
		s.fail(err)
		return
	}
	env := append(s.environment(), s.env...)
	if s.agent {
		socket, stop, err := s.conn.forwardAgent(s.ctx, way)
		if err != nil {
			s.say("The SSH agent cannot be forwarded: " + plain(err.Error()))
		} else {
			defer stop()
			env = append(env, "SSH_AUTH_SOCK="+socket)
		}
	}
	ctx, over := context.WithCancel(s.ctx)
	defer over()
	p, err := s.start(ctx, way, agent.Command{Shell: command, Env: env})
	if err != nil {
		s.failStart(err)
		return
	}
	defer p.Close()
	defer context.AfterFunc(s.ctx, func() { p.Close() })()
	in.feed(p.Stdin)
	exit, err := p.Run(outputOf{s.ch, s.conn}, outputOf{s.ch.Stderr(), s.conn})
	if err != nil {
		s.broken(err)
		return
	}
	s.report(exit)
}

// environment is what sshd tells the programs of a session.
func (s *session) environment() []string {
	host, port, _ := net.SplitHostPort(s.conn.ssh.RemoteAddr().String())
	if s.conn.remote != "" && s.conn.remote != host {
		host, port = s.conn.remote, "0"
	}
	toHost, toPort, _ := net.SplitHostPort(s.conn.ssh.LocalAddr().String())
	if host == "" || toHost == "" {
		return nil
	}
	return []string{
		"SSH_CLIENT=" + host + " " + port + " " + toPort,
		"SSH_CONNECTION=" + host + " " + port + " " + toHost + " " + toPort,
	}
}

// start starts a command with the terminal of this moment. ctx ends with the command.
func (s *session) start(ctx context.Context, way *attach.Attachment, command agent.Command) (*agent.Process, error) {
	s.mu.Lock()
	if s.terminal != nil {
		t := *s.terminal
		command.Terminal = &t
	}
	s.mu.Unlock()
	p, err := way.Agent.Exec(ctx, command)
	if err != nil {
		return nil, err
	}
	controls := make(chan func(*agent.Process) error, maxControls)
	s.conn.handlers.Add(1) // the caller is one of them
	go func() {
		defer s.conn.handlers.Done()
		s.steer(ctx, p, controls)
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.controls = controls
	if t := s.terminal; t != nil && (t.Rows != command.Terminal.Rows || t.Cols != command.Terminal.Cols) {
		s.control(s.sendSize)
	}
	return p, nil
}

func (s *session) failStart(err error) {
	var refused *agent.RefusedError
	if errors.As(err, &refused) {
		s.say("The command cannot be started: " + plain(refused.Message))
		return
	}
	s.broken(err)
}

// endWait is how long a session whose connection to the workspace broke waits to learn
// why.
const endWait = 2 * time.Second

// broken reports that the connection to the workspace broke: because the access ended,
// as the attachment learns by itself, or for another reason.
func (s *session) broken(err error) {
	select {
	case <-s.ctx.Done():
		err = context.Cause(s.ctx)
	case <-time.After(endWait):
	}
	s.fail(err)
}

// report sends the client how the command ended, and then the end of its output: a
// client that has sent all its input closes the channel at once when it gets that.
func (s *session) report(e agent.Exit) {
	if e.Signal != "" {
		_, _ = s.ch.SendRequest("exit-signal", false, ssh.Marshal(exitSignal{Name: signalName(e.Signal), Core: e.Core}))
	} else {
		_, _ = s.ch.SendRequest("exit-status", false, ssh.Marshal(exitStatus{uint32(e.Code)}))
	}
	_ = s.ch.CloseWrite()
}

// outputOf sends the output of a command, which is use.
type outputOf struct {
	io.Writer
	conn *connection
}

func (o outputOf) Write(b []byte) (int, error) {
	o.conn.used(activity.Output)
	return o.Writer.Write(b)
}

// files serves SFTP.
func (s *session) files() {
	in := newInput(s)
	defer in.stop()
	way, err := s.await()
	if err != nil {
		s.fail(err)
		return
	}
	conn, err := way.Agent.Files(s.ctx)
	if err != nil {
		s.failStart(err)
		return
	}
	defer conn.Close()
	defer context.AfterFunc(s.ctx, func() { conn.Close() })()
	in.feed(inputOf{conn})
	err = flow.Copy(s.ch, conn, nil)
	if err == nil && s.ctx.Err() == nil {
		s.report(agent.Exit{})
	}
}

// inputOf is the direction of a connection to the workspace. Close ends that direction.
type inputOf struct{ *agent.Conn }

func (d inputOf) Close() error { return d.CloseWrite() }

// input passes a client's input to its program. It reads from the beginning, so that a
// user can give up the wait for a workspace with Ctrl-C.
type input struct {
	s    *session
	ctx  context.Context
	stop context.CancelFunc // there is no program any more

	mu    sync.Mutex
	to    io.WriteCloser // nil: the program has not begun
	early []byte         // what was read before
	ended bool           // all of it
	begun chan struct{}
}

func newInput(s *session) *input {
	in := &input{s: s, begun: make(chan struct{})}
	in.ctx, in.stop = context.WithCancel(s.ctx)
	s.ch.input.done()
	s.conn.handlers.Add(1) // the caller is one of them
	go func() {
		defer s.conn.handlers.Done()
		if flow.Copy(counted{in, s.ch.input}, s.ch, nil) != nil {
			s.ch.discard()
		}
		in.mu.Lock()
		defer in.mu.Unlock()
		if in.ended = true; in.to != nil {
			_ = in.to.Close()
		}
	}()
	return in
}

// Write waits for the program once much was read before it.
func (in *input) Write(b []byte) (int, error) {
	if in.keep(b) {
		return len(b), nil
	}
	select {
	case <-in.begun:
	case <-in.ctx.Done():
		return 0, context.Cause(in.ctx)
	}
	in.s.conn.used(activity.Typing)
	return in.to.Write(b)
}

func (in *input) keep(b []byte) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.to != nil || len(in.early) >= maxEarly {
		return false
	}
	if in.s.told.Load() && in.s.hasTerminal() && bytes.IndexByte(b, interrupt) >= 0 {
		in.s.cancel(errInterrupted)
	}
	in.early = append(in.early, b...)
	return true
}

// feed gives the input to a program.
func (in *input) feed(to io.WriteCloser) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.to = to
	if len(in.early) > 0 {
		in.s.conn.used(activity.Typing)
		_, _ = counted{to, in.s.ch.input}.Write(in.early)
		in.early = nil
	}
	if in.ended {
		_ = to.Close()
	}
	close(in.begun)
}
