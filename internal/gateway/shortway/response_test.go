package shortway

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// answer is a connection whose other side sends data when it receives something, and then
// closes.
type answer struct {
	*bytes.Reader
	asked chan struct{} // gets one element for each write
}

func newAnswer(data []byte) net.Conn {
	return answer{bytes.NewReader(data), make(chan struct{}, 16)}
}

func (a answer) Read(p []byte) (int, error) {
	if a.Len() == int(a.Size()) {
		<-a.asked
	}
	return a.Reader.Read(p)
}

func (a answer) Write(p []byte) (int, error) {
	a.asked <- struct{}{}
	return len(p), nil
}
func (answer) Close() error                     { return nil }
func (answer) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (answer) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (answer) SetDeadline(time.Time) error      { return nil }
func (answer) SetReadDeadline(time.Time) error  { return nil }
func (answer) SetWriteDeadline(time.Time) error { return nil }

// outcome is what a client has of a response.
type outcome struct {
	Status  int
	Header  http.Header
	Body    string
	Whole   bool
	Trailer http.Header
	Hints   int
}

func outcomeOf(res *http.Response, hints int) outcome {
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return outcome{res.StatusCode, res.Header, string(b), err == nil, res.Trailer, hints}
}

// A response means the same as to http.Transport, or it is refused.
func FuzzResponse(f *testing.F) {
	for _, s := range []string{
		hello, hello[:30], "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + hello, "HTTP/1.0 200 OK\r\n\r\nuntil the end",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n5\r\nhello\r\n0\r\nX: y\r\n\r\n", "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", "HTTP/1.1 200 OK\nContent-Length: 5\n\nhello",
		"HTTP/1.1 099 Odd\r\n\r\n", "HTTP/1.1 200\r\nContent-Length:\r\n\r\n", "HTTP/1.1 200 OK\r\n X: folded\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		dial := func(context.Context) (net.Conn, error) { return newAnswer(data), nil }
		hints := 0
		pool := &Pool{Dial: dial, IdleTimeout: time.Minute, MaxHeader: 128 << 10}
		res, err := pool.Send(plainRequest(ctx), func(int, http.Header) error { hints++; return nil })
		if err != nil {
			return
		}
		got := outcomeOf(res, hints)

		hints = 0
		transport := &http.Transport{
			DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
			DisableCompression: true, MaxResponseHeaderBytes: 128 << 10,
		}
		defer transport.CloseIdleConnections()
		traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
			if code != http.StatusContinue {
				hints++
			}
			return nil
		}})
		if res, err = transport.RoundTrip(plainRequest(traced)); err != nil {
			t.Fatalf("http.Transport refuses what is accepted here: %v", err)
		}
		if diff := cmp.Diff(outcomeOf(res, hints), got); diff != "" {
			t.Fatal(diff)
		}
	})
}

func plainRequest(ctx context.Context) *http.Request {
	r, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://ide/", nil)
	return r
}
