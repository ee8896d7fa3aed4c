// Package gittest has Git servers for tests.
package gittest

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"
)

// SSHServer serves the bare repository /repo.git to clients whose keys it knows.
type SSHServer struct {
	Addr string

	t   testing.TB
	dir string

	mu   sync.Mutex
	keys []string
}

// ServeSSH starts an SSHServer on a loopback address. At first it knows no key.
func ServeSSH(t testing.TB) *SSHServer {
	t.Helper()
	s := &SSHServer{t: t, dir: t.TempDir()}
	if out, err := exec.CommandContext(t.Context(), "git", "init", "-q", "--bare", filepath.Join(s.dir, "repo.git")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	host, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cfg := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, k := range s.keys {
			if k == strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))) {
				return nil, nil
			}
		}
		return nil, errors.New("an unknown key")
	}}
	cfg.AddHostKey(host)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.Addr = l.Addr().String()
	var all sync.WaitGroup
	t.Cleanup(func() { l.Close(); all.Wait() })
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { s.serve(c, cfg) })
		}
	})
	return s
}

func (s *SSHServer) serve(c net.Conn, cfg *ssh.ServerConfig) {
	defer c.Close()
	conn, channels, requests, err := ssh.NewServerConn(c, cfg)
	if err != nil {
		return
	}
	defer conn.Close()
	go ssh.DiscardRequests(requests)
	for n := range channels {
		ch, requests, err := n.Accept()
		if err != nil {
			return
		}
		for r := range requests {
			var command struct{ Line string }
			ok := r.Type == "exec" && ssh.Unmarshal(r.Payload, &command) == nil
			_ = r.Reply(ok, nil)
			if !ok {
				continue
			}
			program, path, _ := strings.Cut(command.Line, " ")
			cmd := exec.CommandContext(s.t.Context(), program, filepath.Join(s.dir, filepath.Base(strings.Trim(path, "'"))))
			in, err := cmd.StdinPipe()
			if err != nil {
				return
			}
			cmd.Stdout, cmd.Stderr = ch, ch.Stderr()
			go func() { _, _ = io.Copy(in, ch); in.Close() }()
			_ = cmd.Run()
			_, _ = ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{uint32(cmd.ProcessState.ExitCode())}))
			ch.Close()
		}
	}
}

// Allow sets the keys, as in authorized_keys.
func (s *SSHServer) Allow(keys ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = keys
}
