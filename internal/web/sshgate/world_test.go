package sshgate_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"codehub/internal/bus/activity"
	"codehub/internal/postgres"
	"codehub/internal/running/attach"
	"codehub/internal/runtime"
	"codehub/internal/runtime/agent/inside"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/pgtest"
	"codehub/internal/users/auth"
	"codehub/internal/web/sshgate"
	"codehub/internal/workspace"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// world is a gate with a real database, before a workspace whose agent runs in the test
// process.
type world struct {
	testing.TB
	db       *fixture.Database
	gate     *sshgate.Gate
	attacher *attach.Attacher
	used     *activity.Recorder
	addr     string // of the SSH listener
	ann      workspace.Caller
	demo     workspace.Workspace
	home     string // of the workspace
	upstream *upstream

	dir    string // of the client: keys, configuration
	key    string // file of ann's private key
	public string
	keyID  string
}

// upstream is the runtime as attach uses it.
type upstream struct {
	mu sync.Mutex
	up runtime.Upstream
	by map[workspace.ID]runtime.Upstream // instead of up
}

func (u *upstream) Upstream(_ context.Context, id workspace.ID) (runtime.Upstream, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if up, ok := u.by[id]; ok {
		return up, nil
	}
	return u.up, nil
}

const running = `UPDATE workspaces SET phase = 'RUNNING', operation = 'NONE', op_id = NULL, desired_state = 'RUNNING' WHERE id = $1`

func newWorld(t testing.TB, settings ...func(*sshgate.Config)) *world {
	t.Helper()
	// The paths of sockets are short.
	dir, err := os.MkdirTemp("", "ssh")
	check(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	w := &world{TB: t, db: fixture.NewDatabase(t, postgres.Options{Limits: postgres.Limits{PerUser: 1}, Sharing: true}), used: activity.New(), dir: dir, home: filepath.Join(dir, "home")}
	check(t, os.Mkdir(w.home, 0o700))
	w.ann = w.db.AddUser("ann")
	w.demo = w.db.AddWorkspace(w.ann, "demo")
	w.db.Change(running, w.demo.ID)

	listener := listen(t)
	agent := inside.NewServer(inside.Config{Secret: "secret", Version: "test", Home: w.home, Processes: &inside.Processes{}, Log: slog.New(slog.DiscardHandler)})
	serve(t, listener, func() { _ = agent.Serve(listener) })
	w.upstream = &upstream{up: runtime.Upstream{ContainerID: "one", Agent: listener.Addr().String(), Secret: "secret"}}

	sessions := auth.New(w.db.DB, auth.Config{Log: slog.New(slog.DiscardHandler), CheapHashes: true})
	ctx, stop := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() { _ = sessions.Run(ctx) })
	t.Cleanup(func() { stop(); watching.Wait() })
	w.attacher = attach.New(attach.Config{Store: w.db.DB, Runtime: w.upstream, Sessions: sessions, Activity: w.used, CheckInterval: 200 * time.Millisecond})
	seed, err := w.db.DB.SSHHostKey(t.Context())
	check(t, err)
	cfg := sshgate.Config{
		Settings: sshgate.Settings{MaxConnections: 1000, MaxPerUser: 500}, Budget: sshgate.BudgetOf(8 << 30), Seed: seed, Store: w.db.DB, Attacher: w.attacher,
		Log: slog.New(slog.DiscardHandler), PageOf: func(id workspace.ID) string { return "http://localhost/workspaces/" + string(id) },
	}
	for _, f := range settings {
		f(&cfg)
	}
	w.gate, err = sshgate.New(cfg)
	check(t, err)
	l := listen(t)
	w.addr = l.Addr().String()
	serving, stopServing := context.WithCancel(context.Background())
	serve(t, l, func() {
		if err := w.gate.Serve(serving, l); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		stopServing() // before its listener is closed
		w.gate.Close(context.Background())
	})
	w.key, w.public = w.newKey("id")
	w.keyID = w.register(w.ann, "laptop", w.public)
	w.configure()
	return w
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	return l
}

func serve(t testing.TB, l net.Listener, f func()) {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	t.Cleanup(func() { l.Close(); <-done })
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newKey makes a key pair in files, and returns the private one's name and the public
// one's text.
func (w *world) newKey(name string) (file, public string) {
	w.Helper()
	pub, private, err := ed25519.GenerateKey(rand.Reader)
	check(w, err)
	block, err := ssh.MarshalPrivateKey(private, "")
	check(w, err)
	file = filepath.Join(w.dir, name)
	check(w, os.WriteFile(file, pem.EncodeToMemory(block), 0o600))
	sshPub, err := ssh.NewPublicKey(pub)
	check(w, err)
	return file, string(ssh.MarshalAuthorizedKey(sshPub))
}

func (w *world) register(caller workspace.Caller, name, public string) (id string) {
	w.Helper()
	k, err := sshgate.ParseKey(public)
	check(w, err)
	made, err := w.db.DB.AddSSHKey(w.Context(), caller, postgres.SSHKey{Name: name, PublicKey: k.Line, Hash: k.Hash})
	check(w, err)
	return made.ID
}

// configure writes the client's configuration, with the gate's host key pinned.
func (w *world) configure() {
	w.Helper()
	host, port, err := net.SplitHostPort(w.addr)
	check(w, err)
	known := filepath.Join(w.dir, "known_hosts")
	check(w, os.WriteFile(known, []byte("codehub "+w.gate.HostKey()+"\n"), 0o600))
	config := fmt.Sprintf(`Host demo
	HostName %s
	Port %s
	User demo
	IdentityFile %s
	IdentitiesOnly yes
	UserKnownHostsFile %s
	GlobalKnownHostsFile /dev/null
	HostKeyAlias codehub
	StrictHostKeyChecking yes
	BatchMode yes
	LogLevel ERROR
`, host, port, w.key, known)
	check(w, os.WriteFile(filepath.Join(w.dir, "config"), []byte(config), 0o600))
}

// ssh returns a command of OpenSSH's client. Its arguments follow the configuration.
func (w *world) command(program string, args ...string) *exec.Cmd {
	w.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		w.Fatalf("%s is missing: scripts/setup.sh check installs it", program)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*harness.Patience)
	w.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, path, append([]string{"-F", filepath.Join(w.dir, "config")}, args...)...)
	cmd.Env = append(os.Environ(), "SSH_AUTH_SOCK=", "LC_ALL=C")
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

type result struct {
	out, err string
	status   int
}

// run runs a command with input to its end.
func (w *world) run(cmd *exec.Cmd, stdin string) (r result) {
	w.Helper()
	var out, errs bytes.Buffer
	if stdin != "" {
		cmd.Stdin = strings.NewReader(stdin)
	}
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			w.Fatalf("%v: %v", cmd.Args, err)
		}
	}
	return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

func (w *world) ssh(args ...string) result {
	w.Helper()
	return w.run(w.command("ssh", append([]string{"demo"}, args...)...), "")
}

// want checks the standard output of a command that succeeds.
func (r result) want(t testing.TB, out string) {
	t.Helper()
	if r.out != out || r.status != 0 {
		t.Errorf("output %q, errors %q, status %d; want %q", r.out, r.err, r.status, out)
	}
}

// background starts a command that runs until stop or the end of the test. exited
// yields its status.
func (w *world) background(cmd *exec.Cmd) (stdin io.WriteCloser, errs *safeBuffer, exited <-chan int) {
	w.Helper()
	in, err := cmd.StdinPipe()
	check(w, err)
	buf := &safeBuffer{}
	cmd.Stderr = buf
	if cmd.Stdout == nil {
		cmd.Stdout = buf
	}
	check(w, cmd.Start())
	done := make(chan int, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
		done <- cmd.ProcessState.ExitCode()
	}()
	w.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	return in, buf, done
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
