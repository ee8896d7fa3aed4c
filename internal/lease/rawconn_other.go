//go:build !linux

package lease

import (
	"net"
	"time"
)

// now is the time on a monotonic clock.
func now() time.Duration { return time.Since(started) }

var started = time.Now()

// rawConn cannot check the connection on this system; heartbeats detect a closed
// one.
type line struct{ conn net.Conn }

func lineOf(conn net.Conn) line { return line{conn} }

func (line) hungUp(bool) bool { return false }

// close closes the connection immediately.
func (l line) cut() { _ = l.conn.Close() }
