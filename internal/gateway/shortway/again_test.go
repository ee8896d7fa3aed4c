package shortway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

const head = "GET /a HTTP/1.1\r\nHost: ide\r\n\r\n"

func held(net.Conn) bool { return true }

// whole sends head and returns the body of a response that has come as a whole.
func (s *backend) whole(t *testing.T) (string, error) {
	t.Helper()
	y, err := s.sendHead([]byte(head), held)
	if err != nil {
		return "", err
	}
	h, err := y.head()
	if err != nil {
		y.abandon()
		return "", err
	}
	body := bytes.Clone(y.skip(h, 5))
	ready := len(body)
	for b := make([]byte, 5); len(body) < 5; {
		n, err := y.read(b[:5-len(body)])
		if err != nil {
			t.Fatal(err)
		}
		body = append(body, b[:n]...)
	}
	y.end(ready, "")
	return string(body), nil
}

func TestSendHead(t *testing.T) {
	t.Parallel()
	s := newServer(t, answers(hello))
	if _, err := s.whole(t); !errors.Is(err, errNoConnection) {
		t.Errorf("without a connection: %v", err)
	}
	s.get(t)
	for range 3 {
		if got, err := s.whole(t); err != nil || got != "hello" {
			t.Errorf("%q, %v", got, err)
		}
	}
	if _, err := s.sendHead([]byte(head), func(net.Conn) bool { return false }); !errors.Is(err, errNoConnection) {
		t.Errorf("not held: %v", err)
	}
	if n := s.dials.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// oneByte is a connection whose bytes arrive one by one.
type oneByte struct{ net.Conn }

func (c oneByte) Read(p []byte) (int, error) { return c.Conn.Read(p[:min(1, len(p))]) }

// A response may arrive in any parts.
func TestReplyInParts(t *testing.T) {
	t.Parallel()
	s := newServer(t, answers(hello))
	dial := s.Dial
	s.Dial = func(ctx context.Context) (net.Conn, error) {
		c, err := dial(ctx)
		return oneByte{c}, err
	}
	s.get(t)
	for range 3 {
		if got, err := s.whole(t); err != nil || got != "hello" {
			t.Errorf("%q, %v", got, err)
		}
	}
	if n := s.dials.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// A connection that was closed meanwhile is replaced by another that is open.
func TestSendHeadRepeats(t *testing.T) {
	t.Parallel()
	var both sync.WaitGroup
	both.Add(2)
	s := newServer(t, func(n int, c net.Conn, in *bufio.Reader) {
		for i := 0; ; i++ {
			if _, err := http.ReadRequest(in); err != nil || n == 2 && i == 1 {
				return // the second connection ends without a response to its second request
			}
			if i == 0 {
				both.Done()
				both.Wait()
			}
			_, _ = io.WriteString(c, hello)
		}
	})
	var wait sync.WaitGroup
	for range 2 {
		wait.Go(func() { s.get(t) })
	}
	wait.Wait()
	for range 3 {
		if got, err := s.whole(t); err != nil || got != "hello" {
			t.Errorf("%q, %v", got, err)
		}
	}
}

// What comes after the response is no response to the next request, and the time that the
// other side keeps the connection is heeded.
func TestSendHeadEndsConnection(t *testing.T) {
	t.Parallel()
	s := newServer(t, answers(hello+"more"))
	s.put(t)
	if got, err := s.whole(t); err != nil || got != "hello" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := s.whole(t); !errors.Is(err, errNoConnection) {
		t.Errorf("after unasked bytes: %v", err)
	}
	s = newServer(t, answers(hello))
	s.put(t)
	y, err := s.sendHead([]byte(head), held)
	if err != nil {
		t.Fatal(err)
	}
	h, err := y.head()
	if err != nil {
		t.Fatal(err)
	}
	y.end(len(y.skip(h, 5)), "timeout=1")
	if _, err := s.whole(t); !errors.Is(err, errNoConnection) {
		t.Errorf("after its time: %v", err)
	}
}

// put puts a new connection into the pool.
func (s *backend) put(t *testing.T) {
	t.Helper()
	c, err := s.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	opened := newConn(c)
	opened.in, opened.keep = bufio.NewReader(c), time.Minute
	s.Pool.put(opened)
}

// A head that cannot be found is left to Response, which reads it as Send does.
func TestReplyResponse(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"line feeds": strings.ReplaceAll(hello, "\r\n", "\n"),
		"large":      strings.Replace(hello, "\r\n\r\n", "\r\nX: "+strings.Repeat("x", 5000)+"\r\n\r\n", 1),
	} {
		s := newServer(t, answers(text))
		s.MaxHeader = 8 << 10
		s.put(t)
		y, err := s.sendHead([]byte(head), held)
		if err != nil {
			t.Fatal(err)
		}
		if h, err := y.head(); err != nil || h != nil {
			t.Errorf("%s: %q, %v", name, h, err)
		}
		res, err := y.response(request(t.Context(), t, http.MethodGet), none)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || string(b) != "hello" {
			t.Errorf("%s: %q, %v", name, b, err)
		}
		if got := s.get(t); got != "hello" || s.dials.Load() != 1 {
			t.Errorf("%s: %q by %d connections", name, got, s.dials.Load())
		}
	}
}
