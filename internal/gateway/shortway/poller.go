package shortway

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// poller waits for connections to become readable, on one goroutine for all: the stack of a
// goroutine for each needs more memory than all the rest of an idle connection.
type poller struct {
	fd  int
	raw syscall.RawConn // of fd

	hurries atomic.Bool  // the goroutine of Hurry runs
	until   atomic.Int64 // of Hurry, in nanoseconds after began
	began   time.Time

	mu    sync.Mutex
	slots []*waiter // by waiter.slot
	free  []int32
}

// waiter waits for one connection. The fields are set before it is used.
type waiter struct {
	Raw    syscall.RawConn // of a connection that only its owner closes
	Resume func()          // must not block

	slot    int32
	added   bool // Raw's descriptor is registered
	waiting bool
}

// defaultPoller returns a poller for the whole process, or nil if the kernel has none.
var defaultPoller = sync.OnceValue(func() *poller {
	p, err := newPoller()
	if err != nil {
		return nil
	}
	return p
})

func newPoller() (*poller, error) {
	p, err := openPoller()
	if err == nil {
		go p.run()
	}
	return p, err
}

// openPoller returns a poller that does not run.
func openPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create an epoll instance: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("make an epoll instance non-blocking: %w", err)
	}
	// The runtime's own poller waits for this one.
	raw, err := os.NewFile(uintptr(fd), "epoll").SyscallConn()
	if err != nil {
		return nil, err
	}
	return &poller{fd: fd, raw: raw, began: time.Now()}, nil
}

// run resumes waiters until the process ends.
func (p *poller) run() {
	events := make([]unix.EpollEvent, 128)
	for {
		n := 0
		err := p.raw.Read(func(uintptr) bool {
			n = p.ready(events)
			return n > 0
		})
		if err != nil {
			panic(fmt.Sprintf("wait for connections: %v", err)) // the descriptor is never closed
		}
		p.resumeAll(events[:n])
	}
}

// Hurry lets the WebSockets that rest be served as if in a hurry; see poller.Hurry.
func Hurry(during time.Duration) {
	if poller := defaultPoller(); poller != nil {
		poller.Hurry(during)
	}
}

// Hurry lets waiters be resumed within about a millisecond for that time, also while all
// processors are busy. Without it, the Go runtime looks for events only every 10 ms while
// they are, and what waits for them continues after all goroutines that are ready. A
// goroutine that a timer wakes goes ahead of those.
func (p *poller) Hurry(during time.Duration) {
	p.until.Store(int64(time.Since(p.began) + during))
	if p.hurries.CompareAndSwap(false, true) {
		go p.hurry()
	}
}

func (p *poller) hurry() {
	events := make([]unix.EpollEvent, 128)
	over := func() bool { return int64(time.Since(p.began)) >= p.until.Load() }
	for {
		for !over() {
			time.Sleep(hurryInterval)
			p.resumeAll(events[:p.ready(events)])
		}
		p.hurries.Store(false)
		if over() || !p.hurries.CompareAndSwap(false, true) { // until may have changed meanwhile
			return
		}
	}
}

// hurryInterval is how often Hurry looks for events.
const hurryInterval = time.Millisecond

// ready returns how many events there are, without waiting for one.
func (p *poller) ready(events []unix.EpollEvent) int {
	for {
		n, err := unix.EpollWait(p.fd, events, 0)
		if err != unix.EINTR {
			return max(n, 0)
		}
	}
}

func (p *poller) resumeAll(events []unix.EpollEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, event := range events {
		if w := p.slots[event.Fd]; w != nil {
			p.resume(w)
		}
	}
}

// Wait lets w.Resume be called once, when the connection is readable, has ended or has
// failed, or by Wake. Rarely, Resume is called although nothing of that has happened. Wait
// returns false, and does not call Resume, if the connection is closed or cannot be waited
// for.
func (p *poller) Wait(w *waiter) bool {
	op := p.enter(w)
	var failed error
	err := w.Raw.Control(func(fd uintptr) {
		failed = unix.EpollCtl(p.fd, op, int(fd), &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLONESHOT, Fd: w.slot})
	})
	if err == nil && failed == nil {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !w.waiting {
		return true // it was resumed, by Wake
	}
	w.waiting = false
	if op == unix.EPOLL_CTL_ADD {
		p.release(w)
	}
	return false
}

// enter marks w as waiting, and returns how its connection is to be registered. The kernel
// forgets a connection that is closed.
func (p *poller) enter(w *waiter) (op int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.waiting = true
	if w.added {
		return unix.EPOLL_CTL_MOD
	}
	w.added = true
	if n := len(p.free); n > 0 {
		w.slot, p.free = p.free[n-1], p.free[:n-1]
		p.slots[w.slot] = w
	} else {
		w.slot = int32(len(p.slots))
		p.slots = append(p.slots, w)
	}
	return unix.EPOLL_CTL_ADD
}

// Wake resumes w if it is waiting. It is called after the connection was closed.
func (p *poller) Wake(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resume(w)
}

// Forget releases w, which is not waiting and must not wait any more.
func (p *poller) Forget(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.added {
		p.release(w)
	}
}

// release is called with p.mu locked.
func (p *poller) release(w *waiter) {
	w.added = false
	p.slots[w.slot] = nil
	p.free = append(p.free, w.slot)
}

// resume is called with p.mu locked.
func (p *poller) resume(w *waiter) {
	if w.waiting {
		w.waiting = false
		w.Resume()
	}
}
