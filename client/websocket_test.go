package client

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"
)

// writes records what is written at once.
type writes struct {
	io.ReadCloser
	all [][]byte
}

func (w *writes) Write(p []byte) (int, error) {
	w.all = append(w.all, bytes.Clone(p))
	return len(p), nil
}

func frame(size int) []byte {
	head := []byte{0x82, 0x80}
	switch {
	case size > 1<<16-1:
		head = append([]byte{0x82, 0x80 | 127}, 0, 0, 0, 0, byte(size>>24), byte(size>>16), byte(size>>8), byte(size))
	case size > 125:
		head = append([]byte{0x82, 0x80 | 126}, byte(size>>8), byte(size))
	default:
		head[1] |= byte(size)
	}
	return append(append(head, 1, 2, 3, 4), bytes.Repeat([]byte{0x82}, size)...)
}

// However frames are cut into writes, each is sent whole and at once, and a large one in
// large parts.
func TestFramesAreSentWhole(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 0))
		out := &writes{}
		c := &frameConn{ReadWriteCloser: out}
		for range 20 {
			out.all = nil
			all := frame([]int{0, 1, 125, 126, 4090, 4096, 1<<16 - 1, 1 << 16, 200_000}[random.IntN(9)])
			for rest := all; len(rest) > 0; {
				n := min(len(rest), 1+random.IntN([]int{8, 4096, 100_000}[random.IntN(3)]))
				if m, err := c.Write(rest[:n]); err != nil || m != n {
					t.Fatal(m, err)
				}
				rest = rest[n:]
			}
			if got := bytes.Join(out.all, nil); !bytes.Equal(got, all) {
				t.Fatalf("seed %d: %d bytes of a frame of %d were sent", seed, len(got), len(all))
			}
			for _, w := range out.all[:len(out.all)-1] {
				if len(w) < maxPending {
					t.Fatalf("seed %d: a part of %d bytes of a frame of %d", seed, len(w), len(all))
				}
			}
		}
	}
}

// countedWrites counts the writes of a WebSocket.
type countedWrites struct {
	writes atomic.Int64
	io.ReadWriteCloser
}

func (c *countedWrites) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := http.DefaultTransport.RoundTrip(r)
	if err == nil {
		c.ReadWriteCloser = res.Body.(io.ReadWriteCloser)
		res.Body = c
	}
	return res, err
}

func (c *countedWrites) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.ReadWriteCloser.Write(p)
}

// The messages of a real WebSocket arrive, with those that the library sends itself.
func TestWebSocketMessages(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.CloseNow()
		conn.SetReadLimit(1 << 20)
		for {
			kind, b, err := conn.Read(r.Context())
			if err != nil {
				return // the client has closed it
			}
			if err := conn.Write(r.Context(), kind, b); err != nil {
				t.Error(err)
				return
			}
		}
	}))
	defer s.Close()
	sent := &countedWrites{}
	c, err := New(s.URL, "token", WithHTTPClient(&http.Client{Transport: sent}))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := c.webSocket(t.Context(), "/")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	conn.SetReadLimit(1 << 20)
	for _, size := range []int{0, 1, 4084, 4096, 32 << 10, 64 << 10, 300_000} {
		want := bytes.Repeat([]byte{byte(size)}, size)
		before := sent.writes.Load()
		if err := conn.Write(t.Context(), websocket.MessageBinary, want); err != nil {
			t.Fatal(err)
		}
		if _, got, err := conn.Read(t.Context()); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes for %d: %v", len(got), size, err)
		}
		if n := sent.writes.Load() - before; n > int64(1+size/maxPending) {
			t.Errorf("%d bytes took %d writes", size, n)
		}
	}
	if err := conn.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Error(err)
	}
}
