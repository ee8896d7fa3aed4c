package server

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
)

// serving starts a server without Docker. wrap is a shell command that precedes it, such
// as a limit.
func serving(t *testing.T, wrap string, env ...string) *proc.Server {
	t.Helper()
	return servingWith(t, wrap, proc.Options{Env: env})
}

// servingWith is serving with further options.
func servingWith(t *testing.T, wrap string, opts proc.Options) *proc.Server {
	t.Helper()
	database := fixture.NewDatabase(t, postgres.Options{})
	binary, err := exec.LookPath("codehub")
	try(t, err)
	dir := t.TempDir()
	if wrap != "" {
		script := filepath.Join(dir, "codehub")
		try(t, os.WriteFile(script, fmt.Appendf(nil, "#!/bin/sh\n%s || exit 1\nexec %s \"$@\"\n", wrap, binary), 0o755))
		binary = script
	}
	for _, kv := range opts.Env {
		if address, ok := strings.CutPrefix(kv, "CODEHUB_LISTEN="); ok {
			opts.Listen = address
		}
	}
	opts.Binary, opts.DataDir = binary, filepath.Join(dir, "data")
	opts.Env = append([]string{"CODEHUB_DATABASE_URL=" + database.DSN, "DOCKER_HOST=unix://" + filepath.Join(dir, "no-docker")}, opts.Env...)
	s, err := proc.New(opts)
	try(t, err)
	t.Cleanup(func() {
		s.Close()
		if t.Failed() {
			log := s.Log()
			t.Logf("the server's log:\n%s", log[max(0, len(log)-8000):])
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	try(t, s.Start(ctx))
	return s
}

func address(s *proc.Server) string { return "127.0.0.1:" + s.URL[strings.LastIndex(s.URL, ":")+1:] }

// send opens a connection and sends a request.
func send(t *testing.T, s *proc.Server, request string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address(s))
	try(t, err)
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(harness.Patience))
	_, err = io.WriteString(c, request)
	try(t, err)
	return c
}

// closed fails the test unless the server closes the connection. The client reads only
// to find that out.
func closed(t *testing.T, what string, c net.Conn) {
	t.Helper()
	if _, err := io.Copy(io.Discard, c); err != nil && strings.Contains(err.Error(), "timeout") {
		t.Errorf("%s: the connection is still open", what)
	}
}

// routes are requests of every kind that is not relayed, with and without a session.
var routes = []string{
	"GET /healthz", "GET /readyz", "GET /metrics", "GET /login", "POST /login", "GET /", "POST /logout", "GET /setup", "GET /nothing",
	"GET /assets/nothing.css", "GET /api/v1/openapi.json", "POST /api/v1/login", "GET /api/v1/session", "POST /api/v1/workspaces",
	"GET /api/v1/nothing", "GET /w/0198c0de-0000-7000-8000-00000000000a/", "POST /w/0198c0de-0000-7000-8000-00000000000a/", "GET /w/x",
	"OPTIONS /api/v1/events", "BREW /healthz", "GET /dashboard/events", "DELETE /api/v1/tokens/x",
}

// Clients that stall, read nothing or send ambiguous requests use one server.
func TestHostileClients(t *testing.T) {
	t.Parallel()
	s := serving(t, "", "CODEHUB_REQUEST_TIMEOUT=2s", "CODEHUB_IDLE_TIMEOUT=2s")
	session := login(t, s)
	t.Run("stalled requests", func(t *testing.T) { t.Parallel(); stalledRequestsEnd(t, s, session) })
	t.Run("unread responses", func(t *testing.T) { t.Parallel(); unreadResponsesEnd(t, s, session) })
	t.Run("smuggled requests", func(t *testing.T) { t.Parallel(); smuggledRequestsAreRefused(t, s) })
}

// The server ends a request of which the client sends only a part.
func stalledRequestsEnd(t *testing.T, s *proc.Server, session string) {
	var wg sync.WaitGroup
	for i, route := range routes {
		if i%3 != 0 && !harness.Verifying() {
			continue
		}
		for _, cookie := range []string{"", "Cookie: " + session + "\r\n"} {
			head := route + " HTTP/1.1\r\nHost: " + s.URL[len("http://"):] + "\r\nOrigin: " + s.URL + "\r\n" + cookie
			for what, request := range map[string]string{
				"incomplete head":  head,
				"unsent body":      head + "Content-Length: 100\r\n\r\n",
				"trickled body":    head + "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
				"unsent form":      head + "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\na",
				"unsent chunks":    head + "Transfer-Encoding: chunked\r\n\r\n",
				"incomplete chunk": head + "Transfer-Encoding: chunked\r\n\r\nff\r\nx",
				"large body":       head + "Content-Length: 10000000000\r\n\r\n",
			} {
				c := send(t, s, request)
				wg.Go(func() { closed(t, fmt.Sprintf("%s, %s, with session %v", route, what, cookie != ""), c) })
			}
		}
	}
	wg.Wait()
}

// A client that pipelines and reads nothing is disconnected.
func unreadResponsesEnd(t *testing.T, s *proc.Server, session string) {
	for _, route := range []string{"/healthz", "/login", "/metrics", "/api/v1/openapi.json", "/api/v1/session", "/", "/assets/nothing.css"} {
		t.Run(route, func(t *testing.T) {
			t.Parallel()
			request := "GET " + route + " HTTP/1.1\r\nHost: " + s.URL[len("http://"):] + "\r\nCookie: " + session + "\r\n\r\n"
			c, err := net.Dial("tcp", address(s))
			try(t, err)
			defer c.Close()
			try(t, c.(*net.TCPConn).SetReadBuffer(4096))
			_ = c.SetDeadline(time.Now().Add(harness.Patience))
			_, err = io.WriteString(c, strings.Repeat(request, 100))
			try(t, err)
			// The server's end of the connection disappears from the kernel's table of
			// sockets, or is no longer established; reading would change the result.
			harness.Eventually(t, "the server has closed the connection", func() bool { return !established(t, c) })
		})
	}
}

// A server that stops ends its event streams and logs them.
func TestStreamsEndWithServer(t *testing.T) {
	t.Parallel()
	s := serving(t, "")
	session := login(t, s)
	paths := []string{"/api/v1/events", "/dashboard/events"}
	var open []net.Conn
	for _, path := range paths {
		c := send(t, s, "GET "+path+" HTTP/1.1\r\nHost: "+s.URL[len("http://"):]+"\r\nCookie: "+session+"\r\n\r\n")
		lines := bufio.NewReader(c)
		for line := ""; !strings.HasPrefix(line, "event: "); {
			var err error
			line, err = lines.ReadString('\n')
			try(t, err)
		}
		open = append(open, c)
	}
	s.Stop()
	for i, c := range open {
		closed(t, paths[i], c)
	}
	<-s.Done()
	try(t, s.Err())
	for _, path := range paths {
		if !strings.Contains(s.Log(), "path="+path+" ") {
			t.Errorf("the request for %s is not in the log", path)
		}
	}
}

// established reports whether the server's end of a client's connection is established.
func established(t *testing.T, c net.Conn) bool {
	t.Helper()
	local, remote := c.LocalAddr().(*net.TCPAddr).Port, c.RemoteAddr().(*net.TCPAddr).Port
	table, err := os.ReadFile("/proc/net/tcp")
	try(t, err)
	server := fmt.Sprintf("0100007F:%04X 0100007F:%04X 01", remote, local)
	return strings.Contains(string(table), server)
}

// A server with few descriptors answers although clients hold all connections that it
// accepts.
func TestStalledClientsLeaveDescriptors(t *testing.T) {
	t.Parallel()
	s := serving(t, "ulimit -n 400", "CODEHUB_REQUEST_TIMEOUT=5s")
	host := s.URL[len("http://"):]
	for n := range 400 {
		c, err := net.Dial("tcp", address(s))
		if err != nil {
			continue // refused while it was being connected
		}
		t.Cleanup(func() { c.Close() })
		switch n % 3 {
		case 0:
			_, _ = fmt.Fprintf(c, "GET /healthz HTTP/1.1\r\nHost: %s\r\nContent-Length: 10\r\n\r\n", host)
		case 1:
			_, _ = fmt.Fprintf(c, "POST /api/v1/login HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{", host)
		case 2:
			_, _ = fmt.Fprintf(c, "GET /")
		}
	}
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	harness.EventuallyWithin(t, time.Minute, "/healthz is 200", func() bool {
		res, err := client.Get("http://" + address(s) + "/healthz")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
	if strings.Contains(s.Log(), "too many open files") {
		t.Error("the server ran out of descriptors")
	}
}

// login returns the administrator's cookie.
func login(t *testing.T, s *proc.Server) string {
	t.Helper()
	jar, err := cookiejar.New(nil)
	try(t, err)
	client := &http.Client{Jar: jar}
	var res *http.Response
	// On a busy machine the check of the password can last longer than the servers of these
	// tests allow a request.
	harness.Eventually(t, "the login is answered", func() bool {
		var err error
		res, err = client.Post("http://"+address(s)+"/api/v1/login", "application/json", strings.NewReader(`{"username":"admin","password":"`+proc.AdminPassword+`"}`))
		return err == nil
	})
	res.Body.Close()
	if res.StatusCode != http.StatusOK || len(res.Cookies()) == 0 {
		t.Fatalf("login: %s", res.Status)
	}
	return res.Cookies()[0].Name + "=" + res.Cookies()[0].Value
}
