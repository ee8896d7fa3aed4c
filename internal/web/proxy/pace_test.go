package proxy

import (
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"codehub/internal/testing/harness"
)

// Users who typed within typesFor are known, also when two others type in turn.
func TestTypists(t *testing.T) {
	t.Parallel()
	p := newPace()
	at := func(after time.Duration) int64 { return int64(time.Hour + after) }
	if p.othersType("ann", at(0)) {
		t.Error("a user types before the first keystroke")
	}
	p.typed("ann", at(0))
	if p.othersType("ann", at(0)) || !p.othersType("bob", at(0)) {
		t.Error("ann types, which only bob has to wait for")
	}
	p.typed("bob", at(time.Second))
	for _, user := range []string{"ann", "bob", "eve"} {
		if !p.othersType(user, at(2*time.Second)) {
			t.Errorf("ann and bob type, but no other user than %s does", user)
		}
	}
	p.typed("bob", at(3*time.Second))
	p.typed("bob", at(4*time.Second))
	if later := at(typesFor + time.Second/2); p.othersType("bob", later) || !p.othersType("ann", later) {
		t.Error("ann has stopped, bob has not")
	}
	if p.othersType("ann", at(time.Hour)) || p.othersType("ann", at(-time.Minute)) {
		t.Error("all have stopped")
	}
}

// A user transfers bulkBurst at once, and then as much as the rate allows.
func TestAccount(t *testing.T) {
	t.Parallel()
	const rate, bufferSize = 100 << 20, 32 << 10
	now := int64(time.Hour)
	var a account
	for range bulkBurst / bufferSize {
		if pause := a.charge(bufferSize, now, rate); pause != 0 {
			t.Fatalf("a pause of %v within the first bytes", pause)
		}
	}
	sent, begun := 0, now
	for range 10_000 {
		now += int64(a.charge(bufferSize, now, rate))
		sent += bufferSize
	}
	if took, want := time.Duration(now-begun), time.Duration(sent)*time.Second/rate; (took - want).Abs() > 2*paceStep {
		t.Errorf("%d bytes take %v, want %v", sent, took, want)
	}
	for _, back := range []time.Duration{0, time.Hour} { // the clock may be set back
		if pause := a.charge(1<<30, now-int64(back), rate); pause != paceMax {
			t.Errorf("a pause of %v, want %v", pause, paceMax)
		}
	}
}

// Transfers of one user in each way pause while another user types, and not while the same
// user does.
func TestTransfersPauseWhileOthersType(t *testing.T) {
	t.Parallel()
	const size = 2 * bulkBurst
	send := func(w io.Writer) {
		for piece, sent := make([]byte, 1<<20), 0; sent < size; sent += len(piece) {
			if _, err := w.Write(piece); err != nil {
				t.Error(err)
				return
			}
		}
	}
	drain := func(r io.Reader) {
		if n, err := io.CopyN(io.Discard, r, size); err != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	webSocket := func(container func(net.Conn, io.Reader), client func(net.Conn, io.Reader)) func(*world, *ide) {
		return func(w *world, i *ide) {
			i.accepts(func(conn net.Conn, in io.Reader) {
				defer conn.Close()
				_, _ = io.WriteString(conn, switching)
				container(conn, in)
			})
			conn := w.entrance(false).knock(false, "/ws", "")
			client(conn, opened(t, conn))
		}
	}
	for name, transfer := range map[string]func(*world, *ide){
		"download": func(w *world, i *ide) {
			i.handle = func(rw http.ResponseWriter, _ *http.Request) { send(rw) }
			res, err := w.server.Client().Do(w.request(http.MethodGet, under(wsA)+"/x"))
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			drain(res.Body)
		},
		"upload": func(w *world, i *ide) {
			i.handle = func(_ http.ResponseWriter, r *http.Request) { drain(r.Body) }
			r := w.request(http.MethodPut, under(wsA)+"/x", "Origin", w.server.URL)
			r.Body, r.ContentLength = io.NopCloser(io.LimitReader(zeros{}, size)), size
			if a := w.do(r); a.StatusCode != http.StatusOK {
				t.Errorf("upload: %s", a.Status)
			}
		},
		"WebSocket down": webSocket(func(c net.Conn, _ io.Reader) { send(c) }, func(_ net.Conn, in io.Reader) { drain(in) }),
		"WebSocket up": webSocket(func(_ net.Conn, in io.Reader) { drain(in) }, func(c net.Conn, in io.Reader) {
			send(c)
			_, _ = in.Read(make([]byte, 1)) // until the container has read all
		}),
	} {
		for _, typist := range []string{ann, bob} {
			t.Run(name+", "+typist+" types", func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				var pauses atomic.Int64
				w.proxy.open.pace.sleep = func(time.Duration) { pauses.Add(1) }
				w.proxy.open.pace.rate = 1 << 16
				ide, over := w.serve(wsA), make(chan struct{})
				var typing sync.WaitGroup
				typing.Go(func() { // as long as the transfer takes
					for {
						w.proxy.open.pace.typed(typist, time.Now().UnixNano())
						select {
						case <-over:
							return
						case <-time.After(typesFor / 5):
						}
					}
				})
				func() {
					defer typing.Wait()
					defer close(over)
					transfer(w, ide)
				}()
				if paused := pauses.Load() > 0; paused != (typist == bob) {
					t.Errorf("ann's transfer pauses: %v", paused)
				}
			})
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// Input on a WebSocket counts as typing of its user.
func TestWebSocketInputIsTyping(t *testing.T) {
	t.Parallel()
	w, i, _ := recording(t)
	i.accepts(echoes)
	conn := w.entrance(false).knock(false, "/ws", "")
	in := opened(t, conn)
	frame := []byte{0x81, 0x81, 0, 0, 0, 0, 'x'}
	harness.EventuallyWithin(t, patience, "ann types, for bob", func() bool {
		if _, err := conn.Write(frame); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(in, make([]byte, len(frame))); err != nil {
			t.Fatal(err)
		}
		now := time.Now().UnixNano()
		return w.proxy.open.pace.othersType(bob, now) && !w.proxy.open.pace.othersType(ann, now)
	})
}
