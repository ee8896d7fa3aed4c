// Package redistest gives a test a Redis server of its own, which it can stop,
// start again, flush and freeze.
package redistest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"codehub/internal/testing/e2e/proc"
)

// patience bounds each step; a test machine may be busy.
const patience = time.Minute

// Server is a redis-server on a port of the loopback and on a Unix socket, both
// kept over restarts. It is gone with the test, and with the test's process,
// however that ends.
type Server struct {
	t    testing.TB
	dir  string
	addr string
	args []string
	opts redis.Options

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has ended
	log  bytes.Buffer
}

// New starts a server; args are further options, like "--requirepass", "secret".
// It fails the test if it cannot.
func New(t testing.TB, args ...string) *Server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Fatalf("start Redis for tests: %v (make test installs it)", err)
	}
	addr, err := proc.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "codehub-redis-")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, dir: dir, addr: addr, args: args, opts: redis.Options{Network: "unix", Addr: filepath.Join(dir, "s")}}
	for i, a := range args {
		if a == "--requirepass" && i+1 < len(args) {
			s.opts.Password = args[i+1]
		}
	}
	release, err := cleanUpAfter(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Stop()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
		release()
	})
	s.Start()
	return s
}

// Addr is the server's host:port.
func (s *Server) Addr() string { return s.addr }

// Socket is the path of the server's Unix socket.
func (s *Server) Socket() string { return s.opts.Addr }

// URL is the server's address as a setting, with the password if it has one.
func (s *Server) URL() string {
	u := url.URL{Scheme: "redis", Host: s.addr, Path: "/0"}
	if s.opts.Password != "" {
		u.User = url.UserPassword("", s.opts.Password)
	}
	return u.String()
}

// Start starts the server, which is stopped, and waits until it answers.
func (s *Server) Start() {
	s.t.Helper()
	_, port, err := net.SplitHostPort(s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	args := append([]string{
		"--port", port, "--bind", "127.0.0.1", "--unixsocket", s.opts.Addr, "--dir", s.dir,
		"--pidfile", filepath.Join(s.dir, "pid"), "--daemonize", "no", "--save", "", "--appendonly", "no", "--loglevel", "warning",
	}, s.args...)
	cmd := exec.Command("redis-server", args...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = &s.log, &s.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		s.t.Fatalf("start Redis: %v", err)
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	s.mu.Lock()
	s.cmd, s.done = cmd, done
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		if err = s.listens(ctx); err == nil {
			if err = s.do(ctx, "PING"); err == nil {
				return
			}
		}
		select {
		case <-done:
			s.t.Fatalf("Redis ended at its start:\n%s", s.log.String())
		case <-ctx.Done():
			s.t.Fatalf("Redis does not answer: %v", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// listens saves the client from complaining about a server that only starts.
func (s *Server) listens(ctx context.Context) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, s.opts.Network, s.opts.Addr)
	if err != nil {
		return err
	}
	return c.Close()
}

// Stop kills the server, which forgets everything unless it was told to save.
// It may be called when it is stopped.
func (s *Server) Stop() {
	s.mu.Lock()
	cmd, done := s.cmd, s.done
	s.cmd = nil
	s.mu.Unlock()
	if cmd == nil {
		return
	}
	_ = cmd.Process.Kill() // a frozen one, too
	<-done
}

// Restart stops and starts the server.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	s.Start()
}

// Flush has the server forget everything.
func (s *Server) Flush() {
	s.t.Helper()
	s.Do("FLUSHALL")
}

// Do sends a command to the server.
func (s *Server) Do(args ...any) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.do(ctx, args...); err != nil {
		s.t.Fatalf("%v: %v", args, err)
	}
}

// do uses a connection of its own: one that was kept would be found by a test
// that looks for leaks.
func (s *Server) do(ctx context.Context, args ...any) error {
	c := s.Client()
	defer c.Close()
	if err := c.Do(ctx, args...).Err(); err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	return nil
}

// Client is a client of the server's, which the caller closes.
func (s *Server) Client() *redis.Client {
	opts := s.opts
	opts.DialerRetries, opts.MaxRetries, opts.DisableIdentity = 1, -1, true
	return redis.NewClient(&opts)
}

// Freeze stops the server's process where it is: connections stay open, and
// nothing is answered.
func (s *Server) Freeze() {
	s.t.Helper()
	s.signal(syscall.SIGSTOP)
}

// Thaw lets a frozen server go on.
func (s *Server) Thaw() {
	s.t.Helper()
	s.signal(syscall.SIGCONT)
}

func (s *Server) signal(sig syscall.Signal) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		s.t.Fatal("Redis is stopped")
	}
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// caretaker waits for the end of its standard input, which is the end of the
// test process or of the test, and then ends the server in the folder $1.
const caretaker = `
trap '' HUP INT TERM
read -r _
[ -e "$1" ] || exit
sleep 0.3
read -r pid <"$1/pid" && kill -KILL "$pid"
rm -rf -- "$1"
`

// cleanUpAfter sees that the server does not outlive a test process that is
// killed or runs into its time limit. release ends the watch.
func cleanUpAfter(dir string) (release func(), err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("watch for the end of the tests: %w", err)
	}
	defer r.Close()
	cmd := exec.Command("/bin/sh", "-c", caretaker, "sh", dir)
	cmd.Stdin, cmd.Dir = r, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("watch for the end of the tests: %w", err), w.Close())
	}
	return func() {
		_ = w.Close()
		_ = cmd.Wait()
	}, nil
}
