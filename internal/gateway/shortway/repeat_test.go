package shortway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"codehub/internal/testing/harness"
)

// repeating is a server whose handler lets f answer what follows. The handler's response is
// "handler" and the target.
func repeating(t *testing.T, f Repeated) (s *plainServer, handled *atomic.Int64) {
	t.Helper()
	handled = &atomic.Int64{}
	return newPlainServer(t, true, func(w http.ResponseWriter, r *http.Request) {
		handled.Add(1)
		Repeat(w, f)
		_, _ = fmt.Fprint(w, "handler ", r.Method, " ", r.RequestURI, " ", r.Header["A"])
	}), handled
}

// say is a Repeated that answers with "repeated" and the target.
func say(target []byte, a *Answer) bool {
	body := "repeated " + string(target)
	return a.send(fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body), len(body)) == nil
}

// bodyOf returns the body of the next response.
func bodyOf(t *testing.T, in *bufio.Reader, method string) string {
	t.Helper()
	res, err := http.ReadResponse(in, &http.Request{Method: method})
	if err != nil {
		return "none"
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return "broken"
	}
	return string(b)
}

func TestRepeat(t *testing.T) {
	t.Parallel()
	s, _ := repeating(t, func(target []byte, a *Answer) bool {
		return string(target) != "/not" && say(target, a)
	})
	c, in := s.dial()
	const fields = "Host: a.b\r\nA: 1\r\n\r\n"
	for i, test := range []struct{ head, want string }{
		{"GET /1 HTTP/1.1\r\n" + fields, "handler GET /1 [1]"},
		{"GET /2?x HTTP/1.1\r\n" + fields, "repeated /2?x"},
		{"GET /3 HTTP/1.1\r\n" + fields, "repeated /3"},
		{"HEAD /4 HTTP/1.1\r\n" + fields, ""},
		{"GET /5 HTTP/1.1\r\n" + fields, "handler GET /5 [1]"}, // HEAD lets nothing be repeated
		{"GET /not HTTP/1.1\r\n" + fields, "handler GET /not [1]"},
		{"GET /6 HTTP/1.1\r\n" + fields, "repeated /6"},
		{"GET /7 HTTP/1.1\r\n" + strings.Replace(fields, "1", "2", 1), "handler GET /7 [2]"},
		{"GET /8 HTTP/1.1\r\n" + fields, "handler GET /8 [1]"},
		{"GET /9 HTTP/1.1\r\n" + strings.ToLower(fields), "handler GET /9 [1]"},
		{"GET /10 HTTP/1.0\r\n" + strings.ToLower(fields), "handler GET /10 [1]"}, // by net/http
	} {
		method, _, _ := strings.Cut(test.head, " ")
		_, _ = io.WriteString(c, test.head)
		if got := bodyOf(t, in, method); got != test.want {
			t.Fatalf("%d: %q, want %q", i, got, test.want)
		}
	}
}

// Requests that are sent at once are answered in their order.
func TestRepeatPipelined(t *testing.T) {
	t.Parallel()
	s, _ := repeating(t, func(target []byte, a *Answer) bool { return string(target) != "/3" && say(target, a) })
	c, in := s.dial()
	const rest = " HTTP/1.1\r\nHost: a.b\r\n\r\n"
	_, _ = io.WriteString(c, "GET /1"+rest+"GET /2"+rest+"GET /3"+rest+"GET /4"+rest+"GET /5 HTTP/1.1\r\nHost: a.b\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n")
	for _, want := range []string{"handler GET /1 []", "repeated /2", "handler GET /3 []", "repeated /4", "handler GET /5 []"} {
		if got := bodyOf(t, in, "GET"); got != want {
			t.Fatalf("%q, want %q", got, want)
		}
	}
}

// Writer is the way of a handler: a response of unknown length, in a middleware's writer.
func TestRepeatWriter(t *testing.T) {
	t.Parallel()
	s, handled := repeating(t, func(target []byte, a *Answer) bool {
		a.Field("Added", "yes")
		w, r, err := a.open()
		if err != nil {
			t.Error(err)
			return true
		}
		if r.RemoteAddr == "" || r.Host != "a.b" || r.Context().Err() != nil {
			t.Errorf("%+v", r)
		}
		_, _ = io.WriteString(w, r.RequestURI)
		_ = http.NewResponseController(w).Flush()
		if string(target) == "/panic" {
			panic("oh")
		}
		_, _ = io.WriteString(w, " in parts")
		return true
	})
	c, in := s.dial()
	ask := func(target string) string {
		_, _ = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: a.b\r\n\r\n", target)
		return bodyOf(t, in, "GET")
	}
	for _, want := range []string{"handler GET /1 []", "/1 in parts", "/1 in parts"} {
		if got := ask("/1"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := ask("/panic"); got != "broken" {
		t.Errorf("%q", got)
	}
	if got := bodyOf(t, in, "GET"); got != "none" || handled.Load() != 1 {
		t.Errorf("%q, %d requests were handled", got, handled.Load())
	}
}

// The end of the client and a shutdown interrupt what a repeated request waits for.
func TestRepeatEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*plainServer, net.Conn){
		"client leaves": func(_ *plainServer, c net.Conn) { c.Close() },
		"shutdown": func(s *plainServer, _ net.Conn) {
			now, cancel := context.WithCancel(t.Context())
			cancel()
			_ = s.Shutdown(now)
		},
	} {
		up, other := net.Pipe()
		defer other.Close()
		waiting, ended := make(chan struct{}), make(chan error, 1)
		s, _ := repeating(t, func(_ []byte, a *Answer) bool {
			if !a.hold(up) {
				t.Error("the connection has ended")
			}
			close(waiting)
			_, err := up.Read(make([]byte, 1))
			if a.release() {
				t.Error("it was not interrupted")
			}
			ended <- err
			a.failed = true
			return true
		})
		c, in := s.dial()
		const head = "GET /1 HTTP/1.1\r\nHost: a.b\r\n\r\n"
		_, _ = io.WriteString(c, head)
		bodyOf(t, in, "GET")
		_, _ = io.WriteString(c, head)
		<-waiting
		end(s, c)
		if err := <-ended; err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// What is held is interrupted by End as well, and not after Release.
func TestRepeatRelease(t *testing.T) {
	t.Parallel()
	up, other := net.Pipe()
	defer other.Close()
	s, _ := repeating(t, func(target []byte, a *Answer) bool {
		if !a.hold(up) || !a.release() {
			t.Error("it was interrupted")
		}
		if string(target) == "/end" {
			a.End()
			if a.hold(up) || a.conn.ctx.Err() == nil {
				t.Error("it has not ended")
			}
		}
		return say(target, a)
	})
	c, in := s.dial()
	for _, want := range []string{"handler GET /1 []", "repeated /1", "none"} {
		target := "/1"
		if want == "none" {
			target = "/end"
		}
		_, _ = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: a.b\r\n\r\n", target)
		if got := bodyOf(t, in, "GET"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	go func() { _, _ = other.Write([]byte("x")) }()
	if _, err := up.Read(make([]byte, 1)); err != nil {
		t.Errorf("what was released has a deadline: %v", err)
	}
	harness.Eventually(t, "no connection is open", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.open) == 0
	})
}
