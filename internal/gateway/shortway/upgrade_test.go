package shortway

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"codehub/internal/testing/harness"
)

func noHints(int, http.Header) error { return nil }

func upgradeRequest(ctx context.Context, t *testing.T) *http.Request {
	t.Helper()
	r := request(ctx, t, http.MethodGet)
	r.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}
	return r
}

// The connection is the caller's, with what came after the header.
func TestUpgradeSwitches(t *testing.T) {
	t.Parallel()
	for _, early := range []string{"", "early"} {
		s := newServer(t, func(_ int, c net.Conn, in *bufio.Reader) {
			if _, err := http.ReadRequest(in); err != nil {
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"+early)
			_, _ = io.Copy(c, in)
		})
		ctx, cancel := context.WithCancel(t.Context())
		hints := 0
		res, err := s.Send(upgradeRequest(ctx, t), func(int, http.Header) error { hints++; return nil })
		if err != nil {
			t.Fatal(err)
		}
		cancel() // has no effect any more
		conn, ok := res.Body.(*replayedConn)
		if !ok || res.StatusCode != http.StatusSwitchingProtocols || hints != 1 {
			t.Fatalf("%s, body %T, %d hints", res.Status, res.Body, hints)
		}
		if _, err := io.WriteString(conn, "hello"); err != nil {
			t.Fatal(err)
		}
		if err := conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(conn); err != nil || string(got) != early+"hello" {
			t.Errorf("received %q: %v", got, err)
		}
		conn.Close()
	}
}

// A response without a switch is complete, and its connection is closed with its body.
func TestUpgradeIsRefused(t *testing.T) {
	t.Parallel()
	s := newServer(t, answers("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"))
	for n := range int64(2) {
		res, err := s.Send(upgradeRequest(t.Context(), t), noHints)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(res.Body); err != nil || string(got) != "no" || res.StatusCode != http.StatusForbidden {
			t.Errorf("%s, %q: %v", res.Status, got, err)
		}
		res.Body.Close()
		if s.dials.Load() != n+1 {
			t.Errorf("%d connections after %d requests", s.dials.Load(), n+1)
		}
	}
}

func TestUpgradeFails(t *testing.T) {
	t.Parallel()
	large := newServer(t, answers("HTTP/1.1 101 Switching Protocols\r\nX: "+strings.Repeat("x", 8<<10)+"\r\n\r\n"))
	if _, err := large.Send(upgradeRequest(t.Context(), t), noHints); !errors.Is(err, errHeaderTooLarge) {
		t.Errorf("a large header: %v", err)
	}
	closes := newServer(t, func(_ int, _ net.Conn, in *bufio.Reader) { _, _ = http.ReadRequest(in) })
	if _, err := closes.Send(upgradeRequest(t.Context(), t), noHints); err == nil || closes.dials.Load() != 1 {
		t.Errorf("a closed connection: %v after %d attempts", err, closes.dials.Load())
	}
	asked := make(chan struct{})
	silent := newServer(t, func(_ int, _ net.Conn, in *bufio.Reader) {
		_, _ = http.ReadRequest(in)
		close(asked)
		_, _ = in.ReadByte() // until the pool closes the connection
	})
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := silent.Send(upgradeRequest(ctx, t), noHints)
		failed <- err
	}()
	<-asked
	cancel()
	harness.Eventually(t, "the request ends with its context", func() bool { return len(failed) == 1 })
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("a request that was abandoned: %v", err)
	}
}
