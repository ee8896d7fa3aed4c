package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

// settle is the time between opening connections and measuring their memory.
const settle = 10 * time.Second

// idleWebSockets measures the memory of each proxy for idle WebSockets: of all its
// processes, before and after the WebSockets are opened. Every measurement begins with a new
// process, because an earlier one leaves memory behind that the next would use.
func (b *bench) idleWebSockets(ctx context.Context) error {
	l, err := b.lineup(ctx, "idlesockets", nginx, caddy, configurable)
	if err != nil {
		return err
	}
	defer l.close()
	all := l.all
	seen := make([][]float64, len(all))
	err = inTurns(min(b.n, 3), len(all), func(i int) error {
		each, err := all[i].memoryOfWebSocket(ctx, b.sockets)
		if err != nil {
			return fmt.Errorf("%s: %w", all[i].name, err)
		}
		seen[i] = append(seen[i], each)
		return nil
	})
	if err != nil {
		return err
	}
	kib := func(i int) float64 { return medianBy(seen[i], func(v float64) float64 { return v / 1024 }) }
	var parts []string
	for i := 1; i < len(all); i++ {
		parts = append(parts, fmt.Sprintf("%s %.1f KiB (codehub: %.2f times)", all[i].name, kib(i), kib(0)/kib(i)))
	}
	fmt.Printf("idlesockets: memory for each of %d idle WebSockets: codehub %.1f KiB; %s; at most 12 KiB: %s\n",
		b.sockets, kib(0), strings.Join(parts, "; "), verdict(kib(0) <= 12))
	return nil
}

// memoryOfWebSocket returns the memory in bytes for each of n idle WebSockets.
func (p *proxied) memoryOfWebSocket(ctx context.Context, n int) (float64, error) {
	before, err := p.fresh(ctx)
	if err != nil {
		return 0, err
	}
	conns, err := p.openWebSockets(ctx, n, "127.0.0.1")
	defer closeAll(conns)
	if err != nil {
		return 0, err
	}
	if err := pause(ctx, settle); err != nil {
		return 0, err
	}
	after, err := p.memory()
	if err != nil {
		return 0, err
	}
	for _, c := range conns { // all are open
		if err := echoOnce(c); err != nil {
			return 0, err
		}
	}
	return float64(after-before) / float64(n), nil
}

// fresh restarts the proxy, lets it relay some WebSockets, which initializes what is created
// on first use, and returns its memory in bytes.
func (p *proxied) fresh(ctx context.Context) (int64, error) {
	if err := p.restart(ctx); err != nil {
		return 0, err
	}
	if err := p.await(ctx); err != nil {
		return 0, err
	}
	conns, err := p.openWebSockets(ctx, 200, "127.0.0.1")
	for _, c := range conns {
		if err == nil {
			err = echoOnce(c)
		}
	}
	closeAll(conns)
	if err != nil {
		return 0, err
	}
	if err := pause(ctx, settle); err != nil {
		return 0, err
	}
	return p.memory()
}

// memory returns the proportional set size of the proxy's processes in bytes: memory that
// several processes share counts once.
func (p *proxied) memory() (int64, error) {
	pids, err := p.pids()
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return 0, err
		}
		n, err := statusField(string(b), "Pss:")
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
