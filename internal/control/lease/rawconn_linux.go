package lease

import (
	"crypto/tls"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// now is the time on a monotonic clock that includes the time in which the machine
// sleeps.
func now() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return time.Since(started)
	}
	return time.Duration(t.Nano())
}

var started = time.Now()

// rawConn checks the state of a connection while another goroutine uses it.
type rawConn struct {
	conn net.Conn
	raw  syscall.RawConn // nil: cannot be checked
	bare bool            // without TLS, which sends messages of its own
}

func rawConnOf(conn net.Conn) rawConn {
	l := rawConn{conn: conn, bare: true}
	if t, ok := conn.(*tls.Conn); ok {
		conn, l.bare = t.NetConn(), false
	}
	if c, ok := conn.(syscall.Conn); ok {
		l.raw, _ = c.SyscallConn()
	}
	return l
}

// hungUp reports whether the other end has closed the connection, even if nothing
// has been read from it. On an idle connection the database sends nothing except
// the reason before it closes the connection, and it does so before it releases the
// session's locks.
func (l rawConn) hungUp(idle bool) bool {
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

// close closes the connection immediately.
func (l rawConn) close() { _ = l.conn.Close() }
