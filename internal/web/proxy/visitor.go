package proxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"codehub/internal/gateway/front"
	"codehub/internal/gateway/shortway"
)

// closeTimeout is how long one side of a WebSocket may stay open after the other
// has ended: enough for final messages, without waiting for clients that never
// close.
const closeTimeout = 5 * time.Second

// keepAlive and userTimeout end connections to clients whose machine or network is gone.
// After 15 s without data, a probe is sent every 5 s. Linux ends the connection when the
// client has acknowledged nothing for userTimeout, neither probes nor data, or has not read
// for that time while there is data for it; it ignores Count then. So a lost client is
// noticed after 45 to 60 s, and an outage of 30 s ends no connection.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 9}

const userTimeout = time.Minute

// defaultStall is how long a client may read nothing of a response.
const defaultStall = 2 * time.Minute

// visitorWriter writes the response to the client.
type visitorWriter struct {
	http.ResponseWriter
	open       *connections
	connection *connection
	use        *use // or nil

	own      http.Header // before httputil.ReverseProxy; else nil
	informed bool        // an informational response was sent by it
}

// WriteHeader restores the fields that httputil.ReverseProxy removes after an informational
// response.
func (w *visitorWriter) WriteHeader(status int) {
	switch {
	case w.own == nil:
	case status >= 100 && status < 200 && status != http.StatusSwitchingProtocols:
		w.informed = true
	case w.informed:
		h := w.Header()
		for name, values := range w.own {
			h[name] = slices.Concat(values, h[name])
		}
		w.own = nil
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController reach the writer's other methods.
func (w *visitorWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *visitorWriter) Write(b []byte) (int, error) {
	w.connection.BeginWrite()
	n, err := w.ResponseWriter.Write(b)
	w.connection.EndWrite(n)
	return n, err
}

// FlushError is called by http.ResponseController.
func (w *visitorWriter) FlushError() error {
	w.connection.BeginWrite()
	defer w.connection.EndWrite(0)
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// watchedBody notes when a byte of the request's body passes.
type watchedBody struct {
	io.ReadCloser
	connection *connection
}

func (b watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.connection.moved(n)
	}
	return n, err
}

// Hijack returns the client's connection for a WebSocket, and tracks it so that it
// can be closed.
func (w *visitorWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	end, rw, err := w.hijack(nil)
	if err != nil {
		return nil, nil, err
	}
	return end, rw, nil
}

// hijack is Hijack for a WebSocket whose side of the container is closed with the
// client's, if it is not nil.
func (w *visitorWriter) hijack(backend net.Conn) (*visitorConn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	if tcp, ok := front.TCP(conn); ok {
		if err := tuneVisitor(tcp); err != nil {
			_ = conn.Close()
			return nil, nil, fmt.Errorf("set keep-alive: %w", err)
		}
	}
	if n := rw.Reader.Buffered(); n > 0 { // the client has sent them since its request
		early, _ := rw.Reader.Peek(n)
		conn = shortway.Replay(conn, early)
	}
	end := &visitorConn{Conn: conn, connection: w.connection, backend: backend}
	if w.use != nil {
		end.watch = w.use.watch
	}
	if !w.open.attach(w.connection, end) {
		w.connection.close()
		_ = end.Close()
		return nil, nil, errors.New("the connection was closed during the handshake")
	}
	return end, rw, nil
}

func tuneVisitor(c *net.TCPConn) error {
	if err := c.SetKeepAliveConfig(keepAlive); err != nil {
		return err
	}
	return setUserTimeout(c, userTimeout)
}

// visitorConn is the client's side of a WebSocket. When one direction ends, the
// other is closed after closeTimeout.
type visitorConn struct {
	net.Conn
	connection *connection
	watch      *messages // or nil
	backend    net.Conn  // closed with Conn; or nil

	mu     sync.Mutex
	timer  *time.Timer
	socket *shortway.WebSocket // or nil
}

func (c *visitorConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.connection.moved(n)
	}
	if errors.Is(err, io.EOF) {
		c.ending()
	}
	return n, err
}

func (c *visitorConn) Write(p []byte) (int, error) {
	c.connection.BeginWrite()
	n, err := c.Conn.Write(p)
	c.connection.EndWrite(n)
	return n, err
}

// CloseWrite closes the client's side for writing.
func (c *visitorConn) CloseWrite() error {
	c.ending()
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Conn.Close()
}

// Direct returns the connection below, from which the same is read.
func (c *visitorConn) Direct() (net.Conn, bool) { return c.Conn, true }

func (c *visitorConn) Close() error {
	if c.backend != nil {
		_ = c.backend.Close() // it is abandoned
	}
	err := c.Conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
	}
	if c.socket != nil { // one that is set later notices that the connections are closed
		c.socket.Wake()
	}
	return err
}

// relayedBy sets what is woken when the connection is closed.
func (c *visitorConn) relayedBy(s *shortway.WebSocket) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.socket = s
}

func (c *visitorConn) ending() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer == nil {
		c.timer = time.AfterFunc(closeTimeout, c.connection.close)
	}
}
