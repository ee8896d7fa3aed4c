package inside

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/crypto/ssh"
	sshagent "golang.org/x/crypto/ssh/agent"

	"codehub/api"
	"codehub/client"
	"codehub/internal/runtime/agent"
	"codehub/internal/runtime/agent/busy"
)

const (
	// maxSSHConns limits the connections to the socket of the SSH key. More wait.
	maxSSHConns = 32
	// keyPatience is how long after its start an agent waits for its first settings and for a
	// server, which connects once the IDE listens: steps of the setup run before.
	keyPatience = 2 * time.Minute
	// signPatience is how long a signature may take.
	signPatience = 20 * time.Second
	dialPause    = 100 * time.Millisecond
)

// serveSSH serves the owner's SSH key until stop. Without it the agent works all the same.
func (s *Server) serveSSH() (stop func()) {
	if s.cfg.SSHSocket == "" {
		return func() {}
	}
	l, err := busy.Listen(s.cfg.SSHSocket)
	if err == nil {
		err = os.Chmod(s.cfg.SSHSocket, 0o600)
	}
	if err != nil {
		s.cfg.Log.Warn("listen for the use of the SSH key failed", "err", err)
		return func() {}
	}
	go func() {
		slots := make(chan struct{}, maxSSHConns)
		for {
			slots <- struct{}{}
			conn, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				s.cfg.Log.Debug("accept a use of the SSH key failed", "err", err)
				time.Sleep(dialPause) // out of file descriptors
				<-slots
				continue
			}
			go func() {
				defer func() { <-slots }()
				defer conn.Close()
				_ = sshagent.ServeAgent(ownersKey{s}, conn) // its end, however it comes, is the client's
			}()
		}
	}()
	return func() { l.Close() }
}

// ownersKey offers the SSH key of the workspace's owner, whose private part the server has. Keys
// are neither added nor removed.
type ownersKey struct{ s *Server }

var errReadOnly = errors.New("codehub's agent takes no keys; run an ssh-agent of your own for them")

// List implements sshagent.Agent.
func (k ownersKey) List() ([]*sshagent.Key, error) {
	g := k.s.awaitGit()
	if g.Refused != "" {
		k.s.cfg.Log.Warn("SSH key not offered", "reason", oneLine(g.Refused))
	}
	if g.Key == "" {
		return nil, nil
	}
	public, _, _, _, err := ssh.ParseAuthorizedKey([]byte(g.Key))
	if err != nil {
		return nil, err
	}
	return []*sshagent.Key{{Format: public.Type(), Blob: public.Marshal(), Comment: "codehub"}}, nil
}

// awaitGit returns the settings. At the start it waits for the first ones.
func (s *Server) awaitGit() agent.Git {
	t := time.NewTimer(time.Until(s.git.began.Add(keyPatience)))
	defer t.Stop()
	select {
	case <-s.git.given:
	case <-t.C:
	}
	s.git.mu.Lock()
	defer s.git.mu.Unlock()
	return s.git.now
}

// Sign implements sshagent.Agent.
func (k ownersKey) Sign(key ssh.PublicKey, data []byte) (*ssh.Signature, error) {
	signed, err := k.s.sign(key, data)
	if err != nil {
		k.s.cfg.Log.Warn("signature with the SSH key failed", "err", err)
	}
	return signed, err
}

func (s *Server) sign(key ssh.PublicKey, data []byte) (*ssh.Signature, error) {
	if len(data) > agent.MaxSignedData {
		return nil, fmt.Errorf("at most %d bytes are signed at once", agent.MaxSignedData)
	}
	ctx, cancel := context.WithTimeout(context.Background(), signPatience)
	defer cancel()
	c, err := client.New("http://codehub", "", client.WithUserAgent("codehub-agent/"+s.cfg.Version), client.WithHTTPClient(&http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, // the connections of a workspace are few
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return s.dialServer(ctx) },
	}}))
	if err != nil {
		return nil, err
	}
	public := string(bytes.TrimSpace(ssh.MarshalAuthorizedKey(key)))
	answer, err := c.SignWithGitKey(ctx, s.cfg.Workspace, api.GitSignatureRequest{PublicKey: public, Data: base64.StdEncoding.EncodeToString(data)})
	if err != nil {
		return nil, err
	}
	blob, err := base64.StdEncoding.DecodeString(answer.Signature)
	if err != nil {
		return nil, fmt.Errorf("read the signature: %w", err)
	}
	return &ssh.Signature{Format: answer.Format, Blob: blob}, nil
}

// dialServer connects to the server that listens for the workspace. At the start it waits for one.
func (s *Server) dialServer(ctx context.Context) (net.Conn, error) {
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", s.cfg.ClientSocket)
		if err == nil || ctx.Err() != nil || time.Since(s.git.began) > keyPatience {
			return conn, err
		}
		t := time.NewTimer(dialPause)
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
	}
}

// Add implements sshagent.Agent.
func (ownersKey) Add(sshagent.AddedKey) error { return errReadOnly }

// Remove implements sshagent.Agent.
func (ownersKey) Remove(ssh.PublicKey) error { return errReadOnly }

// RemoveAll implements sshagent.Agent.
func (ownersKey) RemoveAll() error { return errReadOnly }

// Lock implements sshagent.Agent.
func (ownersKey) Lock([]byte) error { return errReadOnly }

// Unlock implements sshagent.Agent.
func (ownersKey) Unlock([]byte) error { return errReadOnly }

// Signers implements sshagent.Agent.
func (ownersKey) Signers() ([]ssh.Signer, error) { return nil, errReadOnly }
