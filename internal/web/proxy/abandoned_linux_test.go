package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"codehub/internal/gateway/front"
	"codehub/internal/testing/harness"
)

// Clients disconnect at once in every possible way, and nothing of them is left. Not
// parallel: it counts the process's goroutines and descriptors.
func TestAbandonedConnectionsAreReleased(t *testing.T) {
	visitors := 200
	if harness.Verifying() {
		visitors = 2000
	}
	w := newWorld(t)
	i := w.serve(wsA)
	i.handle = func(rw http.ResponseWriter, r *http.Request) {
		if isWebSocket(r.Header) {
			i.echo(rw, r)
			return
		}
		rw.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(rw).Flush()
		<-r.Context().Done()
	}
	w.get(under(wsB) + "/") // initialize what is created on first use
	goroutines, descriptors := runtime.NumGoroutine(), countDescriptors(t)

	host := w.server.Listener.Addr().String()
	socket := "GET " + under(wsA) + "/ws HTTP/1.1\r\nHost: " + host + "\r\nCookie: " + sessionCookie + "=ann-1\r\nOrigin: http://" + host +
		"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
	plain := "GET " + under(wsA) + "/ HTTP/1.1\r\nHost: " + host + "\r\nCookie: " + sessionCookie + "=ann-1\r\n\r\n"

	conns := make([]*net.TCPConn, visitors)
	var wg sync.WaitGroup
	for worker := range 20 {
		wg.Go(func() {
			for n := worker; n < visitors; n += 20 {
				var err error
				if conns[n], err = call(host, []string{socket, plain}[n/4%2]); err != nil {
					t.Errorf("visitor %d: %v", n, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	harness.EventuallyWithin(t, patience, "all are open", func() bool { return w.proxy.OpenConnections() == visitors })
	for n, conn := range conns {
		switch n % 4 {
		case 1, 2:
			_ = conn.SetLinger(0) // a reset instead of an orderly end
		case 3:
			if n/4%2 == 0 {
				_, _ = conn.Write([]byte{0x81, 0xfe, 0x10}) // an incomplete frame
			}
		}
		conn.Close()
	}
	harness.EventuallyWithin(t, patience, "nothing is open", func() bool { return w.proxy.OpenConnections() == 0 && i.sockets.Load() == 0 })
	// Only the connection pool to the IDE may be left.
	w.proxy.CloseRoute(wsA)
	noRedirects.CloseIdleConnections()
	const slack = 8
	harness.EventuallyWithin(t, patience, "goroutines and descriptors are back", func() bool {
		return runtime.NumGoroutine() <= goroutines+slack && countDescriptors(t) <= descriptors+slack
	})
}

// call sends a request and reads the response's status and headers.
func call(host, request string) (*net.TCPConn, error) {
	conn, err := net.Dial("tcp", host)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, request); err != nil {
		return nil, err
	}
	line, err := bufio.NewReaderSize(conn, 16).ReadString('\n')
	if err == nil && line[9] != '1' && line[9] != '2' {
		err = fmt.Errorf("answer %q", line)
	}
	return conn.(*net.TCPConn), err
}

func countDescriptors(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

// TCP keep-alive detects a client whose machine is gone.
func TestKeepAliveDetectsLostClient(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(wsA)
	say(t, w.dial(under(wsA)+"/ws", "ann-1"), "hello")

	open := w.proxy.open.shard(string(wsA))
	open.mu.Lock()
	defer open.mu.Unlock()
	for c := range open.workspaces[wsA] {
		tcp, ok := front.TCP(c.conn.(*visitorConn).Conn)
		if !ok {
			t.Fatal("the client's connection is not TCP")
		}
		raw, err := tcp.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		for _, option := range []struct{ level, option, want int }{
			{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
			{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(keepAlive.Idle.Seconds())},
			{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(keepAlive.Interval.Seconds())},
			{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepAlive.Count},
			{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds())},
		} {
			var got int
			var failed error
			err := raw.Control(func(fd uintptr) { got, failed = unix.GetsockoptInt(int(fd), option.level, option.option) })
			if err != nil || failed != nil || got != option.want {
				t.Errorf("option %d is %d, want %d: %v %v", option.option, got, option.want, err, failed)
			}
		}
	}
}
