package eventstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"codehub/internal/gateway/shortway"
	"codehub/internal/testing/harness"
)

// end is how a stream of a site ended.
type end struct {
	why      error
	sent     int64
	panicked *shortway.Panic
	over     bool // its context had ended
}

// site is a server with one stream at every address.
type site struct {
	*httptest.Server
	streams *shortway.Group
	begun   chan *Stream
	ended   chan end
}

// newSite serves streams of step, with HTTP/2 if two.
func newSite(t *testing.T, two bool, within time.Duration, step func(*Stream) Step) *site {
	t.Helper()
	s := &site{streams: shortway.NewGroup(), begun: make(chan *Stream, 1000), ended: make(chan end, 1000)}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, rest := s.streams.Allow(r.Context())
		out := New(w, r.WithContext(ctx), within)
		w.Header().Set("Content-Type", "text/event-stream")
		s.begun <- out
		var e end
		out.Run(step(out), func(why error) {
			e = end{why: why, over: out.Context().Err() != nil}
			fmt.Fprint(out, "event: end\n\n")
		})
		if !rest.Begun() {
			s.ended <- e
			return
		}
		rest.Go(func(sent int64, panicked *shortway.Panic) {
			e.sent, e.panicked = sent, panicked
			s.ended <- e
		})
	}))
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	if two {
		s.EnableHTTP2 = true
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(func() {
		s.streams.End()
		s.CloseClientConnections()
		s.Close()
		if err := s.streams.Wait(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// dial sends a request without a goroutine.
func (s *site) dial(t *testing.T, request string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(harness.Patience))
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	return c
}

const get = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"

func receive[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(harness.Patience):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

func want(t *testing.T, lines *bufio.Reader, text string) {
	t.Helper()
	b := make([]byte, len(text))
	if _, err := io.ReadFull(lines, b); err != nil || string(b) != text {
		t.Fatalf("received %q, %v, want %q", b, err, text)
	}
}

// counter sends a number in each step, the first at once and the others when woken.
func counter(out *Stream) Step {
	n := 0
	return func() (time.Time, error) {
		n++
		fmt.Fprintf(out, "data: %d\n\n", n)
		return time.Now().Add(time.Hour), nil
	}
}

// An idle stream over HTTP/1 has one goroutine, and none of net/http.
func TestIdleStreamHasOneGoroutine(t *testing.T) {
	const n = 50
	s := newSite(t, false, time.Minute, counter)
	for range n {
		lines := bufio.NewReader(s.dial(t, get))
		resp, err := http.ReadResponse(lines, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !resp.Close || len(resp.TransferEncoding) > 0 {
			t.Errorf("close %v, encoding %q", resp.Close, resp.TransferEncoding)
		}
		want(t, bufio.NewReader(resp.Body), "data: 1\n\n")
	}
	stacks := make([]byte, 1<<20)
	harness.EventuallyWithin(t, harness.Patience, "each stream has one goroutine", func() bool {
		all := string(stacks[:runtime.Stack(stacks, true)])
		return strings.Count(all, "net/http.(*conn).serve(") == 0 && strings.Count(all, "eventstream.(*Stream).wait(") == n
	})
}

// Steps run at once, when woken, and at the time that the previous one returned.
func TestSteps(t *testing.T) {
	t.Parallel()
	for _, two := range []bool{false, true} {
		t.Run(fmt.Sprint("HTTP/2 ", two), func(t *testing.T) {
			t.Parallel()
			var soon atomic.Bool
			s := newSite(t, two, time.Minute, func(out *Stream) Step {
				count := counter(out)
				return func() (time.Time, error) {
					next, err := count()
					if soon.Load() {
						next = time.Now().Add(time.Millisecond)
					}
					return next, err
				}
			})
			resp, err := s.Client().Get(s.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if (resp.ProtoMajor == 2) != two || resp.Header.Get("Content-Type") != "text/event-stream" {
				t.Errorf("%s %v", resp.Proto, resp.Header)
			}
			lines := bufio.NewReader(resp.Body)
			out := receive(t, s.begun)
			want(t, lines, "data: 1\n\n")
			for n := 2; n < 100; n++ {
				out.Wake()
				want(t, lines, fmt.Sprintf("data: %d\n\n", n))
			}
			soon.Store(true)
			out.Wake()
			for n := 100; n < 110; n++ {
				want(t, lines, fmt.Sprintf("data: %d\n\n", n))
			}
			resp.Body.Close()
			if e := receive(t, s.ended); !e.over {
				t.Errorf("the client disconnected, and the context continues: %v", e.why)
			}
		})
	}
}

// A wake during a step causes another one.
func TestWakeDuringStep(t *testing.T) {
	t.Parallel()
	s := newSite(t, false, time.Minute, func(out *Stream) Step {
		n := 0
		return func() (time.Time, error) {
			if n++; n < 1000 {
				out.Wake()
			}
			if n == 1000 {
				fmt.Fprint(out, "data: all\n\n")
			}
			return time.Now().Add(time.Hour), nil
		}
	})
	resp, err := s.Client().Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	want(t, bufio.NewReader(resp.Body), "data: all\n\n")
}

// Every way in which a stream ends is reported to end, and closes the connection.
func TestEnds(t *testing.T) {
	t.Parallel()
	enough := errors.New("enough")
	for _, c := range []struct {
		name string
		step func() (time.Time, error)
		end  func(s *site, c net.Conn)
		why  func(end) bool
		last string // what the client receives
	}{
		{name: "by its step", step: func() (time.Time, error) { return time.Time{}, enough }, last: "event: end\n\n",
			why: func(e end) bool { return e.why == enough && !e.over && e.sent == int64(len("event: end\n\n")) }},
		{name: "by a panic", step: func() (time.Time, error) { panic("secret") }, last: "event: end\n\n",
			why: func(e end) bool { return e.panicked != nil && e.panicked.Value == "secret" }},
		{name: "with the server", end: func(s *site, _ net.Conn) { s.streams.End() }, last: "event: end\n\n",
			why: func(e end) bool { return e.over }},
		{name: "by the client", end: func(_ *site, c net.Conn) { _ = c.(*net.TCPConn).CloseWrite() }, last: "event: end\n\n",
			why: func(e end) bool { return e.over }},
		{name: "by a client that sends", end: func(_ *site, c net.Conn) {
			_, _ = c.Write(make([]byte, 2*maxSent))
		}, why: func(e end) bool { return e.over }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.step == nil {
				c.step = func() (time.Time, error) { return time.Now().Add(time.Hour), nil }
			}
			s := newSite(t, false, time.Minute, func(*Stream) Step { return c.step })
			conn := s.dial(t, get)
			lines := bufio.NewReader(conn)
			resp, err := http.ReadResponse(lines, nil)
			if err != nil {
				t.Fatal(err)
			}
			if c.end != nil {
				c.end(s, conn)
			}
			body, err := io.ReadAll(resp.Body)
			if c.last != "" && (err != nil || string(body) != c.last) {
				t.Errorf("the client received %q, %v", body, err)
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection is open")
			}
			if e := receive(t, s.ended); !c.why(e) {
				t.Errorf("it ended with %+v", e)
			}
			ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
			defer cancel()
			if err := s.streams.Wait(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// A client that does not read is disconnected, and end's output is not sent.
func TestSlowClient(t *testing.T) {
	t.Parallel()
	s := newSite(t, false, 100*time.Millisecond, func(out *Stream) Step {
		return func() (time.Time, error) {
			_, err := out.Write(make([]byte, 1<<20))
			return time.Now(), err
		}
	})
	s.dial(t, get)
	if e := receive(t, s.ended); !errors.Is(e.why, os.ErrDeadlineExceeded) || e.over {
		t.Errorf("it ended with %+v", e)
	}
}

// A stream takes over the connection of a GET without a body; it drops requests that
// were sent already.
func TestTakesOver(t *testing.T) {
	t.Parallel()
	for request, taken := range map[string]bool{
		get: true, get + get: true, "GET / HTTP/1.0\r\nHost: x\r\n\r\n": true,
		"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\na": false,
	} {
		t.Run(request, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, false, time.Minute, counter)
			resp, err := http.ReadResponse(bufio.NewReader(s.dial(t, request)), nil)
			if err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewReader(resp.Body)
			want(t, lines, "data: 1\n\n")
			if n := s.streams.Open(); (n == 1) != taken {
				t.Errorf("%d streams have taken over a connection", n)
			}
			receive(t, s.begun).Wake()
			want(t, lines, "data: 2\n\n")
		})
	}
}
