package client

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/coder/websocket"

	"codehub/api"
)

// webSocket opens a WebSocket with the client's credential. The error is an *Error if the
// server gave a reason.
func (c *Client) webSocket(ctx context.Context, path string, protocols ...string) (*websocket.Conn, error) {
	header := http.Header{"User-Agent": {c.agent}}
	if c.token != "" {
		header.Set(api.TokenHeader, c.token)
	}
	h := *c.http
	h.Transport = frameTransport{h.Transport}
	ws, res, err := websocket.Dial(ctx, c.base+path, &websocket.DialOptions{
		HTTPClient: &h, HTTPHeader: header, Subprotocols: protocols, CompressionMode: websocket.CompressionDisabled,
	})
	switch {
	case err == nil:
		return ws, nil
	case res != nil && res.StatusCode >= 400:
		return nil, readError(res)
	case res != nil && res.StatusCode != http.StatusSwitchingProtocols:
		return nil, fmt.Errorf("the server did not open a WebSocket (%s); does a reverse proxy in front of it relay them?", res.Status)
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return nil, c.unreachable(err)
}

// frameTransport returns connections that send whole frames.
type frameTransport struct{ under http.RoundTripper }

func (t frameTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	under := t.under
	if under == nil {
		under = http.DefaultTransport
	}
	res, err := under.RoundTrip(r)
	if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		return res, err
	}
	if conn, ok := res.Body.(io.ReadWriteCloser); ok {
		res.Body = &frameConn{ReadWriteCloser: conn}
	}
	return res, nil
}

// frameConn sends a client's WebSocket frames with one write each. The library writes
// them in pieces of 4 KiB, the size of the buffer in which it masks them, and each piece
// would cost system calls at both ends. Writes are not concurrent.
type frameConn struct {
	io.ReadWriteCloser
	pending []byte // bytes of a frame that is incomplete
	head    []byte // the part of a frame's header that has been seen
	left    uint64 // bytes of the payload that follow
}

// maxPending is the size at which a frame is sent in parts.
const maxPending = 64 << 10

func (c *frameConn) Write(p []byte) (int, error) {
	ends := c.advance(p)
	if ends && len(c.pending) == 0 {
		return c.ReadWriteCloser.Write(p)
	}
	c.pending = append(c.pending, p...)
	if !ends && len(c.pending) < maxPending {
		return len(p), nil
	}
	_, err := c.ReadWriteCloser.Write(c.pending)
	c.pending = c.pending[:0]
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// advance follows the frames through p, and reports whether p ends with the end of one.
func (c *frameConn) advance(p []byte) bool {
	for len(p) > 0 {
		if c.left > 0 {
			n := min(c.left, uint64(len(p)))
			c.left, p = c.left-n, p[n:]
			continue
		}
		c.head, p = append(c.head, p[0]), p[1:]
		if size, complete := payload(c.head); complete {
			c.head, c.left = c.head[:0], size
		}
	}
	return c.left == 0 && len(c.head) == 0
}

// payload returns the size of the payload that follows a frame's header (RFC 6455,
// section 5.2), once the header is complete.
func payload(head []byte) (size uint64, complete bool) {
	if len(head) < 2 {
		return 0, false
	}
	size, extended := uint64(head[1]&0x7f), 0
	switch size {
	case 126:
		extended = 2
	case 127:
		extended = 8
	}
	mask := 0
	if head[1]&0x80 != 0 {
		mask = 4
	}
	if len(head) < 2+extended+mask {
		return 0, false
	}
	if extended > 0 {
		size = 0
		for _, b := range head[2 : 2+extended] {
			size = size<<8 | uint64(b)
		}
	}
	return size, true
}
