package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"codehub/api"
	codehub "codehub/client"
	"codehub/internal/e2e/proc"
	"codehub/internal/harness"
	"codehub/internal/pgtest"
	"codehub/internal/postgres/embedded"
)

// Of two servers on one database one leads and both serve. When the leader is
// killed, the other one takes over.
func TestStandbyServerTakesOver(t *testing.T) {
	t.Parallel()
	settings := append(folderBucket(t).settings, "CODEHUB_DATABASE_URL="+pgtest.New(t, nil), "CODEHUB_DELETE_GRACE=0s")
	first := start(t, settings...)
	second := start(t, settings...)
	harness.Eventually(t, "the second server is on standby", func() bool { return strings.Contains(second.Log(), "standing by") })
	if strings.Contains(second.Log(), "msg=leading") {
		t.Fatal("the second server leads")
	}
	id := second.create(api.CreateWorkspace{Name: "one"}) // requested from the standby, reconciled by the leader
	second.awaitPhase(id, "RUNNING")
	second.write(id, "work")
	before := second.containerOf(id)
	first.Kill()
	another := second.create(api.CreateWorkspace{Name: "two"})
	second.awaitPhase(another, "RUNNING")
	if after := second.containerOf(id); after != before {
		t.Errorf("the running container was %s, after the change of the leader it is %s", before, after)
	}
	second.expect(id, "work")
	first.restart()
	second.remove(id)
	second.remove(another)
}

// While the external database is down, running workspaces stay reachable.
// Afterwards the server continues.
func TestDatabaseRestart(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "codehub-pg-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var db *embedded.Server
	startDB := func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if db, err = embedded.Start(ctx, embedded.Config{Dir: dir}); err != nil {
			t.Fatal(err)
		}
	}
	stopDB := func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := db.Stop(ctx); err != nil {
			t.Error(err)
		}
	}
	startDB()
	t.Cleanup(func() { stopDB() })
	s := start(t, "CODEHUB_DATABASE_URL="+db.URL(), "CODEHUB_DELETE_GRACE=0s")
	id := s.create(api.CreateWorkspace{Name: "one"})
	s.awaitPhase(id, "RUNNING")
	s.write(id, "work")
	for range 2 {
		s.login("admin", proc.AdminPassword)
		s.expect(id, "work") // from here on the server needs no database for a minute to know the token
		stopDB()
		time.Sleep(2 * time.Second) // long enough for the server to notice
		s.expect(id, "work")        // running workspaces stay reachable
		startDB()
		s.retrySetDesired(id, "STANDBY")
		s.awaitPhase(id, "STANDBY")
		s.setDesired(id, "RUNNING")
		s.awaitPhase(id, "RUNNING")
		s.expect(id, "work")
	}
	select {
	case <-s.Done():
		t.Errorf("the server ended: %v", s.Err())
	default:
	}
	s.remove(id)
}

// retrySetDesired repeats the request while the server answers 503, because the
// database is down.
func (s *server) retrySetDesired(id, desired string) {
	s.Helper()
	deadline := time.Now().Add(patience)
	for {
		_, err := s.api.Want(s.Context(), id, desired, true)
		var e *codehub.Error
		switch {
		case err == nil:
			return
		case !errors.As(err, &e) || e.Status != http.StatusServiceUnavailable:
			s.Fatalf("the request without a database failed with %v, want 503", err)
		case time.Now().After(deadline):
			s.Fatalf("the server has not recovered: %v", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// dockerRelay is a proxy between a server and Docker. While it is frozen, it
// accepts connections and forwards nothing.
type dockerRelay struct {
	host string

	mu   sync.Mutex
	gate chan struct{} // nil: data passes
}

func newDockerRelay(t *testing.T) *dockerRelay {
	t.Helper()
	dir, err := os.MkdirTemp("", "chr") // short, because the length of a socket's path is limited
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "d.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	d := &dockerRelay{host: "unix://" + path}
	t.Cleanup(func() {
		d.thaw()
		l.Close()
		os.RemoveAll(dir)
	})
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go d.serve(c)
		}
	}()
	return d
}

func (d *dockerRelay) serve(c net.Conn) {
	defer c.Close()
	d.wait()
	u, err := net.Dial("unix", "/var/run/docker.sock")
	if err != nil {
		return
	}
	defer u.Close()
	go func() {
		d.pass(u, c)
		u.(*net.UnixConn).CloseWrite()
	}()
	d.pass(c, u)
}

func (d *dockerRelay) pass(to io.Writer, from io.Reader) {
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		d.wait()
		if n > 0 {
			if _, err := to.Write(b[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (d *dockerRelay) wait() {
	d.mu.Lock()
	hold := d.gate
	d.mu.Unlock()
	if hold != nil {
		<-hold
	}
}

func (d *dockerRelay) freeze() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.gate = make(chan struct{})
}

func (d *dockerRelay) thaw() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gate != nil {
		close(d.gate)
		d.gate = nil
	}
}

// While Docker accepts requests and does not answer, workspaces keep running,
// none is in ERROR, and the server logs the failure. Afterwards operations
// continue.
func TestServerWhileDockerHangs(t *testing.T) {
	t.Parallel()
	relay := newDockerRelay(t)
	s := start(t, "DOCKER_HOST="+relay.host, "CODEHUB_DELETE_GRACE=0s")
	s.docker = env.docker
	id := s.create(api.CreateWorkspace{Name: "one"})
	s.awaitPhase(id, "RUNNING")
	s.write(id, "work")
	relay.freeze()
	other := s.create(api.CreateWorkspace{Name: "two"})
	deadline := time.Now().Add(patience)
	for !strings.Contains(s.Log(), "observation failed") {
		if time.Now().After(deadline) {
			t.Fatal("the server did not log that the observation failed")
		}
		time.Sleep(100 * time.Millisecond)
	}
	s.expect(id, "work")
	for _, id := range []string{id, other} {
		if w, err := s.api.Get(t.Context(), id); err != nil || w.Phase == "ERROR" || w.ErrorCount != 0 {
			t.Errorf("%s is %s with %d failures while Docker hangs: %v", w.Name, w.Phase, w.ErrorCount, err)
		}
	}
	relay.thaw()
	s.awaitPhase(other, "RUNNING")
	s.remove(id)
	s.remove(other)
}

// A shutdown ends within its timeout with an open event stream, a followed log
// and a WebSocket, and while Docker does not answer.
func TestShutdownIsBounded(t *testing.T) {
	t.Parallel()
	relay := newDockerRelay(t)
	s := start(t, "DOCKER_HOST="+relay.host, "CODEHUB_SHUTDOWN_TIMEOUT=3s")
	s.docker = env.docker
	id := s.create(api.CreateWorkspace{Name: "one"})
	s.awaitPhase(id, "RUNNING")
	s.openStream("/api/v1/events", "event:")
	s.openStream("/api/v1/workspaces/"+id+"/logs?follow=true", "")
	s.openWebSocket(id)
	relay.freeze()
	s.create(api.CreateWorkspace{Name: "two"}) // an operation is running at the shutdown
	began := time.Now()
	s.Stop()
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the shutdown took %s, want at most 20 s", took)
	}
	if err := s.Err(); err != nil {
		t.Errorf("the server ended with %v", err)
	}
	if !strings.Contains(s.Log(), "postgres stopped") {
		t.Error("the embedded database was left running")
	}
}

// openStream opens an endless response and returns after its first line.
func (s *server) openStream(path, first string) {
	s.Helper()
	req, err := http.NewRequestWithContext(s.Context(), http.MethodGet, s.URL+path, nil)
	if err != nil {
		s.Fatal(err)
	}
	req.Header.Set(api.TokenHeader, s.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		s.Fatalf("GET %s: %s", path, resp.Status)
	}
	if first == "" {
		return
	}
	if line, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil || !strings.HasPrefix(line, first) {
		s.Fatalf("GET %s began with %q, %v", path, line, err)
	}
}

func (s *server) openWebSocket(id string) {
	s.Helper()
	addr := strings.TrimPrefix(s.URL, "http://")
	c, err := net.Dial("tcp", addr)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { c.Close() })
	fmt.Fprintf(c, "GET /w/%s/ws HTTP/1.1\r\nHost: %s\r\nOrigin: %s\r\n%s: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", id, addr, s.URL, api.TokenHeader, s.token)
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil || !strings.Contains(line, " 101 ") {
		s.Fatalf("WebSocket: %q, %v", line, err)
	}
}

// A server that is killed several times during its start, at random moments,
// starts in the end with all data.
func TestKilledWhileStarting(t *testing.T) {
	t.Parallel()
	s := start(t, "CODEHUB_DELETE_GRACE=0s")
	id := s.create(api.CreateWorkspace{Name: "one"})
	s.awaitPhase(id, "RUNNING")
	s.write(id, "work")
	before := s.containerOf(id)
	for i := range 8 {
		if i%2 == 0 {
			s.Stop() // stops the database as well, so that the next start includes it
		} else {
			s.Kill()
		}
		if err := s.Launch(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(rand.N(400 * time.Millisecond)) // any moment
		s.Kill()
	}
	s.restart()
	s.awaitPhase(id, "RUNNING")
	s.expect(id, "work")
	if after := s.containerOf(id); after != before {
		t.Errorf("the running container was %s, now it is %s", before, after)
	}
	s.remove(id)
}

// The embedded database is killed, by SIGKILL and SIGQUIT. Running workspaces
// stay reachable, and the server recovers.
func TestServerSurvivesEmbeddedDatabaseFailure(t *testing.T) {
	t.Parallel()
	s := start(t, "CODEHUB_DELETE_GRACE=0s")
	id := s.create(api.CreateWorkspace{Name: "one"})
	s.awaitPhase(id, "RUNNING")
	s.write(id, "work")
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGQUIT} {
		b, err := os.ReadFile(filepath.Join(s.home, "postgres", "data", "postmaster.pid"))
		if err != nil {
			t.Fatal(err)
		}
		var pid int
		if _, err := fmt.Sscan(string(b), &pid); err != nil || pid <= 1 {
			t.Fatalf("read postmaster.pid: %v", err)
		}
		if err := syscall.Kill(pid, sig); err != nil {
			t.Fatal(err)
		}
		// The proxy serves the workspace, or answers 503.
		status, body := s.ide(http.MethodGet, id, "/file?path=notes.txt", "")
		if (status != http.StatusOK || body != "work") && status != http.StatusServiceUnavailable {
			t.Errorf("the proxy without a database answered %d %s", status, body)
		}
		s.retrySetDesired(id, "STANDBY")
		s.awaitPhase(id, "STANDBY")
		s.setDesired(id, "RUNNING")
		s.awaitPhase(id, "RUNNING")
		s.expect(id, "work")
	}
	s.remove(id)
}
