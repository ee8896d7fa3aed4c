package proxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"codehub/internal/activity/vscode"
)

// linger is how long one side of a WebSocket may stay open after the other
// has ended: long enough for the last words, short enough for whoever never
// closes.
const linger = 5 * time.Second

// Keep-alives find a visitor whose machine or network is gone: in a quarter
// of a minute of silence the first probe, after three lost ones the end; and
// what was sent and never confirmed is given up after userTimeout, since no
// probes are sent while it is under way.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 10 * time.Second, Count: 3}

const userTimeout = 2 * time.Minute

// visitorWriter is the way back to the visitor.
type visitorWriter struct {
	http.ResponseWriter
	open       *connections
	connection *connection
	use        *use // or nil
}

// Unwrap lets http.ResponseController reach what flushes.
func (w *visitorWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Hijack hands out the visitor's connection, for a WebSocket, such that it can
// be closed from outside.
func (w *visitorWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		if err := tuneVisitor(tcp); err != nil {
			_ = conn.Close()
			return nil, nil, fmt.Errorf("set keep-alive: %w", err)
		}
	}
	end := &visitorConn{Conn: conn, connection: w.connection}
	if w.use != nil {
		end.watch = w.use.watch
	}
	if !w.open.attach(w.connection, end) {
		w.connection.close()
		_ = end.Close()
		return nil, nil, errors.New("the connection was closed while it was being made")
	}
	return end, rw, nil
}

func tuneVisitor(c *net.TCPConn) error {
	if err := c.SetKeepAliveConfig(keepAlive); err != nil {
		return err
	}
	return setUserTimeout(c, userTimeout)
}

// visitorConn is the visitor's end of a WebSocket. Once either direction has
// ended the other has linger to follow.
type visitorConn struct {
	net.Conn
	connection *connection
	watch      *vscode.Watch // or nil

	mu    sync.Mutex
	timer *time.Timer
}

func (c *visitorConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if errors.Is(err, io.EOF) {
		c.ending()
	}
	return n, err
}

func (c *visitorConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if c.watch != nil {
		c.watch.Server(p[:max(n, 0)])
	}
	return n, err
}

// CloseWrite tells the visitor that the container has ended.
func (c *visitorConn) CloseWrite() error {
	c.ending()
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Conn.Close()
}

func (c *visitorConn) Close() error {
	c.mu.Lock()
	if c.timer != nil {
		c.timer.Stop()
	}
	c.mu.Unlock()
	return c.Conn.Close()
}

func (c *visitorConn) ending() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer == nil {
		c.timer = time.AfterFunc(linger, c.connection.close)
	}
}
