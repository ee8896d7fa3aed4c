// Package vscode tells from what passes through a WebSocket whether anybody uses
// the workspace behind it (design §9, ADR 10).
//
// An IDE's tab talks all day with nobody there, and neither the sizes nor the
// times of what it says tell people apart. So VS Code's own WebSockets are
// read, in four steps that know nothing of each other:
//
//	frames.go    the bytes → WebSocket frames
//	inflate.go   → permessage-deflate undone
//	messages.go  → messages of VS Code's protocol
//	signs.go     → what they say about people
//
// Of any other WebSocket every message with data in it that its client sends
// counts.
//
// Everything here sees bytes that have been passed on already. It never
// blocks, never changes them, and what goes wrong in it goes no further.
//
// Memory for one connection is bounded whatever is sent: about 3 KiB; beside
// that the window and tables of a decompressor, 50 KiB, while a message of the
// client is under way and, on the one WebSocket of a tab that carries its
// terminals, for the server's side as long as it lives.
package vscode

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"codehub/internal/activity"
)

// Options is what a Watch is made of.
type Options struct {
	// Touch is told of every use; it may come from two goroutines at once.
	Touch func(activity.Kind)
	// Extensions is Sec-WebSocket-Extensions of the answer as the client gets
	// it.
	Extensions []string
	// VSCode says that the address is one of VS Code's own WebSockets. What
	// it is then shows in its first messages.
	VSCode bool
	// Forwarded says that it leads to something that runs in the workspace
	// (ForwardedPort), whose pages send the same heartbeat over and over.
	Forwarded bool
	// Lost is called at most once for each side, when that side cannot be read
	// any more. From then on every byte of it counts as use. Optional.
	Lost func(Side, error)
}

// Side is one end of a WebSocket.
type Side string

// The sides of a WebSocket.
const (
	ClientSide Side = "client"
	ServerSide Side = "server"
)

// Watch judges one WebSocket.
type Watch struct {
	touch  func(activity.Kind)
	lost   func(Side, error)
	socket atomic.Int32 // a socket
	client client
	server server
}

// socket is what a WebSocket is for.
type socket = int32

const (
	undecided  socket = iota // what is VS Code's own until it has said more
	management               // files, terminals
	host                     // the extension host
	other                    // everything else
)

// New watches a WebSocket from its first byte. The caller closes it.
func New(o Options) *Watch {
	w := &Watch{touch: o.Touch, lost: o.Lost}
	if w.lost == nil {
		w.lost = func(Side, error) {}
	}
	agreed := parseExtensions(o.Extensions)
	w.client = client{watch: w, frames: frames{masked: true, deflate: agreed.deflate}}
	w.client.inflater = inflater{out: w.client.messages.read, takeover: !agreed.clientAlone, budget: newBudget()}
	w.client.messages.take = w.client.take
	if o.Forwarded {
		w.client.repeats = newRepeats()
	}
	if !o.VSCode {
		w.socket.Store(other)
		w.server.over.Store(true)
		return w
	}
	w.server.watch, w.server.frames.deflate = w, agreed.deflate
	w.server.inflater = inflater{out: w.server.messages.read, takeover: !agreed.serverAlone, budget: newBudget()}
	w.server.messages.take = w.server.take
	return w
}

// Close ends it; nothing is told of afterwards.
func (w *Watch) Close() {
	w.client.mu.Lock()
	w.client.over = true
	w.client.inflater.close()
	w.client.mu.Unlock()
	w.server.mu.Lock()
	w.server.giveUp()
	w.server.mu.Unlock()
}

// client is the side that people are on.
type client struct {
	watch *Watch

	mu       sync.Mutex // Client, and Close
	over     bool
	lost     bool
	frames   frames
	inflater inflater
	messages messages
	repeats  *repeats // of what is forwarded; else nil

	greeted    bool      // the first message of VS Code's protocol has come
	compressed bool      // this message is
	size       int       // of it so far
	present    bool      // somebody is at the window
	did        time.Time // when somebody last did more than be there
	rewritten  time.Time // when a text last changed that nobody typed
}

// telling is for how long what somebody did is not covered up by their being
// there still.
const telling = 5 * time.Second

// following is for how long after a text has changed by itself, such as a log
// in the output panel, an editor that scrolls follows it.
const following = 5 * time.Second

// Client looks at bytes that the client has sent and that were passed on. They
// are not changed and not kept.
func (w *Watch) Client(p []byte) {
	if len(p) > 0 {
		w.client.look(p)
	}
}

func (c *client) look(p []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	defer func() {
		if r := recover(); r != nil {
			c.lose(fmt.Errorf("panic: %v", r))
		}
	}()
	if c.lost {
		// Nobody knows what it is. Rather a workspace that runs on than one
		// that is stopped under somebody's hands.
		c.watch.touch(activity.Client)
		return
	}
	if err := c.frames.read(p, c); err != nil {
		c.lose(err)
	}
	// A window says when somebody has come and when they have left; what it
	// sends all the time says that it is still there.
	if c.present {
		c.touch(activity.Presence)
	}
}

func (c *client) touch(kind activity.Kind) {
	switch {
	case kind != activity.Presence:
		c.did = time.Now()
	case time.Since(c.did) < telling:
		return
	}
	c.watch.touch(kind)
}

func (c *client) lose(err error) {
	if c.lost {
		return
	}
	c.lost = true
	c.inflater.close()
	c.watch.lost(ClientSide, fmt.Errorf("read what a client sends: %w", err))
}

// errOther says that it is not VS Code's protocol.
var errOther = errors.New("not VS Code's WebSocket")

// maxGreeting is more than a client sends before it is known what its WebSocket
// is for; bytes.
const maxGreeting = 64 << 10

// maxEarly is how much of the server is read before it is known what the
// WebSocket is for; bytes. The client's part is read after it was passed on, so
// on a busy machine the server's answer may be read first: after a reconnect that
// is everything that the client has missed.
const maxEarly = 1 << 20

func (c *client) begin(compressed bool) error {
	c.compressed, c.size = compressed, 0
	return nil
}

func (c *client) data(p []byte) error {
	c.size += len(p)
	if c.watch.socket.Load() == other {
		c.foreign(p)
		return nil
	}
	var err error
	switch {
	case c.undecided() && c.size > maxGreeting:
		err = errOther
	case c.compressed:
		err = c.inflater.write(p)
	default:
		err = c.messages.read(p)
	}
	return c.unless(err)
}

func (c *client) end() error {
	if c.watch.socket.Load() == other {
		c.foreignEnd()
		return nil
	}
	var err error
	if c.compressed {
		err = c.inflater.end()
	}
	if err == nil && c.undecided() && !c.messages.whole() {
		err = errOther // VS Code begins with whole ones
	}
	return c.unless(err)
}

func (c *client) undecided() bool { return c.watch.socket.Load() == undecided }

// unless makes a WebSocket another's if it has not shown to be VS Code's, and
// begins to count.
func (c *client) unless(err error) error {
	if err == nil || !c.undecided() {
		return err
	}
	c.become(other)
	c.inflater.close()
	c.touch(activity.Client)
	return nil
}

func (c *client) become(s socket) { c.watch.socket.Store(s) }

// take is given VS Code's messages.
func (c *client) take(m message) {
	var s sign
	switch c.watch.socket.Load() {
	case undecided:
		c.greet(m)
		return
	case management:
		if m.kind == kindRegular {
			s = signOfManagement(m)
		}
	case host:
		if m.kind == kindRegular {
			s = signOfHost(m)
		}
	}
	switch s {
	case present:
		c.present = true
		c.touch(activity.Presence)
	case away:
		c.present = false
	case moved:
		c.touch(activity.Presence)
	case rewritten:
		c.rewritten = time.Now()
	case scrolled:
		if time.Since(c.rewritten) > following {
			c.touch(activity.Presence)
		}
	case typed:
		c.touch(activity.Typing)
	case printed:
		c.touch(activity.Output)
	}
}

var wantedType = []byte(`"desiredConnectionType":`)

// greet reads what is said before it is clear what a WebSocket is for.
func (c *client) greet(m message) {
	first := !c.greeted
	c.greeted = true
	if m.kind == kindRegular || first && m.kind != kindControl {
		c.become(other)
		c.touch(activity.Client)
		return
	}
	_, wanted, ok := bytes.Cut(m.body, wantedType)
	if !ok || m.kind != kindControl || len(wanted) == 0 {
		return
	}
	switch wanted[0] {
	case '1':
		c.become(management)
	case '2':
		c.become(host)
	default: // a tunnel
		c.become(other)
	}
}

// server is the side of the workspace. It is read for what its terminals
// print, and on the WebSocket that has that alone.
type server struct {
	watch *Watch
	over  atomic.Bool

	mu       sync.Mutex // Server, and Close
	frames   frames
	inflater inflater
	messages messages

	compressed bool
	early      int   // bytes before it was known what the WebSocket is for
	unread     error // why it cannot be read; what that means is decided with the socket
	lost       bool  // it cannot be read, and every byte counts
}

// Server looks at bytes that the workspace has sent and that were passed on.
// They are not changed and not kept.
func (w *Watch) Server(p []byte) {
	if len(p) > 0 && !w.server.over.Load() {
		w.server.look(p)
	}
}

func (s *server) look(p []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		if r := recover(); r != nil {
			s.lose(fmt.Errorf("panic: %v", r))
		}
	}()
	socket := s.watch.socket.Load()
	switch {
	case s.over.Load():
		return
	case socket == undecided:
		if s.early += len(p); s.early > maxEarly && s.unread == nil {
			s.lose(errEarly)
		}
	case socket != management:
		s.giveUp() // terminals print elsewhere
		return
	}
	if s.unread == nil {
		if err := s.frames.read(p, s); err != nil {
			s.lose(err)
		}
	}
	if s.unread != nil && socket == management {
		if !s.lost {
			s.lost = true
			s.watch.lost(ServerSide, fmt.Errorf("read what a workspace sends: %w", s.unread))
		}
		s.watch.touch(activity.Client) // it may be a terminal that prints
	}
}

var errEarly = errors.New("more came than is read before it is known what the WebSocket is for")

// lose ends the reading. Every byte counts from now on if the WebSocket carries
// terminals.
func (s *server) lose(err error) {
	if s.unread == nil {
		s.unread = err
		s.release()
	}
}

// giveUp ends the reading: nothing of this side counts.
func (s *server) giveUp() {
	s.over.Store(true)
	s.release()
}

func (s *server) release() {
	s.inflater.close()
	s.messages.body = nil
}

func (s *server) begin(compressed bool) error {
	s.compressed = compressed
	return nil
}

func (s *server) data(p []byte) error {
	if s.compressed {
		return s.inflater.write(p)
	}
	return s.messages.read(p)
}

func (s *server) end() error {
	if s.compressed {
		return s.inflater.end()
	}
	return nil
}

func (s *server) take(m message) {
	if m.kind == kindRegular && s.watch.socket.Load() == management && signOfServer(m) == printed {
		s.watch.touch(activity.Output)
	}
}
