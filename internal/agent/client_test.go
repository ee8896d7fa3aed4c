package agent

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// endless is an agent in the hands of the workspace's user: its answers never end.
func endless(t *testing.T, begin string) *Client {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, err = io.WriteString(conn, begin)
		for junk := strings.Repeat("x", 64<<10); err == nil; {
			_, err = io.WriteString(conn, junk)
		}
	}))
	t.Cleanup(s.Close)
	return &Client{Addr: s.Listener.Addr().(*net.TCPAddr).String(), Secret: "secret"}
}

func TestEndlessAnswers(t *testing.T) {
	t.Parallel()
	header := endless(t, "HTTP/1.1 200 OK\r\nA: ")
	body := endless(t, "HTTP/1.1 200 OK\r\n\r\n{\"codehub\":\"")
	watched := endless(t, "HTTP/1.1 101 Switching Protocols\r\n\r\n{\"ports\":[{\"process\":\"")
	if _, err := header.Hello(t.Context()); !errors.Is(err, ErrUnreachable) {
		t.Error(err)
	}
	if _, err := body.Hello(t.Context()); !errors.Is(err, ErrUnreachable) {
		t.Error(err)
	}
	if err := watched.WatchPorts(t.Context(), func([]Port) {}); !errors.Is(err, ErrUnreachable) {
		t.Error(err)
	}
}
