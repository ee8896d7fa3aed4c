package shortway

import (
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"codehub/internal/testing/harness"
)

// pair returns both ends of a connection.
func pair(t *testing.T) (a, b *net.TCPConn, raw syscall.RawConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialed, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dialed.Close(); accepted.Close() })
	a, b = dialed.(*net.TCPConn), accepted.(*net.TCPConn)
	if raw, err = a.SyscallConn(); err != nil {
		t.Fatal(err)
	}
	return a, b, raw
}

// A waiter is resumed once for each Wait: when data, the end or a failure comes.
func TestWaitIsResumed(t *testing.T) {
	t.Parallel()
	p := defaultPoller()
	if p == nil {
		t.Fatal("there is no poller")
	}
	for name, event := range map[string]func(a, b *net.TCPConn, w *waiter){
		"data":    func(_, b *net.TCPConn, _ *waiter) { _, _ = b.Write([]byte("x")) },
		"end":     func(_, b *net.TCPConn, _ *waiter) { _ = b.CloseWrite() },
		"closed":  func(_, b *net.TCPConn, _ *waiter) { _ = b.Close() },
		"reset":   func(_, b *net.TCPConn, _ *waiter) { _ = b.SetLinger(0); _ = b.Close() },
		"by Wake": func(a, _ *net.TCPConn, w *waiter) { _ = a.Close(); p.Wake(w) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b, raw := pair(t)
			var resumed atomic.Int64
			w := &waiter{Raw: raw, Resume: func() { resumed.Add(1) }}
			if !p.Wait(w) {
				t.Fatal("it does not wait")
			}
			if resumed.Load() != 0 {
				t.Error("it is resumed without an event")
			}
			event(a, b, w)
			harness.Eventually(t, "it is resumed", func() bool { return resumed.Load() == 1 })
			p.Wake(w)
			if n := resumed.Load(); n != 1 {
				t.Errorf("it is resumed %d times", n)
			}
			if again := p.Wait(w); again != (name != "by Wake") {
				t.Errorf("Wait again: %v", again)
			} else if again {
				harness.Eventually(t, "it is resumed again, since the event was not consumed", func() bool { return resumed.Load() == 2 })
			}
			p.Forget(w)
		})
	}
}

// A connection that is closed already cannot be waited for.
func TestWaitForClosedConnection(t *testing.T) {
	t.Parallel()
	a, _, raw := pair(t)
	a.Close()
	w := &waiter{Raw: raw, Resume: func() { t.Error("resumed") }}
	if defaultPoller().Wait(w) {
		t.Error("it waits")
	}
	defaultPoller().Wake(w)
	defaultPoller().Forget(w)
}

// A connection that cannot be waited for uses no slot, and can be tried again.
func TestWaitFails(t *testing.T) {
	t.Parallel()
	p, err := newPoller()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.CreateTemp(t.TempDir(), "") // the kernel does not wait for files
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	w := &waiter{Raw: raw, Resume: func() { t.Error("it is resumed") }}
	for range 3 {
		if p.Wait(w) {
			t.Fatal("it waits for a file")
		}
	}
	p.Forget(w)
	if w.added || len(p.free) != len(p.slots) {
		t.Errorf("%d of %d slots are free", len(p.free), len(p.slots))
	}
}

// In a hurry, waiters are resumed although the goroutine that waits for events does not
// run, and only until the given time.
func TestHurry(t *testing.T) {
	t.Parallel()
	p, err := openPoller()
	if err != nil {
		t.Fatal(err)
	}
	_, b, raw := pair(t)
	var resumed atomic.Int64
	w := &waiter{Raw: raw, Resume: func() { resumed.Add(1) }}
	for i := range int64(3) {
		if !p.Wait(w) {
			t.Fatal("it does not wait")
		}
		if _, err := b.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		p.Hurry(time.Hour)
		harness.Eventually(t, "it is resumed", func() bool { return resumed.Load() == i+1 })
		p.Hurry(0)
		harness.Eventually(t, "the hurry is over", func() bool { return !p.hurries.Load() })
	}
}
