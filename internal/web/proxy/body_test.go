package proxy

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"codehub/internal/gateway/inbound"
	"codehub/internal/runtime"
	"codehub/internal/web/httpapi"
)

// hasty gives workspace A a container that answers each request when its head has come,
// and then reads no body. It closes the connection after a response that ends with cut.
func (w *world) hasty(response string) {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				in := bufio.NewReader(c)
				for line := ""; line != "\r\n"; {
					if line, err = in.ReadString('\n'); err != nil {
						return
					}
				}
				text, whole := strings.CutSuffix(response, cut)
				_, _ = io.WriteString(c, text)
				if !whole {
					_, _ = io.Copy(io.Discard, c)
				}
			}()
		}
	}()
	w.runtime.put(wsA, runtime.Upstream{ContainerID: "hasty", Addr: l.Addr().String(), Secret: "s"})
}

const (
	hastyAnswer  = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"
	hastyChunked = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
)

// bodyWorld serves hasty containers with short deadlines.
type bodyWorld struct {
	*world
	address string
}

func newBodyWorld(t *testing.T) *bodyWorld {
	w := newWorld(t)
	settings := inbound.Settings{RequestTimeout: 3 * time.Second, IdleTimeout: patience}
	return &bodyWorld{w, strings.TrimPrefix(servePlain(t, settings.Server(w.handler()), false), "http://")}
}

// post sends the head of a POST request, and what follows.
func (w *bodyWorld) post(follows string) (net.Conn, *bufio.Reader) {
	w.t.Helper()
	c, err := net.Dial("tcp", w.address)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	w.send(c, "POST "+under(wsA)+"/x HTTP/1.1\r\n"+w.fields()+follows)
	return c, bufio.NewReader(c)
}

func (w *bodyWorld) fields() string {
	return "Host: " + w.server.Listener.Addr().String() + "\r\nCookie: " + sessionCookie + "=ann-1\r\n"
}

func (w *bodyWorld) send(c io.Writer, text string) {
	w.t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		w.t.Error(err)
	}
}

// answer reads a response that is not informational.
func (w *bodyWorld) answer(in *bufio.Reader) (status int, body string) {
	w.t.Helper()
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	if res.StatusCode == http.StatusContinue {
		return w.answer(in)
	}
	b, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatalf("%s %q: %v", res.Status, b, err)
	}
	return res.StatusCode, string(b)
}

// ends fails the test unless the connection ends without a further response.
func (w *bodyWorld) ends(in *bufio.Reader) {
	w.t.Helper()
	b, err := io.ReadAll(in)
	if len(b) > 0 || err != nil && strings.Contains(err.Error(), "timeout") {
		w.t.Errorf("after the response: %q, %v", b, err)
	}
}

// The bytes that follow an invalid or unread body are no request.
func TestUnreadBodyIsNotServed(t *testing.T) {
	t.Parallel()
	const chunked = "Transfer-Encoding: chunked\r\n\r\n"
	for name, test := range map[string]struct{ follows, later string }{
		"trailer without a colon":  {chunked + "0\r\nbad\r\nREQUEST", ""},
		"trailer with a bad name":  {chunked + "0\r\na(b: c\r\nREQUEST", ""},
		"trailer with a bad value": {chunked + "0\r\na: \x01c\r\nREQUEST", ""},
		"long trailer":             {chunked + "0\r\n" + strings.Repeat("a: "+strings.Repeat("b", 1000)+"\r\n", 5) + "REQUEST", ""},
		"request as a trailer":     {chunked + "0\r\nGET /teapot?" + strings.Repeat("a", 5000) + " HTTP/1.1\r\nHost: HOST\r\n\r\n", ""},
		"chunk without its end":    {chunked + "1\r\naGET /teapot HTTP/1.1\r\nHost: HOST\r\n\r\n", ""},
		"chunk that comes late":    {chunked + "1000\r\n", "REQUEST"},
		"chunks of extensions":     {chunked + strings.Repeat("1;"+strings.Repeat("a", 2000)+"\r\na\r\n", 9) + "1000\r\nREQUEST", ""},
		"body that comes late":     {"Content-Length: 1000\r\n\r\n", "REQUEST"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newBodyWorld(t)
			w.hasty(hastyAnswer)
			request := func(s string) string {
				s = strings.ReplaceAll(s, "REQUEST", "GET /teapot HTTP/1.1\r\n"+w.fields()+"\r\n")
				return strings.ReplaceAll(s, "HOST", w.server.Listener.Addr().String())
			}
			c, in := w.post(request(test.follows))
			if test.later == "" { // the connection may end before the response
				if b, err := io.ReadAll(in); strings.Count(string(b), "HTTP/1.1 ") > 1 || err != nil && strings.Contains(err.Error(), "timeout") {
					t.Errorf("%q %v", b, err)
				}
				return
			}
			if status, body := w.answer(in); status != http.StatusOK || body != "ok" {
				t.Fatalf("%d %q", status, body)
			}
			time.Sleep(300 * time.Millisecond)            // longer than the rest is waited for
			_, _ = io.WriteString(c, request(test.later)) // the connection may have ended
			w.ends(in)
		})
	}
}

// A client that does not send the body of a request that was answered gets the whole
// response, and its connection ends by the server's deadline.
func TestUnsentBodyEndsConnection(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		framing, response string
		whole             bool
	}{
		"length":               {"Content-Length: 300", hastyAnswer, true},
		"large length":         {"Content-Length: 3000000", hastyAnswer, true},
		"chunks":               {"Transfer-Encoding: chunked", hastyAnswer, true},
		"chunked response":     {"Content-Length: 300", hastyChunked, true},
		"expected continue":    {"Expect: 100-continue\r\nContent-Length: 300", hastyChunked, true},
		"response that is cut": {"Content-Length: 300", strings.TrimSuffix(hastyAnswer, "k") + cut, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newBodyWorld(t)
			w.hasty(test.response)
			_, in := w.post(test.framing + "\r\n\r\n")
			if test.whole {
				if status, body := w.answer(in); status != http.StatusOK || body != "ok" {
					t.Errorf("%d %q", status, body)
				}
				w.ends(in)
				return
			}
			b, err := io.ReadAll(in)
			if err != nil && strings.Contains(err.Error(), "timeout") || strings.HasSuffix(string(b), "ok") {
				t.Errorf("%q %v", b, err)
			}
		})
	}
}

// A request for another protocol that is not switched to ends its connection, because the
// framing of what follows is not checked.
func TestUnswitchedConnectionEnds(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		request, response string
		status            int
	}{
		"workspace":         {"GET " + under(wsA) + "/", hastyAnswer, http.StatusOK},
		"after a hint":      {"GET " + under(wsA) + "/", "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + hastyAnswer, http.StatusOK},
		"codehub":           {"GET /", hastyAnswer, http.StatusTeapot},
		"the whole server":  {"OPTIONS *", hastyAnswer, http.StatusTeapot},
		"without workspace": {"GET " + under(wsB) + "/", hastyAnswer, http.StatusNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.hasty(test.response)
			settings := inbound.Settings{RequestTimeout: patience, IdleTimeout: patience}
			address := strings.TrimPrefix(servePlain(t, settings.Server(httpapi.Outer(w.log.Logger(), nil, nil, w.handler())), false), "http://")
			c, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(patience))
			b := &bodyWorld{w, address}
			ambiguous := "POST /x HTTP/1.1\r\n" + b.fields() + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
			b.send(c, test.request+" HTTP/1.1\r\n"+b.fields()+"Connection: Upgrade\r\nUpgrade: x\r\n\r\n"+ambiguous)
			in := bufio.NewReader(c)
			res, err := http.ReadResponse(in, nil)
			for err == nil && res.StatusCode == http.StatusEarlyHints {
				res, err = http.ReadResponse(in, nil)
			}
			if err != nil {
				t.Fatal(err)
			}
			if res.StatusCode != test.status || !res.Close || len(res.Header["X-Request-Id"]) != 1 {
				t.Errorf("%s, closes: %v, %v", res.Status, res.Close, res.Header)
			}
			_, _ = io.Copy(io.Discard, res.Body)
			b.ends(in)
		})
	}
}
