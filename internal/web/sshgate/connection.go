package sshgate

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"codehub/internal/bus/activity"
	"codehub/internal/running/attach"
	"codehub/internal/workspace"
)

const (
	// maxListeners limits the addresses of a workspace that a connection listens on.
	maxListeners = 64
	// keepAliveInterval is how often the client is asked whether it is there. One that
	// does not answer for keepAliveTimeout is disconnected.
	keepAliveInterval, keepAliveTimeout = 30 * time.Second, 5 * time.Minute
	// startingInterval takes the place of keepAliveInterval while the client waits for its
	// workspace. The client's own keep-alives wait for answers then, behind its requests
	// for listeners: any packet of the server's keeps it from giving up.
	startingInterval = 3 * time.Second
	// endDelay is the time that sessions have to report the end of the connection.
	endDelay = time.Second
)

// connection is an SSH connection to one workspace.
type connection struct {
	gate   *Gate
	ssh    *ssh.ServerConn
	caller workspace.Caller
	remote string // the client's address

	ctx    context.Context // ends with the connection
	cancel context.CancelCauseFunc

	// Written before ready is closed.
	ready   chan struct{}
	way     *attach.Attachment // nil: failed
	failure error
	id      workspace.ID

	mu        sync.Mutex
	state     string        // what the wait is for, for people
	changed   chan struct{} // closed when state changes
	listeners map[listenKey]io.Closer

	surplus  bool           // by the limits of connections; written before its first channel
	channels atomic.Int64   // of a refused connection
	sessions atomic.Int64   // of the channels
	handlers sync.WaitGroup // that use way
}

func newConnection(g *Gate, sc *ssh.ServerConn, caller workspace.Caller) *connection {
	c := &connection{
		gate: g, ssh: sc, caller: caller, ready: make(chan struct{}), changed: make(chan struct{}),
		listeners: map[listenKey]io.Closer{},
	}
	c.ctx, c.cancel = context.WithCancelCause(g.ctx)
	return c
}

// run serves the connection until it ends.
func (c *connection) run(channels <-chan ssh.NewChannel, requests <-chan *ssh.Request, find func(context.Context) (workspace.ID, error)) {
	start := time.Now()
	log := c.gate.cfg.Log.With("remote", c.remote, "user", c.caller.UserID)
	if err := c.gate.admit.enter(c.caller.UserID); err != nil {
		c.failure, c.surplus = err, true
		if c.gate.beginTurningAway() {
			defer c.gate.turnedAway.Add(-1)
		} else {
			c.cancel(err)
			c.ssh.Close()
		}
	} else {
		defer c.gate.admit.leave(c.caller.UserID)
	}
	var background sync.WaitGroup
	background.Go(func() { c.enter(find) })
	background.Go(func() { c.keepAlive() })
	queue := make(chan asked, maxAsked)
	background.Go(func() { c.answer(queue) })
	background.Go(func() {
		<-c.ctx.Done()
		c.reported()
		c.ssh.Close()
	})
	c.receive(channels, requests, queue)
	close(queue)
	// The client is gone, or its access has ended.
	c.cancel(io.EOF)
	c.ssh.Close()
	background.Wait()
	c.handlers.Wait()
	if c.way != nil {
		c.way.Close()
	}
	log.Info("SSH connection ended", "workspace", string(c.id), "took", time.Since(start), "reason", reason(context.Cause(c.ctx)))
}

// reported waits until all sessions have told their clients why they end.
func (c *connection) reported() {
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for end := time.Now().Add(endDelay); c.sessions.Load() > 0 && time.Now().Before(end); {
		<-poll.C
	}
}

// reason is the end of a connection, for the log.
func reason(cause error) string {
	if errors.Is(cause, io.EOF) {
		return "closed by the client"
	}
	return cause.Error()
}

// enter attaches to the workspace, and ends the connection with the attachment.
func (c *connection) enter(find func(context.Context) (workspace.ID, error)) {
	if c.failure == nil {
		c.way, c.failure = c.attach(find)
	}
	close(c.ready)
	if c.failure != nil {
		c.gate.cfg.Log.Info("SSH connection not attached", "remote", c.remote, "user", c.caller.UserID, "workspace", string(c.id), "err", c.failure)
		// Sessions report it. A client without a session has to learn it too.
		select {
		case <-c.ctx.Done():
		case <-time.After(failureDelay):
			c.cancel(c.failure)
		}
		return
	}
	c.gate.cfg.Log.Info("SSH connection attached", "remote", c.remote, "user", c.caller.UserID, "workspace", string(c.id))
	select {
	case <-c.ctx.Done():
	case <-c.way.Context().Done():
		c.cancel(context.Cause(c.way.Context()))
	}
}

// failureDelay is how long a connection without a workspace stays open.
const failureDelay = 5 * time.Second

func (c *connection) attach(find func(context.Context) (workspace.ID, error)) (*attach.Attachment, error) {
	ctx, cancel := context.WithTimeout(c.ctx, lookupTimeout)
	defer cancel()
	id, err := find(ctx)
	if err != nil {
		return nil, err
	}
	c.id = id
	return c.gate.cfg.Attacher.Attach(c.ctx, c.caller, id, func(ws workspace.Workspace) { c.waiting(waitingFor(ws)) })
}

// waiting reports what the wait for the workspace is for.
func (c *connection) waiting(state string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if state == c.state {
		return
	}
	c.state = state
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *connection) waitsFor() (state string, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state, c.changed
}

// await waits for the workspace, and returns why it cannot be entered. The caller is
// one of c.handlers.
func (c *connection) await(ctx context.Context) (*attach.Attachment, error) {
	select {
	case <-c.ready:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if c.failure != nil {
		return nil, c.failure
	}
	if err := context.Cause(c.ctx); err != nil {
		return nil, err
	}
	return c.way, nil
}

// used records a use of the workspace. The caller is one of c.handlers.
func (c *connection) used(kind activity.Kind) { c.way.Used(kind) }

// keepAlive ends the connection of a client that does not answer.
func (c *connection) keepAlive() {
	tick := time.NewTicker(startingInterval)
	defer tick.Stop()
	ready := c.ready
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-ready:
			ready = nil
			tick.Reset(keepAliveInterval)
			continue
		case <-tick.C:
		}
		silent := time.AfterFunc(keepAliveTimeout, func() { c.cancel(errSilent); c.ssh.Close() })
		_, _, err := c.ssh.SendRequest("keepalive@openssh.com", true, nil)
		silent.Stop()
		if err != nil {
			c.cancel(io.EOF) // the client has gone
			return
		}
	}
}

var errSilent = errors.New("the client does not respond")

// asked is a request of the connection. answered is closed when it is answered.
type asked struct {
	*ssh.Request
	answered chan struct{}
}

// maxAsked is how many requests wait for those before them.
const maxAsked = 64

// noMoreSessions is a request of OpenSSH's client.
const noMoreSessions = "no-more-sessions@openssh.com"

// receive passes on what the client opens and requests until it has gone. A session waits
// for the requests that were sent before it, and perhaps for some that follow.
func (c *connection) receive(channels <-chan ssh.NewChannel, requests <-chan *ssh.Request, to chan<- asked) {
	answered := make(chan struct{}) // of the last request
	close(answered)
	enough := false // the client opens no more sessions
	pass := func(r *ssh.Request) {
		enough = enough || r.Type == noMoreSessions
		answered = make(chan struct{})
		select {
		case to <- asked{r, answered}:
		case <-c.ctx.Done():
			close(answered)
		}
	}
	for {
		select {
		case r, ok := <-requests:
			if !ok {
				requests = nil // the channels end as well
				continue
			}
			pass(r)
		case n, ok := <-channels:
			if !ok {
				return
			}
			// The library delivers the two apart, but has received the earlier first.
			refuse := enough && n.ChannelType() == "session"
			for earlier := true; earlier; {
				select {
				case r, ok := <-requests:
					if earlier = ok; ok {
						pass(r)
					}
				default:
					earlier = false
				}
			}
			if refuse {
				_ = n.Reject(ssh.Prohibited, "the client asked for no more sessions")
				continue
			}
			c.open(n, answered)
		}
	}
}

// open begins a channel. answered is closed when the requests before it are answered, for
// which sessions wait.
func (c *connection) open(n ssh.NewChannel, answered <-chan struct{}) {
	handle := map[string]func(ssh.NewChannel){
		"session":                        func(n ssh.NewChannel) { c.session(n, answered) },
		"direct-tcpip":                   c.directTCP,
		"direct-streamlocal@openssh.com": c.directStreamlocal,
	}[n.ChannelType()]
	if handle == nil {
		_ = n.Reject(ssh.UnknownChannelType, "unsupported channel type")
		return
	}
	if err := c.begin(); err != nil {
		_ = n.Reject(ssh.ResourceShortage, err.Error())
		return
	}
	go func() {
		defer c.finish()
		handle(n)
	}()
}

// begin counts a channel or a listener; finish must follow unless it returns an error, which
// is for the client.
func (c *connection) begin() error {
	if c.surplus {
		if c.channels.Add(1) > maxRefusedChannels {
			c.channels.Add(-1)
			return errChannelsOfUser
		}
	} else if err := c.gate.admit.enterChannel(c.caller.UserID); err != nil {
		return err
	}
	c.handlers.Add(1)
	return nil
}

func (c *connection) finish() {
	if c.surplus {
		c.channels.Add(-1)
	} else {
		c.gate.admit.leaveChannel(c.caller.UserID)
	}
	c.handlers.Done()
}

// answer answers the requests of the connection itself, in their order. It ends with the
// connection.
func (c *connection) answer(queue <-chan asked) {
	for r := range queue {
		switch r.Type {
		case "tcpip-forward", "streamlocal-forward@openssh.com":
			c.listen(r.Request)
		case "cancel-tcpip-forward", "cancel-streamlocal-forward@openssh.com":
			c.unlisten(r.Request)
		case noMoreSessions:
			_ = r.Reply(true, nil)
		default: // the client's keep-alives are answered as by OpenSSH
			_ = r.Reply(false, nil)
		}
		close(r.answered)
	}
}
