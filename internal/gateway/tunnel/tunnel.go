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
	"time"

	"github.com/coder/websocket"

	"codehub/internal/base/flow"
)

// Protocol is the subprotocol of the WebSocket.
const Protocol = "codehub-connection.v1"

const (
	end = "end"
	// maxMessage is the largest message that is received, and sentMessage that is sent.
	maxMessage  = 1 << 20
	sentMessage = 32 << 10
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
	for part := range slices.Chunk(p, sentMessage) {
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

// Relay joins two connections, and ends them when a Conn has lost its other end. seen is called
// with the bytes of each read from a; nil: not needed.
func Relay(a, b flow.Conn, seen func(n int)) {
	for _, side := range []flow.Conn{a, b} {
		if c, ok := side.(*Conn); ok {
			defer context.AfterFunc(c.ctx, func() { _, _ = a.Close(), b.Close() })()
		}
	}
	flow.Join(a, b, seen)
}
