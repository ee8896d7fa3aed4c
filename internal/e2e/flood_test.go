package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"codehub/internal/e2e/proc"
	"codehub/internal/harness"
)

// loginFrom logs in from an address of this machine and returns the response without
// its body.
func (s *server) loginFrom(ctx context.Context, c *http.Client, name, password string) (*http.Response, error) {
	body := fmt.Sprintf(`{"username": %q, "password": %q}`, name, password)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+strings.TrimPrefix(s.URL, "http://")+"/api/v1/login", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp, err
}

// clientAt is an HTTP client whose connections come from an address of this machine.
func clientAt(t *testing.T, address string) *http.Client {
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			_, port, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			return d.DialContext(ctx, "tcp4", net.JoinHostPort("127.0.0.1", port))
		},
		MaxIdleConnsPerHost: 300,
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// While one address sends wrong passwords, as fast as 200 connections can, a right
// password from another address is the next to be checked, and so is a changed one.
// Logins that exceed the address's queue are refused with Retry-After.
func TestLoginFloodDelaysOnlyItsSource(t *testing.T) {
	t.Parallel()
	s := startQuick(t)
	ctx, stop := context.WithCancel(t.Context())
	flood := clientAt(t, "127.0.0.2")
	var checked, refused atomic.Int64
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				resp, err := s.loginFrom(ctx, flood, fmt.Sprintf("guess-%d-%d", i, n), "not the password")
				switch {
				case err != nil:
				case resp.StatusCode == http.StatusUnauthorized:
					checked.Add(1)
				case resp.StatusCode == http.StatusTooManyRequests && resp.Header.Get("Retry-After") != "":
					refused.Add(1)
				default:
					t.Errorf("a guess was answered with %d, Retry-After %q", resp.StatusCode, resp.Header.Get("Retry-After"))
					return
				}
			}
		})
	}
	defer wg.Wait()
	defer stop()
	harness.Eventually(t, "the flood fills its queue", func() bool { return checked.Load() > 10 && refused.Load() > 10 })

	honest := clientAt(t, "127.0.0.1")
	// Guesses that were checked before may be answered meanwhile: a refusal is delayed.
	const most = 24
	for range 5 {
		before, began := checked.Load(), time.Now()
		resp, err := s.loginFrom(t.Context(), honest, "admin", proc.AdminPassword)
		if err != nil {
			t.Fatal(err)
		}
		during := checked.Load() - before
		t.Logf("a right password took %v, during which %d guesses were answered", time.Since(began), during)
		if resp.StatusCode != http.StatusOK || during > most {
			t.Errorf("a right password: %d, after %d further guesses", resp.StatusCode, during)
		}
	}
	before := checked.Load()
	resp, body := s.ask("POST", "/api/v1/users/me/password", fmt.Sprintf(`{"current": %q, "new": "another horse battery"}`, proc.AdminPassword),
		"Codehub-Session-Token", s.token, "Content-Type", "application/json")
	if during := checked.Load() - before; resp.StatusCode != http.StatusNoContent || during > 2*most {
		t.Errorf("a change of the password: %d %s, after %d further guesses", resp.StatusCode, body, during)
	}
}
