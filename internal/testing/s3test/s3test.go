// Package s3test runs a real S3 server, versitygw, on the loopback for tests.
// A test on a machine without it fails, saying what is missing.
package s3test

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"codehub/internal/testing/e2e/proc"
)

// Version is the server that the tests are known to pass with.
const (
	Version = "v1.8.0"
	module  = "github.com/versity/versitygw/cmd/versitygw"
)

// The account of every server.
const (
	AccessKey = "codehub-test"
	SecretKey = "codehub-test-secret"
)

// Server is an S3 server with one account.
type Server struct {
	Endpoint  string // http://127.0.0.1:port
	AccessKey string
	SecretKey string

	dir    string
	binary string
	mu     sync.Mutex
	cmd    *exec.Cmd
}

// Start starts a server in a folder of the test's own, with these buckets. A test that does not
// stop its server uses Share instead.
func Start(tb testing.TB, buckets ...string) *Server {
	tb.Helper()
	s, err := start(tb.TempDir(), buckets)
	if err != nil {
		tb.Fatalf("S3 server for tests: %v", err)
	}
	tb.Cleanup(s.Stop)
	return s
}

// shared is the server of Share, and the number of tests that use it.
var shared struct {
	sync.Mutex
	server *Server
	tests  int
}

// Share returns a server that has one bucket. Tests that run at the same time share it, so each
// uses a prefix of its own.
func Share(tb testing.TB, bucket string) *Server {
	tb.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		dir, err := os.MkdirTemp("", "s3test-")
		if err != nil {
			tb.Fatalf("S3 server for tests: %v", err)
		}
		s, err := start(dir, []string{bucket})
		if err != nil {
			_ = os.RemoveAll(dir)
			tb.Fatalf("S3 server for tests: %v", err)
		}
		shared.server = s
	}
	shared.tests++
	tb.Cleanup(func() {
		shared.Lock()
		defer shared.Unlock()
		if shared.tests--; shared.tests == 0 {
			shared.server.Stop()
			_ = os.RemoveAll(shared.server.dir)
			shared.server = nil
		}
	})
	return shared.server
}

// start starts a server with these buckets in a folder.
func start(dir string, buckets []string) (*Server, error) {
	binary, err := find()
	if err != nil {
		return nil, err
	}
	address, err := proc.FreeAddress()
	if err != nil {
		return nil, err
	}
	s := &Server{Endpoint: "http://" + address, AccessKey: AccessKey, SecretKey: SecretKey, dir: dir, binary: binary}
	for _, b := range buckets {
		if err := os.Mkdir(filepath.Join(s.dir, b), 0o755); err != nil {
			return nil, err
		}
	}
	return s, s.Run()
}

// URL is a CODEHUB_ARCHIVE_URL for a bucket and prefix of the server.
func (s *Server) URL(bucketAndPrefix string) string {
	q := url.Values{"endpoint": {s.Endpoint}, "region": {"us-east-1"}, "path-style": {"true"}}
	return "s3://" + bucketAndPrefix + "?" + q.Encode()
}

// Env is what a process needs in its environment to use the server.
func (s *Server) Env() []string {
	return []string{"AWS_ACCESS_KEY_ID=" + s.AccessKey, "AWS_SECRET_ACCESS_KEY=" + s.SecretKey}
}

// BucketDir is the folder in which the server keeps a bucket's objects.
func (s *Server) BucketDir(bucket string) string { return filepath.Join(s.dir, bucket) }

// Run starts the server, again where it was before if it was stopped, and waits
// until it answers.
func (s *Server) Run() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd != nil {
		return nil
	}
	cmd := exec.Command(s.binary, "--port", strings.TrimPrefix(s.Endpoint, "http://"), "--quiet", "posix", s.dir)
	cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+s.AccessKey, "ROOT_SECRET_KEY="+s.SecretKey)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", s.binary, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	client := &http.Client{Timeout: 2 * time.Second}
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		select {
		case err := <-ended:
			return fmt.Errorf("%s ended: %w: %s", s.binary, err, said.String())
		case <-time.After(20 * time.Millisecond):
		}
		res, err := client.Get(s.Endpoint + "/")
		if err == nil {
			res.Body.Close()
			s.cmd = cmd
			return nil
		}
	}
	_ = cmd.Process.Kill()
	<-ended
	return fmt.Errorf("%s did not answer within 30 s: %s", s.binary, said.String())
}

// Stop ends the server as a crash would. Its objects stay.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	for s.cmd.Process.Signal(syscall.Signal(0)) == nil {
		time.Sleep(5 * time.Millisecond)
	}
	s.cmd = nil
}

// find returns the server's binary: from PATH, from where Go installs, or built
// now, once for all test processes.
func find() (string, error) {
	if path, err := exec.LookPath("versitygw"); err == nil {
		return path, nil
	}
	out, err := exec.Command("go", "env", "GOBIN", "GOPATH").Output()
	if err != nil {
		return "", errors.New("versitygw is missing, and there is no go to build it with: put versitygw into PATH")
	}
	lines := strings.Split(string(out), "\n")
	bin := lines[0]
	if bin == "" {
		bin = filepath.Join(filepath.SplitList(lines[1])[0], "bin")
	}
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(bin, "versitygw")
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	install := exec.Command("go", "install", module+"@"+Version)
	// The module of the test must not have a say in how another is built.
	install.Dir = os.TempDir()
	install.Env = append(os.Environ(), "GOFLAGS=", "GOBIN="+bin)
	if said, err := install.CombinedOutput(); err != nil {
		return "", fmt.Errorf("versitygw is missing and cannot be built (go install %s@%s): %w: %s", module, Version, err, said)
	}
	return path, nil
}
