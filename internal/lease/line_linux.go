package lease

import (
	"crypto/tls"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// now is the time on a clock that nobody sets, and that goes on while the
// machine sleeps.
func now() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return time.Since(started)
	}
	return time.Duration(t.Nano())
}

var started = time.Now()

// line is a connection as it is looked at, by anybody, while somebody else uses
// it.
type line struct {
	conn net.Conn
	raw  syscall.RawConn // nil: it cannot be looked at
}

func lineOf(conn net.Conn) line {
	l := line{conn: conn}
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	if c, ok := conn.(syscall.Conn); ok {
		l.raw, _ = c.SyscallConn()
	}
	return l
}

// hungUp reports whether the other end has closed the connection: the kernel
// knows that even if nobody has read the news.
func (l line) hungUp() bool {
	if l.raw == nil {
		return false
	}
	gone := false
	err := l.raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(p, 0)
		gone = err == nil && n > 0 && p[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0
	})
	return err != nil || gone
}

// cut closes the connection without a word.
func (l line) cut() { _ = l.conn.Close() }
