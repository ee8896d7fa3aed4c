package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	echoSockets     = 32 // open for the round trips
	mostIdleSockets = 10_000
)

// idleSockets returns how many WebSockets are open for the figures of idle ones: a proxy
// needs two file descriptors for each, and codehub keeps a quarter of its own for SSH.
func idleSockets(descriptors uint64) int {
	const reserved = 1000
	return int(min(mostIdleSockets, (max(descriptors, reserved+3)-reserved)*3/8))
}

// webSocket measures round trips of short messages on WebSockets, one at a time, on several
// connections in turn.
func (b *bench) webSocket(ctx context.Context) error {
	l, err := b.lineup(ctx, "websocket", nginx, caddy, configurable)
	if err != nil {
		return err
	}
	defer l.close()
	all := l.all
	type latency struct{ p50, p99 time.Duration }
	seen := make([][]latency, len(all))
	err = inTurns(b.n, len(all), func(i int) error {
		took, err := all[i].roundTrips(ctx, 3*time.Second)
		if err != nil {
			return fmt.Errorf("%s: %w", all[i].name, err)
		}
		seen[i] = append(seen[i], latency{percentile(took, 50), percentile(took, 99)})
		return nil
	})
	if err != nil {
		return err
	}
	us := func(i int, of func(latency) time.Duration) float64 {
		return medianBy(seen[i], func(l latency) float64 { return float64(of(l)) / 1e3 })
	}
	p50 := func(i int) float64 { return us(i, func(l latency) time.Duration { return l.p50 }) }
	p99 := func(i int) float64 { return us(i, func(l latency) time.Duration { return l.p99 }) }
	var parts []string
	for i := 1; i < len(all); i++ {
		parts = append(parts, fmt.Sprintf("%s %.0f µs, p99 %.0f µs (codehub: %.2f times, p99 %.2f times)", all[i].name, p50(i), p99(i), p50(0)/p50(i), p99(0)/p99(i)))
	}
	fmt.Printf("websocket: echo of 32 bytes, %d connections in turn: codehub median %.0f µs, p99 %.0f µs; %s; at most 1.2 times nginx: %s\n",
		echoSockets, p50(0), p99(0), strings.Join(parts, "; "), verdict(p50(0) <= 1.2*p50(1)))
	return nil
}

// roundTrips sends messages for a while and returns the time of each until its echo.
func (p *proxied) roundTrips(ctx context.Context, during time.Duration) ([]time.Duration, error) {
	conns, err := p.openWebSockets(ctx, echoSockets, "127.0.0.1")
	defer closeAll(conns)
	if err != nil {
		return nil, err
	}
	var took []time.Duration
	for begun := time.Now(); time.Since(begun) < during; {
		for _, c := range conns {
			start := time.Now()
			if err := echoOnce(c); err != nil {
				return nil, err
			}
			took = append(took, time.Since(start))
		}
	}
	return took, ctx.Err()
}

// message is the payload of an echo. A WebSocket's client masks it, here by 0.
var message = []byte("a short message of 32 characters")

// echoOnce sends one text frame and reads the same frame back, unmasked.
func echoOnce(c net.Conn) error {
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	sent := append([]byte{0x81, 0x80 | byte(len(message)), 0, 0, 0, 0}, message...)
	if _, err := c.Write(sent); err != nil {
		return err
	}
	got := make([]byte, 2+len(message))
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if !bytes.Equal(got, append([]byte{0x81, byte(len(message))}, message...)) {
		return fmt.Errorf("the echo is %q", got)
	}
	return nil
}

// openWebSockets opens n WebSockets to the test server from an address of this machine. It
// returns those that it opened with an error, too.
func (p *proxied) openWebSockets(ctx context.Context, n int, from string) ([]*net.TCPConn, error) {
	const dialers = 64
	conns := make([]*net.TCPConn, n)
	g, ctx := errgroup.WithContext(ctx)
	for d := range dialers {
		g.Go(func() error {
			for i := d; i < n; i += dialers {
				c, err := p.openWebSocket(ctx, from)
				if err != nil {
					return fmt.Errorf("WebSocket %d: %w", i, err)
				}
				conns[i] = c
			}
			return nil
		})
	}
	return conns, g.Wait()
}

func (p *proxied) openWebSocket(ctx context.Context, from string) (*net.TCPConn, error) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 30 * time.Second}
	c, err := dialer.DialContext(ctx, "tcp", p.address)
	if err != nil {
		return nil, err
	}
	conn := c.(*net.TCPConn)
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	_, err = conn.Write(p.head(http.MethodGet, "/ws", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
		"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "Origin: "+p.scheme+"://"+p.host))
	var answer []byte
	for buffer := make([]byte, 2048); err == nil && !bytes.HasSuffix(answer, []byte("\r\n\r\n")); {
		var n int
		n, err = conn.Read(buffer)
		answer = append(answer, buffer[:n]...)
	}
	if err == nil && !bytes.HasPrefix(answer, []byte("HTTP/1.1 101 ")) {
		err = fmt.Errorf("the answer is %.200q", answer)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	return conn, nil
}

// closeAll closes WebSockets with a close frame each, which the test server answers by
// closing the connection. A proxy that closed it first would have too few ports for the next
// thousands to the same container.
func closeAll(conns []*net.TCPConn) {
	for _, c := range conns {
		if c != nil {
			_, _ = c.Write([]byte{0x88, 0x82, 0, 0, 0, 0, 3, 232}) // 1000, masked by 0
		}
	}
	until := time.Now().Add(10 * time.Second)
	for _, c := range conns {
		if c != nil {
			_ = c.SetDeadline(until)
			_, _ = io.Copy(io.Discard, c)
		}
	}
	resetAll(conns)
}

// resetAll ends connections at once.
func resetAll(conns []*net.TCPConn) {
	for _, c := range conns {
		if c != nil {
			_ = c.SetLinger(0)
			_ = c.Close()
		}
	}
}
