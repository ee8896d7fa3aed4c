package inside

import (
	"context"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
)

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// A probe tells open addresses from closed ones, but only to those who have its token.
func TestProbe(t *testing.T) {
	t.Parallel()
	open, at, gone := listen(t), listen(t), listen(t)
	gone.Close()
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- serveProbe(ctx, at, "secret") }()
	ask := func(token string) ([]string, error) {
		return Ask(t.Context(), http.DefaultClient, at.Addr().String(), token, []string{gone.Addr().String(), open.Addr().String()})
	}
	if got, err := ask("secret"); err != nil || !slices.Equal(got, []string{open.Addr().String()}) {
		t.Errorf("open: %v, %v; want %v", got, err, open.Addr())
	}
	if got, err := ask("other"); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("another token: %v, %v", got, err)
	}
	cancel()
	if err := <-over; err != nil {
		t.Error(err)
	}
}

func TestProbeNeedsToken(t *testing.T) {
	if err := runProbe(t.Context(), "127.0.0.1:0"); err == nil {
		t.Error("a probe without a token serves")
	}
}
