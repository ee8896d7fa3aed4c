package harness

import (
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// ReservePort reserves a TCP port of 127.0.0.1 until the test ends. Nothing listens on it, and no
// other socket gets it, before listen is called, once at most.
func ReservePort(t testing.TB) (port int, listen func() net.Listener) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	socket := os.NewFile(uintptr(fd), "reserved port")
	t.Cleanup(func() { _ = socket.Close() })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return name.(*unix.SockaddrInet4).Port, func() net.Listener {
		t.Helper()
		if err := unix.Listen(fd, unix.SOMAXCONN); err != nil {
			t.Fatal(err)
		}
		l, err := net.FileListener(socket)
		if err != nil {
			t.Fatal(err)
		}
		_ = socket.Close() // the listener has its own
		return l
	}
}
