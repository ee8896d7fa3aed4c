package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"codehub/api"
	"codehub/client"
	"codehub/internal/base/flow"
	"codehub/internal/cli/terminal"
)

func TestPortMapping(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]portMapping{"3000": {local: 3000, remote: 3000}, "8080:3000": {local: 8080, remote: 3000}, "1:65535": {local: 1, remote: 65535}} {
		var m portMapping
		if err := m.UnmarshalText([]byte(text)); err != nil || m != want {
			t.Errorf("%s: %v, %v", text, m, err)
		}
	}
	for _, text := range []string{"", "0", "65536", "3000:", ":3000", "3000:0", "-1", "3000:8080:1", "x", "3000:127.0.0.1"} {
		var m portMapping
		if err := m.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is accepted as %v", text, m)
		}
	}
}

// output is written by several goroutines.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

// A connection waits for a workspace that restarts, carries both directions, and fails
// with a message if nothing listens.
func TestForwarder(t *testing.T) {
	t.Parallel()
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	var mu sync.Mutex
	attempts, out := 0, &output{}
	f := &forwarder{out: out, connect: func(_ context.Context, port int) (flow.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		attempts++
		switch {
		case port == 4000:
			return nil, &client.Error{Code: "unavailable", Message: "Nothing listens on port 4000 of the workspace.", Details: map[string]any{"port": 4000.0}}
		case attempts == 1:
			return nil, &client.Error{Code: "not_running", Message: "The workspace is not running."}
		}
		c, err := net.Dial("tcp", echo.Addr().String())
		if err != nil {
			return nil, err
		}
		return c.(*net.TCPConn), nil
	}}
	ctx, cancel := context.WithCancel(t.Context())
	var served sync.WaitGroup
	defer served.Wait()
	defer cancel()
	listen := func(port int) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		context.AfterFunc(ctx, func() { l.Close() })
		served.Go(func() { f.serve(ctx, l, port) })
		return l.Addr().String()
	}
	send := func(address string) (string, error) {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "hello"); err != nil {
			return "", err
		}
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			return "", err
		}
		b, err := io.ReadAll(c)
		return string(b), err
	}
	if got, err := send(listen(3000)); err != nil || got != "hello" {
		t.Errorf("%q, %v", got, err)
	}
	if got, _ := send(listen(4000)); got != "" {
		t.Errorf("%q of a port on which nothing listens", got)
	}
	out.mu.Lock()
	defer out.mu.Unlock()
	for _, want := range []string{"The workspace is not running. Waiting for it.", "port 4000: Nothing listens on port 4000 of the workspace."} {
		if !strings.Contains(out.b.String(), want) {
			t.Errorf("the output lacks %q: %s", want, out.b.String())
		}
	}
	if mayRestart(errors.New("x")) || mayRestart(&client.Error{Code: "forbidden"}) {
		t.Error("it waits after an error that does not pass")
	}
}

// What a workspace's processes and commands are called does not steer the terminal.
func TestHostileNamesArePlain(t *testing.T) {
	t.Parallel()
	const evil = "\x1b[2J\x1b]0;title\x07\u009b31m\u202e\xff\r\nname"
	now := time.Now()
	ports := portTable([]api.Port{{Port: 3000, Listening: true, Process: evil, Since: &now, VisibleTo: evil, URL: evil}}, now)
	usage := terminal.Table(usageRows(&api.Usage{Holders: []api.Holder{{What: evil, Since: now}}}))
	for _, text := range []string{ports, usage} {
		if strings.ContainsAny(text, "\x1b\x07\u009b\u202e\r") || !utf8.ValidString(text) || !strings.Contains(text, "name") {
			t.Errorf("it prints %q", text)
		}
	}
	if n := strings.Count(ports, "\n"); n != 2 {
		t.Errorf("%d lines of ports", n)
	}
}
