// Package tunnel carries a connection that can be closed in one direction over a
// WebSocket: binary messages are bytes, and the text message "end" ends the sender's
// direction.
package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// Protocol is the subprotocol of the WebSocket.
const Protocol = "codehub-connection.v1"

const (
	end = "end"
	// maxMessage is the largest message that is received, and bufferSize that which
	// Relay sends.
	maxMessage = 1 << 20
	bufferSize = 32 << 10
	// pingEvery keeps the connection open through proxies that close idle ones.
	pingEvery = 30 * time.Second
)

// Conn is an end of the connection. Read and Write may be called concurrently with each
// other, but neither with itself.
type Conn struct {
	ctx    context.Context
	cancel context.CancelFunc
	ws     *websocket.Conn
	part   io.Reader // the rest of a message; nil: none
	ended  bool
}

// New returns an end of the connection, which is closed with ctx.
func New(ctx context.Context, ws *websocket.Conn) *Conn {
	ws.SetReadLimit(maxMessage)
	ctx, cancel := context.WithCancel(ctx)
	return &Conn{ctx: ctx, cancel: cancel, ws: ws}
}

// Read reads bytes. The error is io.EOF after the other end's CloseWrite.
func (c *Conn) Read(p []byte) (int, error) {
	for {
		if c.ended {
			return 0, io.EOF
		}
		if c.part == nil {
			kind, r, err := c.ws.Reader(c.ctx)
			if err != nil {
				return 0, fmt.Errorf("receive on the WebSocket: %w", err)
			}
			if kind == websocket.MessageText {
				b, err := io.ReadAll(io.LimitReader(r, int64(len(end))+1))
				if err != nil || string(b) != end {
					return 0, errors.New("the WebSocket sent an unknown message")
				}
				c.ended = true
				// It reads on, and so notices an end that goes away.
				context.AfterFunc(c.ws.CloseRead(c.ctx), c.cancel)
				continue
			}
			c.part = r
		}
		n, err := c.part.Read(p)
		if errors.Is(err, io.EOF) {
			c.part, err = nil, nil
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// Write sends bytes.
func (c *Conn) Write(p []byte) (int, error) {
	sent := 0
	for part := range slices.Chunk(p, maxMessage/4) {
		if err := c.ws.Write(c.ctx, websocket.MessageBinary, part); err != nil {
			return sent, fmt.Errorf("send on the WebSocket: %w", err)
		}
		sent += len(part)
	}
	return sent, nil
}

// CloseWrite ends this end's direction.
func (c *Conn) CloseWrite() error { return c.ws.Write(c.ctx, websocket.MessageText, []byte(end)) }

// Close ends the connection.
func (c *Conn) Close() error {
	c.cancel()
	return c.ws.CloseNow()
}

// KeepAlive sends pings until the connection ends.
func (c *Conn) KeepAlive() {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(c.ctx, pingEvery)
		_ = c.ws.Ping(ctx) // a broken connection is noticed by Read and Write
		cancel()
	}
}

// HalfConn is a connection that can be closed in one direction.
type HalfConn interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// Relay relays between two connections until both directions have ended, or one has
// failed, or a Conn has lost its other end, and closes both. used is called for what a sends; nil: not needed.
func Relay(a, b HalfConn, used func()) {
	var both sync.WaitGroup
	relay := func(to, from HalfConn, used func()) {
		defer both.Done()
		if err := pass(to, from, used); err != nil {
			_, _ = a.Close(), b.Close() // they are abandoned
		}
	}
	for _, side := range []HalfConn{a, b} {
		if c, ok := side.(*Conn); ok {
			defer context.AfterFunc(c.ctx, func() { _, _ = a.Close(), b.Close() })()
		}
	}
	both.Add(2)
	go relay(a, b, nil)
	relay(b, a, used)
	both.Wait()
	_, _ = a.Close(), b.Close() // both directions have ended
}

func pass(to, from HalfConn, used func()) error {
	buffer := make([]byte, bufferSize)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if used != nil {
				used()
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return to.CloseWrite()
		case err != nil:
			return err
		}
	}
}
