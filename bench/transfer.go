package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// transferBuffer is the size of one read or write of the client.
const transferBuffer = 256 << 10

// transfer measures one large download and one large upload through codehub and its rivals.
// The test server generates and discards the bytes.
func (b *bench) transfer(ctx context.Context) error {
	size, err := transferSize()
	if err != nil {
		return err
	}
	l, err := b.lineup(ctx, "transfer", nginx, caddy, configurable)
	if err != nil {
		return err
	}
	defer l.close()
	for _, direction := range []struct {
		name string
		run  func(*proxied, context.Context, int) error
	}{{"down", (*proxied).download}, {"up", (*proxied).upload}} {
		seen := make([][]time.Duration, len(l.all))
		err := inTurns(b.n, len(l.all), func(i int) error {
			begun := time.Now()
			if err := direction.run(l.all[i], ctx, size); err != nil {
				return fmt.Errorf("%s, %s: %w", l.all[i].name, direction.name, err)
			}
			seen[i] = append(seen[i], time.Since(begun))
			return nil
		})
		if err != nil {
			return err
		}
		rate := func(i int) float64 { return float64(size) / median(seen[i]).Seconds() / 1e9 }
		var parts []string
		for i := 1; i < len(l.all); i++ {
			parts = append(parts, fmt.Sprintf("%s %.2f GB/s (codehub: %.2f times)", l.all[i].name, rate(i), rate(0)/rate(i)))
		}
		fmt.Printf("transfer: %d MiB %s: codehub %.2f GB/s; %s; at least as fast as nginx: %s (aim: twice Caddy: %s)\n",
			size>>20, direction.name, rate(0), strings.Join(parts, "; "), verdict(rate(0) >= rate(1)), verdict(rate(0) >= 2*rate(2)))
	}
	return nil
}

// transferSize returns the bytes of one transfer.
func transferSize() (int, error) {
	mib, err := envInt("CODEHUB_BENCH_TRANSFER_MIB", 1024)
	return mib << 20, err
}

// download reads n bytes from the workspace on a connection of its own.
func (p *proxied) download(ctx context.Context, n int) error {
	return p.exchange(ctx, p.head(http.MethodGet, fmt.Sprintf("/bytes?n=%d", n), "Connection: close"), 0, int64(n))
}

// upload sends n bytes to the workspace on a connection of its own.
func (p *proxied) upload(ctx context.Context, n int) error {
	return p.exchange(ctx, p.head(http.MethodPut, "/bytes", "Connection: close", fmt.Sprintf("Content-Length: %d", n)), n, 0)
}

// exchange sends a request with a body of that many bytes. It returns an error unless the
// status is 200 and, if want is not 0, the response has that many bytes.
func (p *proxied) exchange(ctx context.Context, head []byte, body int, want int64) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", p.address)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := conn.Write(head); err != nil {
		return err
	}
	block := make([]byte, transferBuffer)
	for body > 0 {
		n, err := conn.Write(block[:min(body, len(block))])
		if err != nil {
			return err
		}
		body -= n
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{resp.Body}, block)
	if err == nil && (resp.StatusCode != http.StatusOK || want != 0 && n != want) {
		err = fmt.Errorf("%s with %d bytes", resp.Status, n)
	}
	return err
}
