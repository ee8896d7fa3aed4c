package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/coder/websocket"
)

// compareEchoes measures round trips of short messages on WebSockets, one at a time, on several
// connections in turn.
func (b *bench) compareEchoes(ctx context.Context, all []*proxied) error {
	seen := make([][]time.Duration, len(all))
	err := inTurns(b.n, len(all), func(i int) error {
		took, err := all[i].roundTrips(ctx, 3*time.Second)
		if err != nil {
			return fmt.Errorf("%s: %w", all[i].name, err)
		}
		seen[i] = append(seen[i], took...)
		return nil
	})
	if err != nil {
		return err
	}
	us := func(i, p int) float64 { return float64(percentile(seen[i], p)) / 1e3 }
	var parts []string
	for i := 1; i < len(all); i++ {
		parts = append(parts, fmt.Sprintf("%s %.0f µs, p99 %.0f µs (codehub: %.2f times, p99 %.2f times)", all[i].name, us(i, 50), us(i, 99), us(0, 50)/us(i, 50), us(0, 99)/us(i, 99)))
	}
	fmt.Printf("proxy: echo on a WebSocket: codehub median %.0f µs, p99 %.0f µs; %s; at most 1.2 times nginx: %s\n",
		us(0, 50), us(0, 99), strings.Join(parts, "; "), verdict(us(0, 50) <= 1.2*us(1, 50)))
	return nil
}

// roundTrips sends messages for a while and returns the time of each until its echo.
func (p *proxied) roundTrips(ctx context.Context, during time.Duration) (took []time.Duration, err error) {
	header := http.Header{"Origin": {"http://" + p.host}}
	for _, h := range p.headers {
		name, value, _ := strings.Cut(h, ": ")
		header.Set(name, value)
	}
	var conns [32]*websocket.Conn
	for i := range conns {
		if conns[i], _, err = websocket.Dial(ctx, p.url("/ws"), &websocket.DialOptions{Host: p.host, HTTPHeader: header}); err != nil {
			return nil, err
		}
		defer func() { _ = conns[i].CloseNow() }()
	}
	for begun := time.Now(); time.Since(begun) < during; {
		for _, c := range conns {
			start := time.Now()
			if err := c.Write(ctx, websocket.MessageText, []byte("a short message of 32 characters")); err != nil {
				return nil, err
			}
			if _, _, err := c.Read(ctx); err != nil {
				return nil, err
			}
			took = append(took, time.Since(start))
		}
	}
	return took, nil
}
