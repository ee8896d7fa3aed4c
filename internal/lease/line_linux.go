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
	bare bool            // no TLS, which has messages of its own
}

func lineOf(conn net.Conn) line {
	l := line{conn: conn, bare: true}
	if t, ok := conn.(*tls.Conn); ok {
		conn, l.bare = t.NetConn(), false
	}
	if c, ok := conn.(syscall.Conn); ok {
		l.raw, _ = c.SyscallConn()
	}
	return l
}

// hungUp reports whether the other end has closed the connection: the kernel
// knows that even if nobody has read the news. On an idle line the database
// says nothing but why it is about to close it, and does so before it gives up
// what the session holds.
func (l line) hungUp(idle bool) bool {
	if l.raw == nil {
		return false
	}
	const end = unix.POLLRDHUP | unix.POLLHUP | unix.POLLERR | unix.POLLNVAL
	var seen int16
	err := l.raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP}}
		if n, err := unix.Poll(p, 0); err == nil && n > 0 {
			seen = p[0].Revents
		}
	})
	return err != nil || seen&end != 0 || idle && l.bare && seen&unix.POLLIN != 0
}

// cut closes the connection without a word.
func (l line) cut() { _ = l.conn.Close() }
