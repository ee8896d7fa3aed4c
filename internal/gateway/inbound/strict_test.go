package inbound

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"
)

// passes returns how much of the text may pass if it arrives in parts of this size.
func passes(text string, part int) int {
	var f framing
	at := 0
	for at < len(text) {
		b := text[at:min(at+part, len(text))]
		n := f.pass([]byte(b))
		at += n
		if n < len(b) {
			break
		}
	}
	return at
}

func TestFraming(t *testing.T) {
	t.Parallel()
	const host = "Host: x\r\n"
	for text, ok := range map[string]bool{
		"GET / HTTP/1.1\r\n" + host + "\r\nGET / HTTP/1.1\r\n" + host + "\r\n":                                                              true,
		"POST / HTTP/1.1\r\n" + host + "Content-Length: 5\r\n\r\nhelloGET / HTTP/1.1\r\n" + host + "\r\n":                                   true,
		"POST / HTTP/1.1\r\n" + host + "content-length:\t5 \r\n\r\n\n\n\n\n\nGET / HTTP/1.1\r\n\r\n":                                        true,
		"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n5;a=b;c\r\n\n\n\n\n\n\r\n0\r\nX: y\r\n\r\nGET / HTTP/1.1\r\n\r\n": true,
		"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: Chunked\r\n\r\nA\r\n0123456789\r\n0\r\n\r\n\r\nGET / HTTP/1.1\r\n\r\n":           true,
		"GET / HTTP/1.1\r\n" + host + "Upgrade: websocket\r\n\r\n\x81\n\x00\n anything\n":                                                   true,
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\n\n":                                                                                          true,
		"GET / HTTP/1.1\r\n" + host + "X: a\xffb\r\n\r\n":                                                                                   true,

		"GET / HTTP/1.1\n" + host + "\r\n":                                                                                         false,
		"GET / HTTP/1.1\r\nHost: x\n\r\n":                                                                                          false,
		"GET / HTTP/1.1\r\n" + host + "\n":                                                                                         false,
		"GET / HTTP/1.1\r\n" + host + "X: a\rY: b\r\n\r\n":                                                                         false,
		"GET / HTTP/1.1\r\n" + host + "X: a\x00\r\n\r\n":                                                                           false,
		"GET / HTTP/1.1\r\n" + host + "X: a\r\n b\r\n\r\n":                                                                         false,
		"GET / HTTP/1.1\r\n" + host + "X: a\r\n\tb\r\n\r\n":                                                                        false,
		"GET / HTTP/1.1\r\n " + host + "\r\n":                                                                                      false,
		"POST / HTTP/1.1\r\n" + host + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello":                                       false,
		"POST / HTTP/1.1\r\n" + host + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello":                                       false,
		"POST / HTTP/1.1\r\n" + host + "Content-Length: 5, 5\r\n\r\nhello":                                                         false,
		"POST / HTTP/1.1\r\n" + host + "Content-Length: +5\r\n\r\nhello":                                                           false,
		"POST / HTTP/1.1\r\n" + host + "Content-Length: -5\r\n\r\nhello":                                                           false,
		"POST / HTTP/1.1\r\n" + host + "Content-Length: 0x5\r\n\r\nhello":                                                          false,
		"POST / HTTP/1.1\r\n" + host + "Content-Length:\r\n\r\nhello":                                                              false,
		"POST / HTTP/1.1\r\n" + host + "Content-Length: 99999999999999999999\r\n\r\nhello":                                         false,
		"POST / HTTP/1.1\r\n" + host + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n":                          false,
		"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n":                          false,
		"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n":                false,
		"POST / HTTP/1.0\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n":                                               false,
		"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n":                                   false,
		"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n5;a\rb\r\nhello\r\n0\r\n\r\n":                            false,
		"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n":                               false,
		"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n\r\nhello\r\n0\r\n\r\n":                                  false,
		"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\nX: a\r\n b\r\n\r\n":                                 false,
		"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\nX: a\n\r\n":                                         false,
		"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\nbad\r\n\r\n":                                        false,
		"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\n: a\r\n\r\n":                                        false,
		"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\nX : a\r\n\r\n":                                      false,
		"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\nX: \x01\r\n\r\n":                                    false,
		"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\n" + strings.Repeat("X: abcdefgh\r\n", 400) + "\r\n": false,
		"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + strings.Repeat("a", 5000) + "\r\n\r\n":       false,
		"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n":                                    false,
		"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n1\r\na\n0\r\n\r\n":                                       false,
		"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\r\n0\r\n\r\n":                                   false,
		"GET / HTTP/1.1\r\n" + host + "X: " + strings.Repeat("a", maxLine+1) + "\r\n\r\n":                                          false,
	} {
		for _, part := range []int{1, 2, 3, 7, 4096, 1 << 20} {
			n := passes(text, part)
			if (n == len(text)) != ok {
				t.Errorf("%.120q in parts of %d: %d of %d bytes pass, want all: %v", text, part, n, len(text), ok)
			}
			if ok {
				continue
			}
			// What passes is no complete request.
			in := bufio.NewReader(strings.NewReader(text[:n]))
			if r, err := http.ReadRequest(in); err == nil {
				if _, err := io.Copy(io.Discard, r.Body); err == nil && r.ContentLength != 0 {
					t.Errorf("%.120q: a complete request passes", text)
				}
			}
		}
	}
}

// FuzzFraming checks that the parts in which requests arrive make no difference, and
// that each request that passes is one that net/http frames in the same way.
func FuzzFraming(f *testing.F) {
	f.Add("GET / HTTP/1.1\r\nHost: x\r\n\r\n", 3)
	f.Add("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5;a\r\nhello\r\n0\r\nX: y\r\n\r\nGET / HTTP/1.1\r\n\r\n", 5)
	f.Add("POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", 1)
	f.Fuzz(func(t *testing.T, text string, part int) {
		if part <= 0 || part > 1<<16 {
			return
		}
		whole := passes(text, len(text)+1)
		if (whole == len(text)) != (passes(text, part) == len(text)) {
			t.Fatalf("in parts of %d: %d, whole: %d, of %d", part, passes(text, part), whole, len(text))
		}
		if whole < len(text) {
			return
		}
		in := bufio.NewReader(strings.NewReader(text))
		r, err := http.ReadRequest(in)
		if err != nil || r.Header.Get("Upgrade") != "" || r.ProtoMajor != 1 {
			return
		}
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return
		}
		left := in.Buffered()
		rest, _ := io.ReadAll(in)
		var g framing
		if g.pass([]byte(text[:len(text)-len(rest)])); g.state != requestLine || len(g.line) > 0 {
			t.Fatalf("net/http ends the request %d bytes before the end; state %d", left, g.state)
		}
	})
}
