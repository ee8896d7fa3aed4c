package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"

	"github.com/coder/websocket"

	"codehub/api"
)

// execPiece is how much of the standard input is sent at once, in bytes.
const execPiece = 32 << 10

// maxExecMessage bounds a message of the server. A workspace in the progress is the
// longest.
const maxExecMessage = 1 << 20

// Exec is a command in a workspace. The caller must call Run once, and may call the
// other methods meanwhile.
type Exec struct {
	conn *websocket.Conn
	// started is closed when the command runs.
	started chan struct{}
	once    sync.Once
}

// Exec starts a command in a workspace, which is started if it is stopped.
func (c *Client) Exec(ctx context.Context, id string, command api.Exec) (*Exec, error) {
	conn, err := c.webSocket(ctx, path(id, "/exec"))
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(maxExecMessage)
	x := &Exec{conn: conn, started: make(chan struct{})}
	if err := x.say(ctx, command); err != nil {
		x.Close()
		return nil, c.unreachable(err)
	}
	return x, nil
}

// Run writes the command's output to stdout and stderr until the command ends, and
// returns its exit status. progress is called with each state of a workspace that is
// being started. The error is an *Error if the server gave a reason.
func (x *Exec) Run(ctx context.Context, stdout, stderr io.Writer, progress func(api.Workspace)) (code int, err error) {
	defer x.Close()
	for {
		kind, b, err := x.conn.Read(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return 0, ctx.Err()
			}
			return 0, fmt.Errorf("the connection to the server was lost: %w", err)
		}
		if kind == websocket.MessageBinary {
			if err := output(b, stdout, stderr); err != nil {
				return 0, err
			}
			continue
		}
		var m api.ExecOutput
		if err := json.Unmarshal(b, &m); err != nil {
			return 0, fmt.Errorf("read a message of the server: %w", err)
		}
		switch {
		case m.Type == api.ExecProgress && m.Workspace != nil && progress != nil:
			progress(*m.Workspace)
		case m.Type == api.ExecStarted:
			x.once.Do(func() { close(x.started) })
		case m.Type == api.ExecExit && m.Code != nil:
			return *m.Code, nil
		case m.Type == api.ExecError && m.Error != nil:
			return 0, &Error{Code: m.Error.Code, Message: m.Error.Message, Details: m.Error.Details}
		}
	}
}

func output(b []byte, stdout, stderr io.Writer) error {
	if len(b) == 0 {
		return nil
	}
	to := stdout
	if b[0] == api.ExecStderr {
		to = stderr
	}
	_, err := to.Write(b[1:])
	return err
}

// Started is closed when the command runs.
func (x *Exec) Started() <-chan struct{} { return x.started }

// Stdin sends from to the command's standard input, and ends that at the end of from.
func (x *Exec) Stdin(ctx context.Context, from io.Reader) error {
	select {
	case <-x.started:
	case <-ctx.Done():
		return ctx.Err()
	}
	buf := make([]byte, execPiece)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if err := x.conn.Write(ctx, websocket.MessageBinary, buf[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			return x.End(ctx)
		}
	}
}

// End ends the command's standard input.
func (x *Exec) End(ctx context.Context) error { return x.say(ctx, api.ExecInput{Type: api.ExecEnd}) }

// Resize changes the size of the command's terminal.
func (x *Exec) Resize(ctx context.Context, rows, cols uint16) error {
	return x.say(ctx, api.ExecInput{Type: api.ExecResize, Rows: rows, Cols: cols})
}

// Signal sends the command a signal, whose name has no SIG, as in "INT".
func (x *Exec) Signal(ctx context.Context, name string) error {
	return x.say(ctx, api.ExecInput{Type: api.ExecSignal, Signal: name})
}

// Close ends the connection. A command with a terminal receives SIGHUP.
func (x *Exec) Close() { _ = x.conn.CloseNow() }

func (x *Exec) say(ctx context.Context, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return x.conn.Write(ctx, websocket.MessageText, b)
}
