// Package vscode detects user activity in the relayed bytes of a WebSocket; see ADR
// 10.
//
// An IDE's tab sends messages all day without a user, and their sizes and times do
// not show whether there is one. So the messages of VS Code's own WebSockets are
// decoded in four independent steps:
//
//	frames.go    bytes → WebSocket frames
//	inflate.go   → permessage-deflate decompressed
//	messages.go  → messages of VS Code's protocol
//	signs.go     → what they show about user activity
//
// On other WebSockets every non-empty message from the client counts as activity.
//
// The package only sees bytes that were already relayed. It never blocks or changes
// them, and its errors and panics do not affect the connection.
//
// Memory is limited to about 3 KiB per connection, plus 50 KiB for a decompressor
// while a message of the client is decoded and, on the one WebSocket per tab that
// carries terminals, permanently for the server's side.
package vscode

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"codehub/internal/bus/activity"
)

// Options configures a Watch.
type Options struct {
	// Touch is called for every activity, possibly from two goroutines at once.
	Touch func(activity.Kind)
	// Typed is called when the client types: in an editor or a terminal, or by a message of
	// less than 4 KiB in a protocol that is not VS Code's. Optional.
	Typed func()
	// Extensions is the response's Sec-WebSocket-Extensions, as sent to the client.
	Extensions []string
	// VSCode reports whether the address is one of VS Code's own WebSockets. The
	// first messages show which one.
	VSCode bool
	// Forwarded reports whether the WebSocket leads to a program in the workspace
	// (ForwardedPort), whose pages may send repeated heartbeats.
	Forwarded bool
	// OnError is called at most once per side, when that side can no longer be
	// decoded. From then on all of its traffic counts as activity. Optional.
	OnError func(Side, error)
}

// Side is one end of a WebSocket.
type Side string

// The sides of a WebSocket.
const (
	ClientSide Side = "client"
	ServerSide Side = "server"
)

// Watch inspects one WebSocket.
type Watch struct {
	touch  func(activity.Kind)
	typed  func()
	lost   func(Side, error)
	socket atomic.Int32 // a socket
	client client
	server server
}

// socket is the purpose of a WebSocket.
type socket = int32

const (
	undecided  socket = iota // VS Code's, until its first messages show which one
	management               // files, terminals
	host                     // the extension host
	other                    // everything else
)

// New returns a Watch for a WebSocket, to be called before its first byte. The
// caller must close it.
func New(o Options) *Watch {
	w := &Watch{touch: o.Touch, typed: o.Typed, lost: o.OnError}
	if w.typed == nil {
		w.typed = func() {}
	}
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

// Close ends the inspection; no callbacks follow.
func (w *Watch) Close() {
	w.client.mu.Lock()
	w.client.over = true
	w.client.inflater.close()
	w.client.mu.Unlock()
	w.server.mu.Lock()
	w.server.stop()
	w.server.mu.Unlock()
}

// client is the client's side.
type client struct {
	watch *Watch

	mu       sync.Mutex // for Client and Close
	over     bool
	lost     bool
	frames   frames
	inflater inflater
	messages messages
	repeats  *repeats // for forwarded ports; else nil

	begun      bool      // the first message of VS Code's protocol was received
	compressed bool      // the current message is compressed
	size       int       // of the current message so far
	present    bool      // a user is at the window
	actedAt    time.Time // last activity other than presence
	rewritten  time.Time // last change of a text that was not typed
}

// actionWindow is how long presence is not recorded after another kind of activity,
// which it would replace.
const actionWindow = 5 * time.Second

// scrollWindow is how long scrolling is attributed to a text that has changed by
// itself, such as a log in the output panel.
const scrollWindow = 5 * time.Second

// Client inspects bytes from the client after they were relayed. It neither changes
// nor keeps them.
func (w *Watch) Client(p []byte) {
	if len(p) > 0 {
		w.client.inspect(p)
	}
}

func (c *client) inspect(p []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	defer func() {
		if r := recover(); r != nil {
			c.fail(fmt.Errorf("panic: %v", r))
		}
	}()
	if c.lost {
		// The traffic cannot be interpreted. Keeping the workspace running is
		// better than stopping it while it is in use.
		c.watch.touch(activity.Client)
		return
	}
	if err := c.frames.read(p, c); err != nil {
		c.fail(err)
	}
	// A window reports when a user arrives and leaves; its regular messages in
	// between show that the user is still present.
	if c.present {
		c.touch(activity.Presence)
	}
}

func (c *client) touch(kind activity.Kind) {
	switch {
	case kind != activity.Presence:
		c.actedAt = time.Now()
	case time.Since(c.actedAt) < actionWindow:
		return
	}
	c.watch.touch(kind)
	if kind == activity.Typing || kind == activity.Client && c.size < maxTyped {
		c.watch.typed()
	}
}

// maxTyped is the size from which a message of an unknown protocol is not typed.
const maxTyped = 4 << 10

func (c *client) fail(err error) {
	if c.lost {
		return
	}
	c.lost = true
	c.inflater.close()
	c.watch.lost(ClientSide, fmt.Errorf("decode the client's messages: %w", err))
}

// errOther means that the protocol is not VS Code's.
var errOther = errors.New("not VS Code's WebSocket")

// maxIdentify is more than a client sends before the purpose of its WebSocket is
// known, in bytes.
const maxIdentify = 64 << 10

// maxEarly limits the server's bytes before the purpose of the WebSocket is known.
// The client's bytes are inspected after they were relayed, so on a busy machine
// the server's response may be inspected first, including everything missed before
// a reconnect.
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
	case c.undecided() && c.size > maxIdentify:
		err = errOther
	case c.compressed:
		err = c.inflater.write(p)
	default:
		err = c.messages.read(p)
	}
	return c.checkFirst(err)
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
		err = errOther // VS Code's client begins with complete messages
	}
	return c.checkFirst(err)
}

func (c *client) undecided() bool { return c.watch.socket.Load() == undecided }

// checkFirst treats a WebSocket that is not VS Code's as another protocol, whose
// messages count.
func (c *client) checkFirst(err error) error {
	if err == nil || !c.undecided() {
		return err
	}
	c.become(other)
	c.inflater.close()
	c.touch(activity.Client)
	return nil
}

func (c *client) become(s socket) { c.watch.socket.Store(s) }

// take receives VS Code's messages.
func (c *client) take(m message) {
	var s sign
	switch c.watch.socket.Load() {
	case undecided:
		c.identify(m)
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
		if time.Since(c.rewritten) > scrollWindow {
			c.touch(activity.Presence)
		}
	case typed:
		c.touch(activity.Typing)
	case printed:
		c.touch(activity.Output)
	}
}

var wantedType = []byte(`"desiredConnectionType":`)

// identify determines the purpose of a WebSocket from its first messages.
func (c *client) identify(m message) {
	first := !c.begun
	c.begun = true
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

// server is the workspace's side. Only terminal output is of interest, on the
// WebSocket that carries it.
type server struct {
	watch *Watch
	over  atomic.Bool

	mu       sync.Mutex // for Server and Close
	frames   frames
	inflater inflater
	messages messages

	compressed bool
	early      int   // bytes before the purpose of the WebSocket was known
	err        error // why it cannot be decoded; handled when the purpose is known
	lost       bool  // not decodable; all bytes count
}

// Server inspects bytes from the workspace after they were relayed. It neither
// changes nor keeps them.
func (w *Watch) Server(p []byte) {
	if len(p) > 0 && !w.server.over.Load() {
		w.server.inspect(p)
	}
}

func (s *server) inspect(p []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		if r := recover(); r != nil {
			s.fail(fmt.Errorf("panic: %v", r))
		}
	}()
	socket := s.watch.socket.Load()
	switch {
	case s.over.Load():
		return
	case socket == undecided:
		if s.early += len(p); s.early > maxEarly && s.err == nil {
			s.fail(errEarly)
		}
	case socket != management:
		s.stop() // terminals use another WebSocket
		return
	}
	if s.err == nil {
		if err := s.frames.read(p, s); err != nil {
			s.fail(err)
		}
	}
	if s.err != nil && socket == management {
		if !s.lost {
			s.lost = true
			s.watch.lost(ServerSide, fmt.Errorf("decode the workspace's messages: %w", s.err))
		}
		s.watch.touch(activity.Client) // it may be terminal output
	}
}

var errEarly = errors.New("too much data before the purpose of the WebSocket is known")

// fail ends the decoding. If the WebSocket carries terminals, all bytes count from
// now on.
func (s *server) fail(err error) {
	if s.err == nil {
		s.err = err
		s.release()
	}
}

// stop ends the inspection: nothing from this side counts.
func (s *server) stop() {
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
