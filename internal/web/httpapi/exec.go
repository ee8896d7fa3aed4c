package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/coder/websocket"

	"codehub/api"
	"codehub/internal/base/flow"
	"codehub/internal/bus/activity"
	"codehub/internal/gateway/shortway"
	"codehub/internal/running/attach"
	"codehub/internal/runtime/agent"
	"codehub/internal/users/auth"
	"codehub/internal/web/accesslog"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

const (
	// maxExecMessage bounds a message of a client: the command, or a piece of its input.
	maxExecMessage = 128 << 10
	// execAhead bounds the messages of a client that are read before they are acted on, by at
	// most one message more. execMessageCost is what each of them counts for besides its length.
	execAhead       = 128 << 10
	execMessageCost = 2 << 10
	// execUnread is how often output goes on without an acknowledgement while the server cannot
	// read one, because the command does not read the input before it.
	execUnread = time.Second
	// execPiece bounds the output in one message, which with its kind has 32 KiB.
	execPiece = 32<<10 - 1
	// execReason bounds the wait for the reason of a broken connection.
	execReason = 2 * time.Second
	// execFarewell bounds the time to send the last message.
	execFarewell = time.Second
)

// exec runs a command in a workspace, on a WebSocket (docs/api.md). An invalid request
// gets an HTTP error; later errors are messages, which pages can read too.
func (s *server) exec(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	ws, err := s.findEnterable(r, id)
	if err != nil {
		return err
	}
	if r.ProtoMajor != 1 || len(r.Header["Upgrade"]) == 0 {
		w.Header().Set("Upgrade", "websocket")
		return workspace.Errorf(codeUpgradeRequired, "This endpoint is a WebSocket over HTTP/1.1.")
	}
	if err := s.ownPage(r); err != nil {
		return err
	}
	x := &execution{server: s, caller: id.Caller, id: ws.ID, request: accesslog.ID(r.Context())}
	rest := shortway.Of(r)
	if rest != nil {
		rest.Begin(x.run)
		x.ctx = rest.Context()
	} else {
		x.ctx = context.WithoutCancel(r.Context())
	}
	// The origin was checked above.
	x.conn, err = websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true, CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		if rest != nil {
			rest.Abort()
		}
		return errors.Join(errStarted, err)
	}
	x.conn.SetReadLimit(maxExecMessage)
	if rest == nil {
		x.serve()
	}
	return nil
}

// ownPage refuses a WebSocket that a page of another origin opens, such as that of a
// workspace. Browsers send the cookie with it and let every page read the messages, and
// sameOrigin accepts every GET.
func (s *server) ownPage(r *http.Request) error {
	if err := s.asChange(r); err != nil {
		return err
	}
	// Every browser sends an Origin with a WebSocket. A program with a cookie has to send one too.
	if r.Header.Get("Origin") == "" && r.Header.Get(api.TokenHeader) == "" && r.Header.Get("Authorization") == "" {
		return crossOrigin()
	}
	return nil
}

// execution is one command and the WebSocket of its client.
type execution struct {
	*server
	caller  workspace.Caller
	id      workspace.ID
	request string
	ctx     context.Context // ends with the server
	conn    *websocket.Conn
	reader  sync.WaitGroup // uses the connection until it is closed
}

func (x *execution) run(done shortway.Done) {
	go func() {
		var panicked *shortway.Panic
		defer func() { done(0, panicked) }()
		defer func() {
			panicked = shortway.Recovered(recover())
			_ = x.conn.CloseNow()
		}()
		x.serve()
	}()
}

// forGuest leaves of a workspace what a guest sees who waits for it.
func forGuest(w api.Workspace) api.Workspace {
	return api.Workspace{
		ID: w.ID, Name: w.Name, Description: w.Description, ImageRef: w.ImageRef, State: w.State, Phase: w.Phase, Operation: w.Operation, Progress: w.Progress,
		URL: w.URL, Conditions: map[string]api.Condition{}, PhaseChangedAt: w.PhaseChangedAt, CreatedAt: w.CreatedAt, UpdatedAt: w.UpdatedAt,
	}
}

// serve exchanges messages with the client until the command or the access has ended.
func (x *execution) serve() {
	defer x.reader.Wait()
	defer x.conn.CloseNow()
	// Its end closes the connection, so it comes after the last message.
	ctx, cancel := context.WithCancel(context.WithoutCancel(x.ctx))
	defer cancel()
	exit, err := x.execute(ctx)
	last := api.ExecOutput{Type: api.ExecExit, Code: &exit.Code, Signal: exit.Signal}
	if err != nil {
		last = api.ExecOutput{Type: api.ExecError, Error: x.execError(err)}
	}
	if x.sayWithin(ctx, execFarewell, last) == nil {
		_ = x.conn.Close(websocket.StatusNormalClosure, "")
	}
}

// execute reads the command, attaches to the workspace and runs it.
func (x *execution) execute(conn context.Context) (agent.Exit, error) {
	command, window, err := x.command(conn)
	if err != nil {
		return agent.Exit{}, err
	}
	client, gone := context.WithCancelCause(x.ctx) // ends when the client is gone
	defer gone(nil)
	started := make(chan *running, 1)
	in := &input{execution: x, window: flow.NewWindow(window), ahead: flow.NewQueue[clientMessage](execAhead)}
	in.ahead.Stalled(execUnread, in.window.Skip)
	x.reader.Go(func() { gone(in.read(conn, client)) })
	x.reader.Go(func() { gone(in.act(client, started)) })
	// A client that sends much ahead is not read until the command runs. Heartbeats fail when it
	// is gone.
	beat, quiet := context.WithCancel(client)
	defer quiet()
	x.reader.Go(func() { // a write may block until the connection is closed
		if err := x.heartbeats(conn, beat); err != nil {
			gone(err)
		}
	})
	attached, err := x.cfg.Attach.Attach(client, x.caller, x.id, func(ws workspace.Workspace) {
		v := x.view(ws)
		if !x.caller.Uses(ws.OwnerID, ws.ID) {
			v = forGuest(v)
		}
		if err := x.sayWithin(client, x.cfg.WriteWithin, api.ExecOutput{Type: api.ExecProgress, Workspace: &v}); err != nil {
			gone(err)
		}
	})
	if err != nil {
		return agent.Exit{}, err
	}
	defer attached.Close()
	if client.Err() != nil {
		return agent.Exit{}, context.Cause(client)
	}
	process, err := attached.Agent.Exec(attached.Context(), command)
	if err != nil {
		return agent.Exit{}, ended(attached.Context(), err)
	}
	defer process.Close()
	defer context.AfterFunc(attached.Context(), func() { process.Close() })()
	run := &running{Process: process, attached: attached, terminal: command.Terminal != nil}
	defer run.close()
	run.use(activity.Open)
	if err := x.sayWithin(conn, x.cfg.WriteWithin, api.ExecOutput{Type: api.ExecStarted}); err != nil {
		return agent.Exit{}, err
	}
	started <- run
	return x.relay(conn, run, in.window)
}

// relay sends the output of the process until it has ended.
func (x *execution) relay(conn context.Context, process *running, window *flow.Window) (agent.Exit, error) {
	attached := process.attached.Context()
	type result struct {
		exit agent.Exit
		err  error
	}
	over := make(chan result, 1)
	x.reader.Go(func() { // a write may block until the connection is closed
		exit, err := process.Run(
			&output{x.conn, conn, process, window, []byte{api.ExecStdout}}, &output{x.conn, conn, process, window, []byte{api.ExecStderr}})
		over <- result{exit, err}
	})
	var r result
	select {
	case r = <-over:
	case <-attached.Done():
		// A client that reads nothing must not hold an access that has ended.
		return agent.Exit{}, context.Cause(attached)
	}
	if errors.Is(r.err, agent.ErrUnreachable) {
		// The end of the container is seen before the reason is known.
		select {
		case <-attached.Done():
		case <-time.After(execReason):
		}
	}
	if r.err != nil {
		return r.exit, ended(attached, r.err)
	}
	return r.exit, nil
}

// output sends one of a command's outputs, as far as the window allows.
type output struct {
	to      *websocket.Conn
	ctx     context.Context
	from    *running
	window  *flow.Window
	message []byte // begins with the kind
}

func (o *output) Write(b []byte) (int, error) {
	for piece := range slices.Chunk(b, execPiece) {
		o.from.use(activity.Output)
		if err := o.window.Send(o.from.attached.Context(), len(piece)); err != nil {
			return 0, err
		}
		o.message = append(o.message[:1], piece...)
		if err := o.to.Write(o.ctx, websocket.MessageBinary, o.message); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// heartbeats keeps proxies between the server and the client from closing an idle
// connection. It returns an error when the connection accepts no more messages.
func (x *execution) heartbeats(conn, until context.Context) error {
	t := time.NewTicker(x.cfg.Heartbeat)
	defer t.Stop()
	for {
		select {
		case <-until.Done():
			return nil
		case <-t.C:
			if err := x.say(conn, api.ExecOutput{Type: api.ExecHeartbeat}); err != nil {
				return err
			}
		}
	}
}

// command reads the client's first message.
func (x *execution) command(ctx context.Context) (agent.Command, int, error) {
	ctx, cancel := context.WithTimeout(ctx, x.cfg.ReadWithin)
	defer cancel()
	var in api.Exec
	kind, b, err := x.conn.Read(ctx)
	if err != nil {
		return agent.Command{}, 0, err
	}
	if kind != websocket.MessageText {
		return agent.Command{}, 0, workspace.Errorf(workspace.CodeInvalid, "The first message must be a text message with the command.")
	}
	if err := strictly(b, &in); err != nil {
		return agent.Command{}, 0, err
	}
	switch {
	case len(in.Args) > 0 && in.Shell != "":
		return agent.Command{}, 0, fieldError("shell", "cannot be given together with args.")
	case len(in.Args) > 0 && in.Args[0] == "":
		return agent.Command{}, 0, fieldError("args", "must begin with a program.")
	case in.Window < 0:
		return agent.Command{}, 0, fieldError("window", "must not be negative.")
	}
	c := agent.Command{Args: in.Args, Shell: in.Shell, Env: in.Env, Dir: in.Dir}
	if t := in.Terminal; t != nil {
		if t.Rows == 0 || t.Cols == 0 || len(t.Name) > 64 {
			return agent.Command{}, 0, fieldError("terminal", "needs rows and cols.")
		}
		c.Terminal = &agent.Terminal{Name: t.Name, Rows: t.Rows, Cols: t.Cols}
	}
	return c, in.Window, nil
}

// strictly decodes a message, and refuses unknown fields.
func strictly(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return &workspace.Error{Code: workspace.CodeInvalid, Message: "The message is not valid.", Err: err}
	}
	return nil
}

// running is a started command, on which the client's messages act.
type running struct {
	*agent.Process
	attached *attach.Attachment
	terminal bool

	mu     sync.Mutex
	closed bool
}

// use records activity until close.
func (r *running) use(kind activity.Kind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.attached.Used(kind)
	}
}

func (r *running) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}

// typed records input.
func (r *running) typed() {
	if r.terminal {
		r.use(activity.Typing)
	} else {
		r.use(activity.Client)
	}
}

// clientMessage is a message of a client.
type clientMessage struct {
	kind websocket.MessageType
	data []byte
}

// input reads the messages of a client.
type input struct {
	*execution
	window *flow.Window
	ahead  *flow.Queue[clientMessage]
	to     *running // nil: the command has not started yet
}

// read reads the client's messages until it is gone, which the error describes. It reads ahead,
// so that it sees a client go that has sent little before its command has started. It acts on
// acknowledgements itself: a command that waits until its output is taken may read no input. Once
// it has read as far ahead as it may, it sees no acknowledgements, so output goes on without one,
// but slowly, as it exceeds the window that the client asked for.
func (in *input) read(conn, client context.Context) error {
	for {
		kind, b, err := in.conn.Read(conn)
		if err != nil {
			return err
		}
		if n, ok := acknowledged(kind, b); ok {
			in.window.Ack(n)
		} else if err := in.ahead.Put(client, clientMessage{kind, b}, len(b)+execMessageCost); err != nil {
			return err
		}
	}
}

// acknowledged returns the bytes of output that a message acknowledges.
func acknowledged(kind websocket.MessageType, b []byte) (n int, ok bool) {
	var m api.ExecInput
	if kind != websocket.MessageText || strictly(b, &m) != nil || m.Type != api.ExecAck {
		return 0, false
	}
	return m.Bytes, true
}

// act acts on the client's messages, once the command has started, until the client is gone.
func (in *input) act(client context.Context, started <-chan *running) error {
	select {
	case in.to = <-started:
	case <-client.Done():
		return context.Cause(client)
	}
	for {
		next, err := in.ahead.Get(client)
		if err != nil {
			return err
		}
		if next.kind == websocket.MessageBinary {
			in.stdin(next.data)
			continue
		}
		var m api.ExecInput
		if err := strictly(next.data, &m); err != nil {
			return err
		}
		switch m.Type {
		case api.ExecResize:
			if m.Rows > 0 && m.Cols > 0 {
				_ = in.to.Resize(m.Rows, m.Cols)
			}
		case api.ExecSignal:
			in.to.typed()
			_ = in.to.Signal(m.Signal)
		case api.ExecEnd:
			_ = in.to.Stdin.Close()
		default:
			return workspace.Errorf(workspace.CodeInvalid, "There is no message of the type %q.", bounded(m.Type))
		}
	}
}

// stdin forwards input. Input for a command that has closed its standard input is dropped,
// as in a pipe.
func (in *input) stdin(b []byte) {
	if len(b) == 0 {
		return
	}
	in.to.typed()
	_, _ = in.to.Stdin.Write(b)
}

func (x *execution) sayWithin(ctx context.Context, d time.Duration, m api.ExecOutput) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return x.say(ctx, m)
}

func (x *execution) say(ctx context.Context, m api.ExecOutput) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return x.conn.Write(ctx, websocket.MessageText, b)
}

// ended returns why the access has ended, if it has, instead of a resulting error.
func ended(attached context.Context, err error) error {
	if cause := context.Cause(attached); cause != nil {
		return cause
	}
	return err
}

// execError describes an error in the API's form, and logs an internal one.
func (x *execution) execError(err error) *api.Error {
	var e *workspace.Error
	var closed *attach.NotOpen
	var refused *agent.RefusedError
	switch {
	case errors.As(err, &e) && statuses[e.Code] != 0:
	case errors.As(err, &closed):
		e = notOpen(closed, x.caller)
	case errors.Is(err, attach.ErrTooMany):
		e = workspace.Errorf(codeTooManyStreams, "Too many terminals, commands and other connections to workspaces are open for this account.")
	case errors.Is(err, attach.ErrNoAgent) && errors.Is(err, attach.ErrGuest):
		e = workspace.Errorf(codeNoAgent, "The workspace was started by another version of codehub. Ask its owner to restart it.")
	case errors.Is(err, attach.ErrNoAgent):
		e = workspace.Errorf(codeNoAgent, "The workspace was started by another version of codehub. Restart it.")
	case errors.Is(err, attach.ErrStopped):
		e = workspace.Errorf(codeStopped, "The workspace has stopped.")
	case errors.Is(err, attach.ErrAccessEnded):
		e = workspace.Errorf(workspace.CodeForbidden, "The workspace was deleted, or you no longer have access to it.")
	case errors.Is(err, auth.ErrSessionEnded):
		e = workspace.Errorf(workspace.CodeUnauthenticated, "You have been logged out.")
	case errors.Is(err, attach.ErrClosed), errors.Is(err, agent.ErrUnreachable):
		e = workspace.Errorf(workspace.CodeUnavailable, "The connection to the workspace was lost.")
	case errors.As(err, &refused):
		e = workspace.Errorf(codeNotStarted, "The command could not be started: %s.", bounded(refused.Message))
	case x.ctx.Err() != nil:
		e = workspace.Errorf(workspace.CodeUnavailable, "The server is shutting down.")
	case errors.Is(err, context.Canceled), websocket.CloseStatus(err) != -1, errors.Is(err, io.EOF):
		e = workspace.Errorf(workspace.CodeUnavailable, "The client has disconnected.") // it does not read this
	default:
		x.log.Warn("run a command failed", "request_id", x.request, "workspace", x.id, "err", err)
		return &api.Error{Code: string(codeInternal), Message: "Something went wrong on the server. Request " + x.request + "."}
	}
	return &api.Error{Code: string(e.Code), Message: e.Message, Details: e.Details}
}

// notOpen is the error for a workspace that a command does not start.
func notOpen(closed *attach.NotOpen, caller workspace.Caller) *workspace.Error {
	if closed.StoppedAgain() {
		return workspace.Errorf(codeStopped, "The workspace was stopped before the command could start. Run the command again to start the workspace.")
	}
	if !caller.Uses(closed.Workspace.OwnerID, closed.Workspace.ID) {
		return workspace.Errorf(workspace.CodeNotRunning, "The workspace is not running, and only its owner can start it.")
	}
	switch closed.Opening {
	case lifecycle.OpenRestores:
		return workspace.Errorf(workspace.CodeNotRunning, "The workspace is archived. Start it first, which restores it.")
	case lifecycle.OpenCreates:
		return workspace.Errorf(workspace.CodeNotRunning, "The workspace was never started. Start it first.")
	case lifecycle.OpenDeleted:
		return workspace.Errorf(workspace.CodeGone, "The workspace is deleted.")
	}
	return workspace.Errorf(workspace.CodeRecoveryRequired, "The workspace is in an error state. Recover it first.")
}
