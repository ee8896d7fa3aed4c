package sshgate

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"codehub/internal/base/flow"
	"codehub/internal/bus/activity"
	"codehub/internal/running/attach"
	"codehub/internal/runtime/agent"
)

// directTCP connects to an address in the workspace: -L, -D and -W.
func (c *connection) directTCP(n ssh.NewChannel) {
	var p tcpChannel
	if ssh.Unmarshal(n.ExtraData(), &p) != nil || !validHost(p.Address) || !validPort(p.Port) {
		_ = n.Reject(ssh.ConnectionFailed, "invalid address")
		return
	}
	c.dial(n, "tcp", net.JoinHostPort(p.Address, strconv.Itoa(int(p.Port))))
}

// directStreamlocal connects to a socket in the workspace.
func (c *connection) directStreamlocal(n ssh.NewChannel) {
	var p directStreamlocal
	if ssh.Unmarshal(n.ExtraData(), &p) != nil || !validSocket(p.Path) {
		_ = n.Reject(ssh.ConnectionFailed, "invalid path")
		return
	}
	c.dial(n, "unix", p.Path)
}

// dial connects a channel to an address in the workspace.
func (c *connection) dial(n ssh.NewChannel, network, address string) {
	way, err := c.await(c.ctx)
	if err != nil {
		_ = n.Reject(ssh.ConnectionFailed, c.explain(err))
		return
	}
	conn, err := way.Agent.Dial(c.ctx, network, address)
	if err != nil {
		reason := "the workspace does not respond"
		if errors.Is(err, agent.ErrRefused) {
			reason = plain(err.Error())
		}
		_ = n.Reject(ssh.ConnectionFailed, reason)
		return
	}
	defer conn.Close()
	ch, requests, err := n.Accept()
	if err != nil {
		return
	}
	c.join(ch, requests, conn)
}

// closeGrace is how long the other side of a forwarded connection may take to end after
// the client has closed its channel.
const closeGrace = 5 * time.Second

// join copies between a channel and a connection until both have ended, or one fails. It
// returns once the client has closed the channel.
func (c *connection) join(raw ssh.Channel, requests <-chan *ssh.Request, conn *agent.Conn) {
	defer context.AfterFunc(c.ctx, func() { conn.Close() })()
	ch := c.newChannel(raw, func() { conn.Close() })
	defer ch.input.done()
	finished := make(chan struct{})
	go func() {
		ssh.DiscardRequests(requests) // they end with the channel
		close(ch.closed)
		select {
		case <-finished:
		case <-time.After(closeGrace):
			conn.Close()
		}
	}()
	var t tunnelUse
	flow.Join(ch, countedConn{conn, ch.input}, func(n int) {
		if t.used(n, time.Now()) {
			c.used(activity.Client)
		}
	})
	close(finished)
	ch.discard()
	<-ch.closed
}

// A forwarded connection counts as a use of the workspace when its client sends
// tunnelBytes within tunnelWindow: more than the keep-alives of editors, and less than a
// person causes who types in one.
const (
	tunnelBytes  = 8 << 10
	tunnelWindow = time.Minute
)

// tunnelUse finds out whether a forwarded connection is used. It is not safe for
// concurrent use.
type tunnelUse struct {
	since time.Time
	bytes int
}

func (t *tunnelUse) used(n int, now time.Time) bool {
	if now.Sub(t.since) > tunnelWindow {
		t.since, t.bytes = now, 0
	}
	t.bytes += n
	return t.bytes >= tunnelBytes
}

// listenKey identifies a listener of a connection as its client does.
type listenKey struct {
	network, address string
	port             uint32
}

// listen listens in the workspace: -R.
func (c *connection) listen(r *ssh.Request) {
	key, ok := c.listenKey(r)
	if !ok || c.begin() != nil {
		_ = r.Reply(false, nil)
		return
	}
	handed := false
	defer func() {
		if !handed {
			c.finish()
		}
	}()
	way, err := c.await(c.ctx)
	if err != nil {
		_ = r.Reply(false, nil)
		return
	}
	l, err := c.listenAt(way, key)
	if err != nil {
		c.gate.cfg.Log.Debug("listen in a workspace failed", "workspace", string(c.id), "err", err)
		_ = r.Reply(false, nil)
		return
	}
	// Only a port that the agent had to choose is its to name.
	chosen := key.network == "tcp" && key.port == 0
	if chosen {
		at, err := netip.ParseAddrPort(l.Address())
		if err != nil || at.Port() == 0 {
			l.Close()
			_ = r.Reply(false, nil)
			return
		}
		key.port = uint32(at.Port())
	}
	if !c.addListener(key, l) {
		l.Close()
		_ = r.Reply(false, nil)
		return
	}
	var reply []byte
	if chosen {
		reply = ssh.Marshal(forwardReply{key.port})
	}
	_ = r.Reply(true, reply)
	handed = true
	go func() {
		defer c.finish()
		defer context.AfterFunc(c.ctx, func() { l.Close() })()
		c.accept(l, func(remote string) (string, []byte) { return forwarded(key, remote) })
		c.removeListener(key, l)
	}()
}

func (c *connection) listenKey(r *ssh.Request) (listenKey, bool) {
	if r.Type == "tcpip-forward" || r.Type == "cancel-tcpip-forward" {
		var p forwardRequest
		ok := ssh.Unmarshal(r.Payload, &p) == nil && p.Port < 1<<16 && len(p.Address) <= maxHost
		return listenKey{"tcp", p.Address, p.Port}, ok
	}
	var p streamlocalRequest
	ok := ssh.Unmarshal(r.Payload, &p) == nil && validSocket(p.Path)
	return listenKey{"unix", p.Path, 0}, ok
}

// listenAt listens on the loopback address alone, whatever the client asks for, as
// OpenSSH does by default.
func (c *connection) listenAt(way *attach.Attachment, key listenKey) (*agent.Listener, error) {
	address := key.address
	if key.network == "tcp" {
		address = net.JoinHostPort("127.0.0.1", strconv.Itoa(int(key.port)))
	}
	return way.Agent.Listen(c.ctx, key.network, address)
}

func (c *connection) addListener(key listenKey, l io.Closer) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.listeners[key] != nil || len(c.listeners) >= maxListeners || c.ctx.Err() != nil {
		return false
	}
	c.listeners[key] = l
	return true
}

func (c *connection) removeListener(key listenKey, l io.Closer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.listeners[key] == l {
		delete(c.listeners, key)
	}
}

// unlisten ends a listener.
func (c *connection) unlisten(r *ssh.Request) {
	key, ok := c.listenKey(r)
	c.mu.Lock()
	l := c.listeners[key]
	delete(c.listeners, key)
	c.mu.Unlock()
	if ok = ok && l != nil; ok {
		l.Close()
	}
	_ = r.Reply(ok, nil)
}

// forwarded describes a connection to a listener, for its channel.
func forwarded(key listenKey, remote string) (kind string, payload []byte) {
	if key.network == "unix" {
		return "forwarded-streamlocal@openssh.com", ssh.Marshal(forwardedStreamlocal{Path: key.address})
	}
	peer, err := netip.ParseAddrPort(remote)
	if err != nil {
		peer = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)
	}
	return "forwarded-tcpip", ssh.Marshal(tcpChannel{key.address, key.port, peer.Addr().Unmap().WithZone("").String(), uint32(peer.Port())})
}

// surplusPause follows a connection to a listener that is closed because the user has too
// many channels.
const surplusPause = 5 * time.Millisecond

// accept opens a channel for every connection to a listener, until it is closed. The
// caller is one of c.handlers.
func (c *connection) accept(l *agent.Listener, channel func(remote string) (string, []byte)) {
	defer l.Close()
	for {
		conn, remote, err := l.Accept()
		if err != nil {
			return
		}
		if c.begin() != nil {
			conn.Close()
			// A workspace that opens connections without end gets no more of the server's time.
			select {
			case <-time.After(surplusPause):
			case <-c.ctx.Done():
			}
			continue
		}
		go func() {
			defer c.finish()
			defer conn.Close()
			kind, payload := channel(remote)
			if ch, requests := c.openChannel(kind, payload); ch != nil {
				c.join(ch, requests, conn)
			}
		}()
	}
}

// openChannel opens a channel to the client. It returns nil if the client refuses it, and with the
// end of the connection: the library waits for ever for the answer to a request that it sends
// while the connection ends.
func (c *connection) openChannel(kind string, payload []byte) (ssh.Channel, <-chan *ssh.Request) {
	type opened struct {
		ch       ssh.Channel
		requests <-chan *ssh.Request
	}
	answer := make(chan opened)
	go func() {
		ch, requests, err := c.ssh.OpenChannel(kind, payload)
		if err != nil {
			close(answer)
			return
		}
		select {
		case answer <- opened{ch, requests}:
		case <-c.ctx.Done():
			ch.Close()
			ssh.DiscardRequests(requests)
		}
	}()
	select {
	case o := <-answer:
		return o.ch, o.requests
	case <-c.ctx.Done():
		return nil, nil
	}
}

// forwardAgent lets programs in the workspace reach the client's SSH agent, by a socket
// in a folder of its own.
func (c *connection) forwardAgent(ctx context.Context, way *attach.Attachment) (socket string, stop func(), err error) {
	if err := c.begin(); err != nil {
		return "", nil, err
	}
	dir := "/tmp/ssh-" + rand.Text()[:16]
	starting, cancel := context.WithTimeout(ctx, agentSocketTimeout)
	defer cancel()
	if err := c.onFiles(starting, way, func(f *sftp.Client) error {
		if err := f.Mkdir(dir); err != nil {
			return err
		}
		return f.Chmod(dir, 0o700)
	}); err != nil {
		c.finish()
		return "", nil, fmt.Errorf("make a folder for its socket: %w", err)
	}
	socket = dir + "/agent"
	l, err := way.Agent.Listen(starting, "unix", socket)
	if err != nil {
		c.finish()
		return "", nil, err
	}
	go func() {
		defer c.finish()
		defer context.AfterFunc(c.ctx, func() { l.Close() })()
		c.accept(l, func(string) (string, []byte) { return "auth-agent@openssh.com", nil })
	}()
	return socket, func() {
		l.Close()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), agentSocketTimeout)
		defer cancel()
		if c.ctx.Err() != nil && context.Cause(c.ctx) != io.EOF {
			return // the workspace is not the user's any more, or has stopped
		}
		_ = c.onFiles(ctx, way, func(f *sftp.Client) error {
			_ = f.Remove(socket) // unless the agent has
			return f.RemoveDirectory(dir)
		})
	}, nil
}

// agentSocketTimeout limits how long the workspace takes to make the socket of an SSH
// agent, and to remove it.
const agentSocketTimeout = 5 * time.Second

// onFiles calls do with the workspace's files. ctx ends it.
func (c *connection) onFiles(ctx context.Context, way *attach.Attachment, do func(*sftp.Client) error) error {
	conn, err := way.Agent.Files(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	f, err := sftp.NewClientPipe(conn, conn)
	if err != nil {
		return err
	}
	defer f.Close()
	return do(f)
}
