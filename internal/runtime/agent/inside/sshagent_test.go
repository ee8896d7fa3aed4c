package inside_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"

	"codehub/api"
	"codehub/internal/runtime/agent"
	"codehub/internal/runtime/agent/inside"
	"codehub/internal/testing/harness"
)

// gitWorld is an agent with the sockets of a workspace, and a server that signs.
type gitWorld struct {
	*agent.Client
	t                    *testing.T
	home, socket, config string
	signer               ssh.Signer
	key                  string // public

	mu      sync.Mutex
	refused bool
	asked   int
}

func (w *gitWorld) sign(out http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked++
	var in api.GitSignatureRequest
	data := json.NewDecoder(r.Body).Decode(&in)
	raw, err := base64.StdEncoding.DecodeString(in.Data)
	switch {
	case data != nil || err != nil || in.PublicKey != w.key || r.URL.Path != "/api/v1/workspaces/one/git-signature":
		w.t.Errorf("%v, %v, %+v of %s", data, err, in, r.URL)
		out.WriteHeader(http.StatusBadRequest)
	case w.refused:
		out.Header().Set("Content-Type", "application/json")
		out.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(out, `{"error":"forbidden","message":"The workspace is shared."}`)
	default:
		signed, err := w.signer.Sign(rand.Reader, raw)
		if err != nil {
			w.t.Error(err)
			return
		}
		_ = json.NewEncoder(out).Encode(api.GitSignature{Format: signed.Format, Signature: base64.StdEncoding.EncodeToString(signed.Blob)})
	}
}

type buffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *buffer) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.String()
}

func newGitWorld(t *testing.T, log io.Writer) *gitWorld {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	w := &gitWorld{t: t, home: t.TempDir()}
	if w.signer, err = ssh.NewSignerFromKey(private); err != nil {
		t.Fatal(err)
	}
	line, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	w.key = strings.TrimSpace(string(ssh.MarshalAuthorizedKey(line)))
	dir, err := os.MkdirTemp("", "git") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	w.socket, w.config = filepath.Join(dir, "x", "ssh-agent.sock"), filepath.Join(dir, "memory", "gitconfig")
	upstream, err := net.Listen("unix", filepath.Join(dir, "client.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: upstream, Config: &http.Server{Handler: http.HandlerFunc(w.sign)}}
	server.Start()
	t.Cleanup(server.Close)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.Client = &agent.Client{Addr: l.Addr().String(), Secret: secret}
	s := inside.NewServer(inside.Config{
		Secret: secret, Version: "test", Home: w.home, Processes: &inside.Processes{}, Log: slog.New(slog.NewTextHandler(log, nil)),
		GitConfig: w.config, SSHSocket: w.socket, ClientSocket: filepath.Join(dir, "client.sock"), Workspace: "one",
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() { l.Close(); <-done })
	harness.Eventually(t, "the socket is there", func() bool { _, err := os.Lstat(w.socket); return err == nil })
	return w
}

// run runs a command line in the workspace.
func (w *gitWorld) run(line string) (output string, code int) {
	w.t.Helper()
	out, errs, exit := run(w.t, w.Client, agent.Command{Args: []string{"sh", "-c", line}, Env: []string{"LC_ALL=C"}}, "")
	return out + errs, exit.Code
}

func (w *gitWorld) set(g agent.Git) {
	w.t.Helper()
	if err := w.SetGit(w.t.Context(), g); err != nil {
		w.t.Fatal(err)
	}
}

func needs(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Fatalf("%s is not installed: run scripts/setup.sh check", p)
		}
	}
}

// OpenSSH's programs list the owner's key, and cannot change what is offered. The server signs.
func TestSSHKeyIsOffered(t *testing.T) {
	t.Parallel()
	needs(t, "ssh-add", "ssh-keygen")
	log := &buffer{}
	w := newGitWorld(t, log)
	w.set(agent.Git{Name: "ann", Key: w.key})
	if out, code := w.run("ssh-add -L; stat -c %a $SSH_AUTH_SOCK ${SSH_AUTH_SOCK%/*}"); code != 0 || out != w.key+" codehub\n600\n700\n" {
		t.Errorf("code %d: %s", code, out)
	}
	for _, line := range []string{"ssh-keygen -q -t ed25519 -N '' -f own && ssh-add own", "ssh-add -D", "ssh-add -d own", "echo x | SSH_ASKPASS=true ssh-add -x"} {
		if out, code := w.run(line); code == 0 {
			t.Errorf("%s: %s", line, out)
		}
	}
	sign := "echo text > text && echo '" + w.key + "' > key.pub && rm -f text.sig && ssh-keygen -Y sign -f key.pub -n file text && "
	verify := "echo \"ann@example.com $(cat key.pub)\" > allowed && ssh-keygen -Y verify -f allowed -I ann@example.com -n file -s text.sig < text"
	if out, code := w.run(sign + verify); code != 0 || !strings.Contains(out, `Good "file" signature for ann@example.com`) {
		t.Errorf("code %d: %s", code, out)
	}
	w.mu.Lock()
	w.refused = true
	w.mu.Unlock()
	if out, code := w.run(sign + verify); code == 0 {
		t.Errorf("signed: %s", out)
	}
	if text := log.text(); !strings.Contains(text, "signature with the SSH key failed") || !strings.Contains(text, "The workspace is shared.") {
		t.Errorf("the agent's log: %s", text)
	}
	w.set(agent.Git{Name: "ann", Refused: "The workspace is shared with others."})
	if out, code := w.run("ssh-add -L"); code != 1 || !strings.Contains(out, "no identities") || !strings.Contains(log.text(), "shared with others") {
		t.Errorf("code %d: %s; log %s", code, out, log.text())
	}
}

// What a program has set for its children precedes the agent's variable, as a forwarded agent does.
func TestForwardedAgentPrecedes(t *testing.T) {
	t.Parallel()
	w := newGitWorld(t, io.Discard)
	out, errs, _ := run(t, w.Client, agent.Command{Args: []string{"sh", "-c", "echo $SSH_AUTH_SOCK"}, Env: []string{"SSH_AUTH_SOCK=/tmp/forwarded"}}, "")
	if out != "/tmp/forwarded\n" {
		t.Errorf("%s %s", out, errs)
	}
}

// Git has the owner's name and e-mail and signs with the key, at once after a change. The user's own
// configuration precedes all of it.
func TestGitIdentity(t *testing.T) {
	t.Parallel()
	needs(t, "git", "ssh-keygen")
	w := newGitWorld(t, io.Discard)
	if out, code := w.run("git config user.name || echo none"); code != 0 || out != "none\n" {
		t.Errorf("before the settings, code %d: %s", code, out)
	}
	odd := `Ann "the \ Git" O'Hara # ; 안`
	w.set(agent.Git{Name: odd, Email: "ann@example.com", Key: w.key})
	commit := "git commit -q --allow-empty -m one && git log -1 --format='%an <%ae> %G?'"
	for _, test := range []struct{ name, line, want string }{
		{"the account's", "git init -q r && cd r && " + commit, odd + " <ann@example.com> N\n"},
		{"-S without the setting", "cd r && git -c gpg.format=ssh -c user.signingKey='key::" + w.key + "' commit -q -S --allow-empty -m two && git log -1 --format=%G?", "G\n"},
		{"~/.gitconfig", "git config --global user.name Home && cd r && " + commit, "Home <ann@example.com> N\n"},
		{".git/config", "cd r && git config user.email repo@example.com && " + commit, "Home <repo@example.com> N\n"},
	} {
		if out, code := w.run(test.line); code != 0 || out != test.want {
			t.Errorf("%s: code %d, %s", test.name, code, out)
		}
	}
	w.set(agent.Git{Name: "Ann", Email: "new@example.com", Key: w.key, Sign: true})
	if out, code := w.run("rm .gitconfig && cd r && git config --unset user.email && " + commit + " && git tag -m v1 v1 && git verify-tag v1 && git log -1 --show-signature"); code != 0 ||
		!strings.HasPrefix(out, "Ann <new@example.com> G\n") || strings.Count(out, `Good "git" signature for new@example.com`) != 2 {
		t.Errorf("code %d: %s", code, out)
	}
	if out, code := w.run("cd r && git config commit.gpgSign false && " + commit); code != 0 || !strings.HasSuffix(out, " N\n") {
		t.Errorf("a repository without signatures: code %d: %s", code, out)
	}
}

// A name cannot add settings, and the image's own configuration counts.
func TestGitConfigKeepsTheImages(t *testing.T) {
	needs(t, "git")
	image := filepath.Join(t.TempDir(), "gitconfig")
	if err := os.WriteFile(image, []byte("[core]\n\tabbrev = 11\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GIT_CONFIG_SYSTEM", image)
	w := newGitWorld(t, io.Discard)
	w.set(agent.Git{Name: "a\n[core]\n\tpager = false", Email: "a\"\n[alias]\n"})
	if out, code := w.run("git config core.abbrev; git config user.name; git config core.pager; git config --get-regexp alias || echo none"); code != 0 || out != "11\na[core]pager = false\nnone\n" {
		t.Errorf("code %d: %s", code, out)
	}
}
