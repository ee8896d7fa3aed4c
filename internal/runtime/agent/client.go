package agent

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"
)

// answerTimeout limits how long the agent takes to answer a request.
const answerTimeout = 15 * time.Second

// Limits of what an agent sends: the workspace's user may have taken its place.
const (
	// maxHead is the length of the head of a response, in bytes, maxAnswer of its body,
	// and maxList of each list of ports.
	maxHead, maxAnswer, maxList = 16 << 10, 64 << 10, 1 << 20
	// watchPause is how long a list of watched ports is followed by no other. An agent
	// looks once a second.
	watchPause = 250 * time.Millisecond
	// acceptPause follows a connection that the agent has reported and does not have.
	acceptPause = 5 * time.Millisecond
	// maxIgnored is how many frames of unknown kinds a listener's agent may send between two
	// connections.
	maxIgnored = 100
)

// Errors of a Client.
var (
	// ErrUnreachable: the agent does not respond. The container may have stopped.
	ErrUnreachable = errors.New("the workspace's agent does not respond")
	// ErrRefused: the agent refused the request; the error's text is its reason.
	ErrRefused = errors.New("refused by the workspace's agent")
)

// RefusedError is an ErrRefused with the agent's reason.
type RefusedError struct {
	Status  int    // HTTP status
	Message string // "dial tcp 127.0.0.1:3000: connect: connection refused"
}

func (e *RefusedError) Error() string { return e.Message }

// Is reports that every RefusedError is an ErrRefused.
func (e *RefusedError) Is(target error) bool { return target == ErrRefused }

// Client talks to one workspace's agent. Every call opens a connection of its own,
// so that none waits for another. It is safe for concurrent use.
type Client struct {
	// Addr is host:port of the agent, and Secret the container's secret
	// (runtime.Upstream).
	Addr, Secret string
	// AnswerTimeout limits how long the agent takes to answer a request; 0: 15 s.
	AnswerTimeout time.Duration
}

// within returns ctx with the time that the agent has to answer.
func (c *Client) within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, cmp.Or(c.AnswerTimeout, answerTimeout))
}

// Hello asks the agent who it is.
func (c *Client) Hello(ctx context.Context) (Hello, error) {
	var h Hello
	err := c.get(ctx, PathHello, maxAnswer, &h)
	return h, err
}

// Ports lists the listening TCP ports.
func (c *Client) Ports(ctx context.Context) ([]Port, error) {
	var p portsAnswer
	err := c.get(ctx, PathPorts, maxList, &p)
	return p.Ports, err
}

// WatchPorts calls changed with the listening ports: at once, and whenever the
// agent sees a change, until ctx ends or the agent stops. The agent looks every
// second while it is watched.
func (c *Client) WatchPorts(ctx context.Context, changed func([]Port)) error {
	conn, err := c.converse(ctx, PathPorts, nil, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	lines := bufio.NewScanner(conn)
	lines.Buffer(nil, maxList)
	for lines.Scan() {
		var p portsAnswer
		if err := json.Unmarshal(lines.Bytes(), &p); err != nil {
			return fmt.Errorf("%w: %w", ErrUnreachable, err)
		}
		changed(p.Ports)
		if err := pause(ctx, watchPause); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, cmp.Or(lines.Err(), io.ErrUnexpectedEOF))
}

// Usage reports what the workspace uses of its limits.
func (c *Client) Usage(ctx context.Context) (Usage, error) {
	var u Usage
	err := c.get(ctx, PathUsage, maxAnswer, &u)
	return u.checked(), err
}

// Dial connects to an address as seen in the workspace: network is "tcp" with
// host:port, or "unix" with the path of a socket. A refused connection is a
// RefusedError. ctx limits the dialing alone.
func (c *Client) Dial(ctx context.Context, network, address string) (*Conn, error) {
	return c.converse(ctx, PathDial, url.Values{"network": {network}, "address": {address}}, nil)
}

// Files starts an SFTP server in the workspace, as its user, and returns the
// connection to it. ctx limits the start alone.
func (c *Client) Files(ctx context.Context) (*Conn, error) {
	return c.converse(ctx, PathFiles, nil, nil)
}

// Listen listens in the workspace: network is "tcp" with host:port (port 0: any
// that is free), or "unix" with the path of a socket. ctx limits the start alone.
func (c *Client) Listen(ctx context.Context, network, address string) (*Listener, error) {
	return c.listen(ctx, url.Values{"network": {network}, "address": {address}})
}

// Relisten listens on a Unix socket like Listen, and ends the agent's listener that is there, such
// as that of a server whose machine has failed. Agents of earlier versions refuse it then.
func (c *Client) Relisten(ctx context.Context, socket string) (*Listener, error) {
	return c.listen(ctx, url.Values{"network": {"unix"}, "address": {socket}, "replace": {"true"}})
}

func (c *Client) listen(ctx context.Context, query url.Values) (*Listener, error) {
	conn, err := c.converse(ctx, PathListen, query, nil)
	if err != nil {
		return nil, err
	}
	l := &Listener{client: c, conn: conn, frames: NewFrameReader(conn)}
	l.ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if err := l.begin(ctx); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Listener listens in a workspace.
type Listener struct {
	client  *Client
	conn    *Conn
	frames  *FrameReader
	address string
	ignored int             // frames since the last connection
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
}

// begin waits for the agent's first message.
func (l *Listener) begin(ctx context.Context) error {
	ctx, cancel := l.client.within(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { l.conn.Close() })
	var first Listening
	err := l.next(&first)
	if stop(); ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		return unreachable(ctx, err)
	}
	l.address = first.Address
	return nil
}

// Address is where it listens.
func (l *Listener) Address() string { return l.address }

// Accept waits for the next connection and returns it with the peer's address. It
// must not be called concurrently. An agent that sends other than connections ends the
// listener.
func (l *Listener) Accept() (*Conn, string, error) {
	for {
		var a Accepted
		if err := l.next(&a); err != nil {
			return nil, "", err
		}
		if a.ID == "" {
			return nil, "", errors.New("the workspace's agent reported a connection without an ID")
		}
		conn, err := l.client.converse(l.ctx, PathAccept, url.Values{"id": {a.ID}}, nil)
		if err == nil {
			l.ignored = 0
			return conn, a.Remote, nil
		}
		// It has gone in the meantime; the end of the listener is seen above.
		if err := pause(l.ctx, acceptPause); err != nil {
			return nil, "", err
		}
	}
}

// next reads the next event into v. It skips a limited number of messages of later versions.
func (l *Listener) next(v any) error {
	for {
		f, err := l.frames.Read()
		if err != nil {
			return err
		}
		if f.Kind == FrameEvent {
			return json.Unmarshal(f.Payload, v)
		}
		if l.ignored++; l.ignored > maxIgnored {
			return errors.New("the workspace's agent sent too many frames of unknown kinds")
		}
	}
}

// Close ends the listener; Accept then returns an error.
func (l *Listener) Close() error {
	l.cancel()
	return l.conn.Close()
}

// pause waits for d, or for the end of ctx.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Exec starts a command. ctx limits the start alone; a command that cannot be
// started is a RefusedError. The caller must Run or Close.
func (c *Client) Exec(ctx context.Context, command Command) (*Process, error) {
	body, err := json.Marshal(command)
	if err != nil {
		return nil, fmt.Errorf("encode the command: %w", err)
	}
	conn, err := c.converse(ctx, PathExec, nil, body)
	if err != nil {
		return nil, err
	}
	return newProcess(conn), nil
}

// get requests a path and decodes the JSON of the response, of at most limit bytes.
func (c *Client) get(ctx context.Context, path string, limit int64, v any) error {
	return c.ask(ctx, http.MethodPost, path, nil, limit, v)
}

// ask is get with a method and a body.
func (c *Client) ask(ctx context.Context, method, path string, body []byte, limit int64, v any) error {
	ctx, cancel := c.within(ctx)
	defer cancel()
	conn, res, err := c.request(ctx, method, path, nil, body, limit, false)
	if err != nil {
		return err
	}
	defer conn.Close()
	if res.StatusCode != http.StatusOK {
		return refused(res)
	}
	if err := json.NewDecoder(res.Body).Decode(v); err != nil {
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return nil
}

// converse requests a path whose answer is a conversation.
func (c *Client) converse(ctx context.Context, path string, query url.Values, body []byte) (*Conn, error) {
	ctx, cancel := c.within(ctx)
	defer cancel()
	conn, res, err := c.request(ctx, http.MethodPost, path, query, body, maxAnswer, true)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		defer conn.Close()
		return nil, refused(res)
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		conn.Close()
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return conn, nil
}

// request sends a request on a new connection and reads the head of the response, whose
// body has at most limit bytes. The deadline of ctx is that of the connection.
func (c *Client) request(ctx context.Context, method, path string, query url.Values, body []byte, limit int64, upgrade bool) (*Conn, *http.Response, error) {
	if c.Addr == "" || c.Secret == "" {
		return nil, nil, ErrUnreachable
	}
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", c.Addr)
	if err != nil {
		return nil, nil, unreachable(ctx, err)
	}
	conn := &Conn{Conn: raw}
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	u := url.URL{Scheme: "http", Host: c.Addr, Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		conn.Close()
		return nil, nil, fmt.Errorf("ask the workspace's agent: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+c.Secret)
	if upgrade {
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", Upgrade)
	}
	if err := req.Write(conn); err != nil {
		conn.Close()
		return nil, nil, unreachable(ctx, err)
	}
	limited := &io.LimitedReader{R: conn.Conn, N: maxHead}
	r := bufio.NewReader(limited)
	res, err := http.ReadResponse(r, req)
	if err != nil {
		conn.Close()
		return nil, nil, unreachable(ctx, err)
	}
	limited.N = limit
	if res.StatusCode == http.StatusSwitchingProtocols && r.Buffered() > 0 {
		conn.early = r
	}
	if err := ctx.Err(); err != nil {
		conn.Close()
		return nil, nil, unreachable(ctx, err)
	}
	return conn, res, nil
}

func unreachable(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, err)
}

func refused(res *http.Response) error {
	e := &RefusedError{Status: res.StatusCode, Message: fmt.Sprint("the workspace's agent answered with the status ", res.StatusCode)}
	var p Problem
	if json.NewDecoder(io.LimitReader(res.Body, maxAnswer)).Decode(&p) == nil {
		e.Message = cmp.Or(printable(p.Message, maxReason), e.Message)
	}
	return e
}

// Conn is a connection into a workspace. CloseWrite ends one direction.
type Conn struct {
	net.Conn
	early *bufio.Reader // what arrived with the response's head

	read, written atomic.Bool // the direction has ended
}

// Read reads from the connection.
func (c *Conn) Read(p []byte) (int, error) {
	if c.early == nil {
		n, err := c.Conn.Read(p)
		if err == io.EOF {
			c.read.Store(true)
		}
		return n, err
	}
	n, err := c.early.Read(p[:min(len(p), c.early.Buffered())])
	if c.early.Buffered() == 0 {
		c.early = nil
	}
	return n, err
}

// CloseWrite ends the direction to the workspace. What it sends is still read.
func (c *Conn) CloseWrite() error {
	err := c.Conn.(*net.TCPConn).CloseWrite()
	if err == nil {
		c.written.Store(true)
	}
	return err
}

// Close ends the connection. Unless both directions have ended, it resets the connection:
// the agent would take a mere end for that of one direction, and wait for the other one as
// long as the program likes. What was sent last may be lost then.
func (c *Conn) Close() error {
	if !c.read.Load() || !c.written.Load() {
		_ = c.Conn.(*net.TCPConn).SetLinger(0)
	}
	return c.Conn.Close()
}
