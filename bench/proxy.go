package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// load is one load by wrk.
type load struct {
	connections, size int
}

// rate is what a load generator measured.
type rate struct {
	perSecond float64
	p99       time.Duration
}

// proxy measures requests to a workspace and messages on WebSockets through codehub, with the
// session of its owner on the workspace's own origin, and through nginx and Caddy in front of the
// same container, without authentication.
func (b *bench) proxy(ctx context.Context) error {
	all, stop, err := b.lineup(ctx)
	defer stop()
	if err != nil {
		return err
	}
	for _, load := range []load{{32, 1 << 10}, {256, 1 << 10}, {32, 64 << 10}, {256, 64 << 10}} {
		what := fmt.Sprintf("proxy: %d connections, %d KiB", load.connections, load.size>>10)
		if err := b.compareRates(ctx, what, all, load); err != nil {
			return err
		}
	}
	return b.compareEchoes(ctx, all)
}

// compareRates measures all in turns, codehub, nginx and Caddy first, and prints the medians.
func (b *bench) compareRates(ctx context.Context, what string, all []*proxied, l load) error {
	seen := make([][]rate, len(all))
	err := inTurns(b.n, len(all), func(i int) error {
		r, err := all[i].wrk(ctx, l.connections, "/bytes?n="+strconv.Itoa(l.size))
		if err != nil {
			return fmt.Errorf("%s: %w", all[i].name, err)
		}
		seen[i] = append(seen[i], r)
		return nil
	})
	if err != nil {
		return err
	}
	perSecond := func(i int) float64 {
		return medianBy(seen[i], func(r rate) float64 { return r.perSecond })
	}
	p99 := func(i int) float64 {
		return medianBy(seen[i], func(r rate) float64 { return r.p99.Seconds() })
	}
	var parts []string
	for i := 1; i < len(all); i++ {
		parts = append(parts, fmt.Sprintf("%s %.0f/s, p99 %.1f ms (codehub: %.2f times the requests, %.2f times the p99)",
			all[i].name, perSecond(i), p99(i)*1e3, perSecond(0)/perSecond(i), p99(0)/p99(i)))
	}
	ok := perSecond(0) >= 0.8*perSecond(1) && perSecond(0) >= 2*perSecond(2) && p99(0) <= 1.25*p99(1)
	fmt.Printf("%s: codehub %.0f/s, p99 %.1f ms; %s; at least 0.8 times nginx and twice Caddy, p99 at most 1.25 times nginx: %s\n",
		what, perSecond(0), p99(0)*1e3, strings.Join(parts, "; "), verdict(ok))
	return nil
}

var (
	wrkRate   = regexp.MustCompile(`Requests/sec:\s+([0-9.]+)`)
	wrkP99    = regexp.MustCompile(`99%\s+([0-9.]+[a-z]+)`)
	wrkFailed = regexp.MustCompile(`(?m)^\s*(Non-2xx or 3xx responses:.*|Socket errors:.*)$`)
)

// wrk runs wrk for a few seconds.
func (p *proxied) wrk(ctx context.Context, connections int, path string) (rate, error) {
	args := []string{"--threads", "2", "--connections", strconv.Itoa(connections), "--duration", "4s", "--timeout", "10s", "--latency", "--header", "Host: " + p.host}
	for _, h := range p.headers {
		args = append(args, "--header", h)
	}
	args = append(args, p.url(path))
	out, err := exec.CommandContext(ctx, "wrk", args...).CombinedOutput()
	if err != nil {
		return rate{}, fmt.Errorf("wrk: %w: %s", err, out)
	}
	if failed := wrkFailed.Find(out); failed != nil {
		return rate{}, fmt.Errorf("wrk: %s", failed)
	}
	perSecond, p99 := wrkRate.FindSubmatch(out), wrkP99.FindSubmatch(out)
	if perSecond == nil || p99 == nil {
		return rate{}, fmt.Errorf("wrk printed %s", out)
	}
	var r rate
	if r.perSecond, err = strconv.ParseFloat(string(perSecond[1]), 64); err != nil {
		return r, err
	}
	r.p99, err = time.ParseDuration(string(p99[1]))
	return r, err
}
