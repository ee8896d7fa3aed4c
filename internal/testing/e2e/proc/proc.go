// Package proc runs the real codehub binary as a process of its own, for
// end-to-end tests and benchmarks.
package proc

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// AdminPassword is the password of admin on every server of this package.
const AdminPassword = "correct horse battery"

// Options are the options of a server.
type Options struct {
	Binary  string // path of the codehub binary
	DataDir string
	Listen  string // empty: a free port of 127.0.0.1, which restarts keep
	// URL is codehub's own address, and Client reaches it. Empty: http on localhost.
	URL    string
	Client *http.Client
	Env    []string // further settings, NAME=value
	Log    io.Writer
}

// Server is one codehub process. It can be killed and started again on the same
// data.
type Server struct {
	opts Options
	URL  string

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{}
	err  error
	log  *tail

	closed bool

	installation string // read from the log's beginning, which tail drops later
}

// New prepares a server without starting it.
func New(opts Options) (*Server, error) {
	if opts.Binary == "" {
		return nil, errors.New("no binary given: build it (make build) and set CODEHUB_TEST_BINARY")
	}
	if _, err := os.Stat(opts.Binary); err != nil {
		return nil, fmt.Errorf("codehub binary: %w (build it with make build)", err)
	}
	if opts.Listen == "" {
		var err error
		if opts.Listen, err = FreeAddress(); err != nil {
			return nil, err
		}
	}
	_, port, err := net.SplitHostPort(opts.Listen)
	if err != nil {
		return nil, err
	}
	return &Server{opts: opts, URL: cmp.Or(opts.URL, "http://localhost:"+port), log: &tail{}}, nil
}

// FreeAddress returns a loopback address on which nothing listens. Its port
// lies below the kernel's ephemeral range, so that no outgoing connection takes
// it, and stays reserved for this process until that ends: no other caller, in
// this test binary or another one, is given the same port.
func FreeAddress() (string, error) {
	const first, last = 20000, 32767
	for range 100 {
		port := first + rand.IntN(last-first+1)
		if !reserve(port) {
			continue
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			defer l.Close()
			return l.Addr().String(), nil
		}
	}
	return "", fmt.Errorf("no port from %d to %d is free", first, last)
}

// reserve binds an abstract Unix socket named after the port and reports
// whether no process had bound it before. The socket is left open on purpose:
// the kernel closes it with the process.
func reserve(port int) bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("@codehub-test-port-%d", port)}); err != nil {
		unix.Close(fd)
		return false
	}
	return true
}

// Set adds a setting, NAME=value, for the next start of the process.
func (s *Server) Set(setting string) { s.opts.Env = append(s.opts.Env, setting) }

// Start starts the process and waits until /readyz answers 200.
func (s *Server) Start(ctx context.Context) error {
	if err := s.Launch(); err != nil {
		return err
	}
	return s.AwaitReady(ctx)
}

// Launch starts the process without waiting until it is ready.
func (s *Server) Launch() error {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return errors.New("start codehub: the server is closed")
	}
	cmd := exec.Command(s.opts.Binary, "serve")
	cmd.Env = append(clean(os.Environ()),
		"CODEHUB_LISTEN="+s.opts.Listen, "CODEHUB_URL="+s.URL, "CODEHUB_DATA_DIR="+s.opts.DataDir,
		"CODEHUB_ADMIN_PASSWORD="+AdminPassword, "CODEHUB_LOG_LEVEL=debug",
		"CODEHUB_ALLOW_HTTP=true") // several accounts
	cmd.Env = append(cmd.Env, s.opts.Env...)
	var w io.Writer = s.log
	if s.opts.Log != nil {
		w = io.MultiWriter(s.log, s.opts.Log)
	}
	cmd.Stdout, cmd.Stderr = w, w
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start codehub: %w", err)
	}
	done := make(chan struct{})
	s.mu.Lock()
	s.cmd, s.done = cmd, done
	s.mu.Unlock()
	go func() {
		err := cmd.Wait()
		s.mu.Lock()
		s.err = err
		s.mu.Unlock()
		close(done)
	}()
	return nil
}

// clean removes codehub's settings from the environment of the tests.
func clean(env []string) []string {
	var out []string
	for _, kv := range env {
		if !strings.HasPrefix(kv, "CODEHUB_") && !strings.HasPrefix(kv, "MAX_RUNNING_") {
			out = append(out, kv)
		}
	}
	return out
}

// AwaitReady waits until the server answers /readyz with 200, or has ended.
func (s *Server) AwaitReady(ctx context.Context) error {
	address := cmp.Or(s.opts.URL, "http://"+s.opts.Listen)
	client := cmp.Or(s.opts.Client, http.DefaultClient)
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, address+"/readyz", nil)
		if err != nil {
			return err
		}
		if resp, err := client.Do(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				s.Installation()
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("codehub did not become ready: %w\n%s", ctx.Err(), s.Excerpt())
		case <-s.Done():
			return fmt.Errorf("codehub ended while it started: %v\n%s", s.Err(), s.Excerpt())
		case <-t.C:
		}
	}
}

// Done is closed when the process has ended.
func (s *Server) Done() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done
}

// Err returns the error with which the process ended.
func (s *Server) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Pid returns the process id of the server.
func (s *Server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cmd.Process.Pid
}

// Kill sends SIGKILL to the process and waits for its end.
func (s *Server) Kill() { s.signal(syscall.SIGKILL) }

// Stop sends SIGTERM to the process and waits for its end, after 60 s with
// SIGKILL.
func (s *Server) Stop() { s.signal(syscall.SIGTERM) }

func (s *Server) signal(sig syscall.Signal) {
	s.mu.Lock()
	cmd, done := s.cmd, s.done
	s.mu.Unlock()
	if cmd == nil {
		return
	}
	_ = cmd.Process.Signal(sig)
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		_ = cmd.Process.Kill()
		<-done
	}
}

// Close stops the process for good, and the embedded database that it may have
// left.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.Stop()
	stopLeftDatabase(s.opts.DataDir)
}

// stopLeftDatabase stops an embedded PostgreSQL that a killed server left
// running and no other server uses.
func stopLeftDatabase(dataDir string) {
	pids, _ := filepath.Glob(filepath.Join(dataDir, "*", "postmaster.pid"))
	more, _ := filepath.Glob(filepath.Join(dataDir, "*", "*", "postmaster.pid"))
	for _, f := range append(pids, more...) {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(string(b), "%d", &pid); err != nil || pid <= 1 {
			continue
		}
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err == nil && strings.TrimSpace(string(name)) == "postgres" {
			_ = syscall.Kill(pid, syscall.SIGQUIT)
		}
	}
}

// Log returns the last part of the output of the process.
func (s *Server) Log() string { return s.log.String() }

// Excerpt returns what of the log says why a test failed: the last 20 warnings and errors,
// and the last 20 lines without those of requests.
func (s *Server) Excerpt() string {
	var troubles, rest []string
	for line := range strings.Lines(s.Log()) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.Contains(line, " level=WARN ") || strings.Contains(line, " level=ERROR "):
			troubles = append(troubles, line)
		case strings.Contains(line, " msg=request "):
			continue
		}
		rest = append(rest, line)
	}
	const most = 20
	rest = rest[max(0, len(rest)-most):]
	troubles = slices.DeleteFunc(troubles, func(line string) bool { return slices.Contains(rest, line) })
	troubles = troubles[max(0, len(troubles)-most):]
	return strings.Join(slices.Concat([]string{"--- warnings and errors before its last lines:"}, troubles, []string{"--- its last lines, without requests:"}, rest, []string{"--- end of the log"}), "\n")
}

// tail keeps the last part of what is written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if len(t.b) > 1<<20 {
		t.b = bytes.Clone(t.b[len(t.b)-1<<19:])
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}
