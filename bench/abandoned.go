package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// holdings is what a server process holds.
type holdings struct {
	goroutines, descriptors int
	memory                  int64 // bytes
}

// abandonedWebSockets opens many WebSockets, cuts their clients off the network, and measures
// until the server has released what it held for them. The nftables rules that drop the
// packets need root.
func (b *bench) abandonedWebSockets(ctx context.Context) error {
	const limit, giveUp = 2 * time.Minute, 5 * time.Minute
	l, err := b.lineup(ctx, "abandoned")
	if err != nil {
		return err
	}
	defer l.close()
	p := l.all[0]
	if _, err := p.fresh(ctx); err != nil {
		return err
	}
	start, err := p.holdings(ctx)
	if err != nil {
		return err
	}
	from := fmt.Sprintf("127.77.%d.%d", os.Getpid()>>8&0xff, os.Getpid()&0xff)
	conns, err := p.openWebSockets(ctx, b.sockets, from)
	defer resetAll(conns)
	if err != nil {
		return err
	}
	if err := pause(ctx, settle); err != nil {
		return err
	}
	open, err := p.holdings(ctx)
	if err != nil {
		return err
	}
	reconnect, err := cutOff(ctx, from)
	if err != nil {
		return err
	}
	defer reconnect()
	cut := time.Now()
	resetAll(conns) // the server does not see it

	// Something else may have come up meanwhile. Memory that is freed stays with the process
	// for a while, so a tenth of the growth may be left.
	const slack = 20
	var back [3]time.Duration
	var now holdings
	for time.Since(cut) < giveUp && (back[0] == 0 || back[1] == 0 || back[2] == 0) {
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
		if now, err = p.holdings(ctx); err != nil {
			return err
		}
		for i, is := range []bool{
			now.goroutines <= start.goroutines+slack, now.descriptors <= start.descriptors+slack,
			now.memory <= start.memory+(open.memory-start.memory)/10,
		} {
			if is && back[i] == 0 {
				back[i] = time.Since(cut)
			}
		}
	}
	ok := true
	var parts []string
	for i, what := range []struct {
		name                  string
		start, open, last, of float64
	}{
		{"goroutines", float64(start.goroutines), float64(open.goroutines), float64(now.goroutines), 1},
		{"descriptors", float64(start.descriptors), float64(open.descriptors), float64(now.descriptors), 1},
		{"MB of memory", float64(start.memory), float64(open.memory), float64(now.memory), 1e6},
	} {
		came := fmt.Sprintf("back after %.0f s", back[i].Seconds())
		if back[i] == 0 {
			came = fmt.Sprintf("still %.0f after %.0f s", what.last/what.of, giveUp.Seconds())
		}
		ok = ok && back[i] != 0 && back[i] <= limit
		parts = append(parts, fmt.Sprintf("%s from %.0f to %.0f, %s", what.name, what.start/what.of, what.open/what.of, came))
	}
	fmt.Printf("abandoned: %d WebSockets left without closing: %s; all within %.0f s: %s\n", b.sockets, strings.Join(parts, "; "), limit.Seconds(), verdict(ok))
	return nil
}

// cutOff drops all packets from and to an address of this machine until the returned function
// is called.
func cutOff(ctx context.Context, address string) (reconnect func(), err error) {
	table := fmt.Sprintf("codehub-bench-%d", os.Getpid())
	rules := fmt.Sprintf("table inet %[1]s {\nchain input {\ntype filter hook input priority 0;\nip saddr %[2]s drop\nip daddr %[2]s drop\n}\n}\n", table, address)
	if out, err := exec.CommandContext(ctx, "nft", rules).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("drop packets, which needs root: %w: %s", err, out)
	}
	return func() { _ = exec.Command("nft", "delete", "table", "inet", table).Run() }, nil
}

// holdings reads what codehub holds from its metrics, and its memory.
func (p *proxied) holdings(ctx context.Context) (holdings, error) {
	var h holdings
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url("/metrics"), nil)
	if err != nil {
		return h, err
	}
	resp, err := bareClient.RoundTrip(req)
	if err != nil {
		return h, err
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		to := map[string]*int{"go_goroutines": &h.goroutines, "process_open_fds": &h.descriptors}[name]
		if to == nil {
			continue
		}
		if *to, err = strconv.Atoi(value); err != nil {
			return h, fmt.Errorf("metric %s: %w", name, err)
		}
	}
	if h.goroutines == 0 || h.descriptors == 0 {
		return h, fmt.Errorf("the metrics lack goroutines or descriptors: %s", resp.Status)
	}
	h.memory, err = p.memory()
	return h, err
}
