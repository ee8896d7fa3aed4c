package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"codehub/api"
	codehub "codehub/client"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// OpenSSH's client reaches a real container, by SSH's own port and by the API alone. Each of
// its clients is a process of OpenSSH with a login of its own, so that it takes 30 s.
func TestSSH(t *testing.T) {
	t.Parallel()
	listen, err := proc.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	// Of all servers of the installation.
	settings := append(folderBucket(t).settings, "CODEHUB_DATABASE_URL="+database(t), "CODEHUB_DEFAULT_IMAGE="+env.workspaceImage)
	s := start(t, append(settings, "CODEHUB_SSH_LISTEN="+listen)...)
	s.createDesired("demo", "STANDBY")
	c := s.sshClient(listen, "demo")
	// It wakes the workspace.
	if out, errs, status := c.run("ssh", "-F", c.options, "demo", "echo in; id -un; exit 3"); out != "in\ncoder\n" || status != 3 {
		t.Fatalf("%q %q %d", out, errs, status)
	}
	c.checkCopies()
	c.checkForwards()
	c.checkRemovedKey(s.second(settings...))
	s.Stop()
	if err := s.Err(); err != nil {
		t.Errorf("the server's shutdown: %v", err)
	}
}

// A server is killed while 100 SSH sessions are open.
func TestSSHWithKilledServer(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	listen, err := proc.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	s := startQuick(t, "CODEHUB_DEFAULT_IMAGE="+env.workspaceImage, "CODEHUB_SSH_LISTEN="+listen)
	id := s.create(api.CreateWorkspace{Name: "demo"})
	s.awaitPhase(id, "RUNNING")
	s.sshClient(listen, "demo").checkKilledServer(id)
}

// checkCopies copies a file in both directions, and reads it through the API alone.
func (c *sshClient) checkCopies() {
	c.Helper()
	file := filepath.Join(c.dir, "file")
	if err := os.WriteFile(file, bytes.Repeat([]byte("content\n"), 1<<16), 0o600); err != nil {
		c.Fatal(err)
	}
	for _, args := range [][]string{{file, "demo:copy"}, {"demo:copy", file + "2"}} {
		if _, errs, status := c.run("scp", append([]string{"-q", "-F", c.options}, args...)...); status != 0 {
			c.Fatalf("scp %v: %s", args, errs)
		}
	}
	one, _ := os.ReadFile(file)
	two, err := os.ReadFile(file + "2")
	if err != nil || !bytes.Equal(one, two) {
		c.Errorf("the copy has %d bytes, not %d: %v", len(two), len(one), err)
	}
	if out, errs, status := c.run(env.binary, "ssh", "demo", "--", "wc", "-c", "copy"); !strings.HasPrefix(out, "524288 ") || status != 0 {
		c.Errorf("through the API: %q %q %d", out, errs, status)
	}
}

// checkForwards forwards ports and sockets in both directions, and runs sessions and rsync
// on the connection that carries them. Each echo passes through a listener (-R) in the
// container.
func (c *sshClient) checkForwards() {
	c.Helper()
	const inside, insideSocket = "127.0.0.1:4000", "/tmp/forwarded.sock"
	master, socket, localSocket := filepath.Join(c.dir, "master"), filepath.Join(c.dir, "service"), filepath.Join(c.dir, "local")
	service, socketService := c.echo("tcp", "127.0.0.1:0"), c.echo("unix", socket)
	local, err := proc.FreeAddress()
	if err != nil {
		c.Fatal(err)
	}
	dynamic, err := proc.FreeAddress()
	if err != nil {
		c.Fatal(err)
	}
	open := c.open("-M", "-S", master, "-o", "ExitOnForwardFailure=yes", "-R", "4000:"+service, "-R", insideSocket+":"+socketService,
		"-L", local+":"+inside, "-L", localSocket+":"+insideSocket, "-D", dynamic, "demo", "echo up; exec cat")
	open.awaitUp()
	c.echoes("tcp", local, nil)
	c.echoes("unix", localSocket, nil)
	c.echoes("tcp", dynamic, func(conn net.Conn) error { // SOCKS4
		if _, err := conn.Write([]byte{4, 1, 4000 >> 8, 4000 & 0xff, 127, 0, 0, 1, 0}); err != nil {
			return err
		}
		reply := make([]byte, 8)
		if _, err := io.ReadFull(conn, reply); err != nil || reply[1] != 90 {
			return fmt.Errorf("SOCKS: %v, %w", reply, err)
		}
		return nil
	})
	on := func(args ...string) []string { return append([]string{"-F", c.options, "-S", master}, args...) }
	if out, errs, status := c.run("ssh", on("demo", "exec 3<>/dev/tcp/127.0.0.1/4000; echo inside >&3; head -1 <&3")...); out != "inside\n" || status != 0 {
		c.Errorf("a program in the container: %q %q %d", out, errs, status)
	}

	// SSH_CONNECTION has the client's port.
	var same sync.Map
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			out, errs, status := c.run("ssh", on("demo", "echo $SSH_CONNECTION")...)
			if same.Store(out, true); status != 0 {
				c.Errorf("a session of the master: %q %q %d", out, errs, status)
			}
		})
	}
	all.Wait()
	connections := 0
	same.Range(func(any, any) bool { connections++; return true })
	if connections != 1 {
		c.Errorf("the master's sessions use %d connections", connections)
	}

	tree := filepath.Join(c.dir, "tree")
	for d := range 20 {
		dir := filepath.Join(tree, fmt.Sprint(d))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			c.Fatal(err)
		}
		for f := range 50 {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(f)), fmt.Appendln(nil, d, f), 0o640); err != nil {
				c.Fatal(err)
			}
		}
	}
	for _, args := range [][]string{{tree + "/", "demo:tree/"}, {"demo:tree/", tree + "2/"}} {
		if _, errs, status := c.run("rsync", append([]string{"-a", "-e", "ssh " + strings.Join(on(), " ")}, args...)...); status != 0 {
			c.Fatalf("rsync %v: %s", args, errs)
		}
	}
	if out, errs, status := c.run("diff", "-r", tree, tree+"2"); status != 0 {
		c.Errorf("rsync: %s%s", out, errs)
	}
	if _, errs, status := c.run("ssh", on("-O", "exit", "demo")...); status != 0 {
		c.Errorf("end the master: %s", errs)
	}
	open.awaitEnd()
	harness.Eventually(c.TB, "the socket in the container is removed", func() bool {
		out, _, _ := c.run("ssh", "-F", c.options, "demo", "ls "+insideSocket)
		return out == ""
	})
}

// accessLimit is the time within which sessions end with their access. Tests allow twice as long,
// because others run at the same time.
const accessLimit = 5 * time.Second

// checkRemovedKey removes the key of an open session, by another server and by that of the
// session.
func (c *sshClient) checkRemovedKey(another *server) {
	c.Helper()
	other := c.sshClient(c.listen, "demo")
	for _, by := range []struct {
		name   string
		server *server
		client *sshClient
	}{{"another server", another, other}, {"the session's server", c.server, c}} {
		open := by.client.open("demo", "echo up; exec cat")
		open.awaitUp()
		if err := by.server.api.DeleteSSHKey(c.Context(), by.client.keyID); err != nil {
			c.Fatal(err)
		}
		removed := time.Now()
		if status := open.awaitEnd(); status != 255 || !strings.Contains(open.errs(), "the key or token was removed") {
			c.Errorf("the session ended with status %d: %s", status, open.errs())
		}
		took := open.ended.Sub(removed)
		c.Logf("removed by %s, the session ended after %v", by.name, took)
		if took > 2*accessLimit { // other tests run at the same time
			c.Errorf("removed by %s, the session ended after %v; the limit is %v", by.name, took, accessLimit)
		}
		if _, errs, status := c.run("ssh", "-F", by.client.options, "demo", "true"); status != 255 || !strings.Contains(errs, "Permission denied") {
			c.Errorf("a removed key: %q %d", errs, status)
		}
	}
	another.Stop()
}

// checkKilledServer kills the server while 100 sessions are open, half of them on
// terminals. The clients learn it, the container keeps running without their commands, and
// the next server serves it.
func (c *sshClient) checkKilledServer(id string) {
	c.Helper()
	const sessions = 100
	const commands = "cat /dev/stdin|sleep 4321" // as docker top shows them
	before := c.containerOf(id)
	all := make([]*sshSession, sessions)
	for i := range all {
		args := []string{"demo", "echo up; exec cat /dev/stdin"}
		switch {
		case i == 0:
			args = append([]string{"-R", "/tmp/left.sock:" + filepath.Join(c.dir, "service")}, args...)
		case i%2 == 1:
			args = []string{"-tt", "demo", "echo up; exec sleep 4321"}
		}
		all[i] = c.open(args...)
	}
	for _, open := range all {
		open.awaitUp()
	}
	running := func() int { return len(regexp.MustCompile(commands).FindAllString(c.processes(id), -1)) }
	// A shell says that it is up before it becomes its command.
	harness.Eventually(c.TB, "each session runs its command", func() bool { return running() == sessions })
	c.Kill()
	killed := time.Now()
	var last time.Time
	for _, open := range all {
		if status := open.awaitEnd(); status != 255 {
			c.Errorf("a client ended with status %d: %s", status, open.errs())
		}
		if open.ended.After(last) {
			last = open.ended
		}
	}
	c.Logf("the last of %d clients ended %v after the server", sessions, last.Sub(killed))
	if last.Sub(killed) > time.Minute {
		c.Errorf("clients waited %v for a killed server", last.Sub(killed))
	}
	harness.Eventually(c.TB, "the commands of the sessions end", func() bool { return running() == 0 })
	c.restart()
	if out, errs, status := c.run("ssh", "-F", c.options, "demo", "ls -d /tmp/left.sock; echo back"); out != "back\n" || status != 0 {
		c.Errorf("after the restart: %q %q %d", out, errs, status)
	}
	if after := c.containerOf(id); after != before {
		c.Errorf("the container was replaced: %s before, %s after", before, after)
	}
}

// processes returns the command lines of a workspace's processes.
func (s *server) processes(id string) string {
	s.Helper()
	top, err := s.docker.ContainerTop(s.Context(), workspace.ID(id).DockerName(), client.ContainerTopOptions{Arguments: []string{"-eo", "pid,args"}})
	if err != nil {
		s.Fatal(err)
	}
	var lines []string
	for _, p := range top.Processes {
		lines = append(lines, p[len(p)-1])
	}
	return strings.Join(lines, "\n")
}

// second starts another server of the installation with the given settings.
func (s *server) second(settings ...string) *server {
	s.Helper()
	other := *s
	other.home = filepath.Join(scratch(s.TB.(*testing.T)), "data")
	var err error
	other.Server, err = proc.New(proc.Options{Binary: env.binary, DataDir: other.home, Env: append(settings, "CODEHUB_BALLAST=1m", s.subnet.Setting())})
	if err != nil {
		s.Fatal(err)
	}
	other.URL = strings.Replace(other.URL, "://localhost", "://codehub.localhost", 1) // as s
	s.Cleanup(other.Server.Close)
	other.restart()
	if other.api, err = codehub.New(other.URL, s.token); err != nil {
		s.Fatal(err)
	}
	return &other
}

// echo serves an echo on this machine and returns its address.
func (c *sshClient) echo(network, address string) string {
	c.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer conn.Close(); _, _ = io.Copy(conn, conn) }()
		}
	}()
	return l.Addr().String()
}

// echoes sends a line to an echo and expects it back. before runs on the connection first;
// nil: not needed.
func (c *sshClient) echoes(network, address string, before func(net.Conn) error) {
	c.Helper()
	conn, err := net.Dial(network, address)
	if err != nil {
		c.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(harness.Patience)); err != nil {
		c.Fatal(err)
	}
	if before != nil {
		if err := before(conn); err != nil {
			c.Fatal(err)
		}
	}
	if _, err := io.WriteString(conn, "a line\n"); err != nil {
		c.Fatal(err)
	}
	if got, err := bufio.NewReader(conn).ReadString('\n'); got != "a line\n" {
		c.Errorf("through %s: %q, %v", address, got, err)
	}
}

// sshClient is OpenSSH with a key that is registered for the administrator. It knows
// workspaces by their names.
type sshClient struct {
	*server
	listen  string
	dir     string
	options string // the configuration file
	keyID   string
}

// sshClient returns a client of the server's SSH address for workspaces of these names.
func (s *server) sshClient(listen string, names ...string) *sshClient {
	s.Helper()
	dir := s.TempDir()
	key := filepath.Join(dir, "key")
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", key).CombinedOutput(); err != nil {
		s.Fatalf("%v: %s", err, out)
	}
	public, err := os.ReadFile(key + ".pub")
	if err != nil {
		s.Fatal(err)
	}
	registered, err := s.api.AddSSHKey(s.Context(), api.AddSSHKey{PublicKey: string(public)})
	if err != nil {
		s.Fatal(err)
	}
	about, err := s.api.SSHServer(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		s.Fatal(err)
	}
	var config string
	for _, name := range names {
		config += "Host " + name + "\n\tUser " + name + "\n"
	}
	config += "Host *\n\tHostName " + host + "\n\tPort " + port + "\n\tIdentityFile " + key + "\n\tIdentitiesOnly yes\n\tHostKeyAlias codehub\n" +
		"\tUserKnownHostsFile " + filepath.Join(dir, "known") + "\n\tStrictHostKeyChecking yes\n\tBatchMode yes\n\tLogLevel ERROR\n"
	for name, content := range map[string]string{"config": config, "known": "codehub " + about.HostKey + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			s.Fatal(err)
		}
	}
	return &sshClient{server: s, listen: listen, dir: dir, options: filepath.Join(dir, "config"), keyID: registered.ID}
}

// run runs a program of this machine to its end.
func (c *sshClient) run(program string, args ...string) (out, errs string, status int) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), 2*harness.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "SSH_AUTH_SOCK=", "CODEHUB_URL="+c.URL, "CODEHUB_SESSION_TOKEN="+c.token, "XDG_CONFIG_HOME="+filepath.Join(c.dir, "xdg"))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		c.Fatalf("%s: %v", program, err)
	}
	return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
}

// sshSession is a session of OpenSSH's client that runs in the background. Its command
// prints "up".
type sshSession struct {
	client *sshClient
	out    firstWrite
	stderr bytes.Buffer
	done   chan struct{}
	status int       // written before done is closed, as is ended
	ended  time.Time // of the client
}

// open starts a session.
func (c *sshClient) open(args ...string) *sshSession {
	c.Helper()
	open := &sshSession{client: c, out: firstWrite{happened: make(chan struct{})}, done: make(chan struct{})}
	ctx, cancel := context.WithTimeout(context.Background(), 2*harness.Patience)
	cmd := exec.CommandContext(ctx, "ssh", append([]string{"-F", c.options}, args...)...)
	cmd.Env = append(os.Environ(), "SSH_AUTH_SOCK=")
	cmd.Stdout, cmd.Stderr = &open.out, &open.stderr
	stdin, err := cmd.StdinPipe() // it stays open
	if err != nil {
		c.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		c.Fatal(err)
	}
	go func() {
		defer close(open.done)
		_ = cmd.Wait()
		open.status, open.ended = cmd.ProcessState.ExitCode(), time.Now()
	}()
	c.Cleanup(func() { stdin.Close(); cancel(); <-open.done })
	return open
}

// awaitUp waits until the command runs.
func (s *sshSession) awaitUp() {
	s.client.Helper()
	select {
	case <-s.out.happened:
	case <-s.done:
		s.client.Fatalf("the session ended with status %d: %s", s.status, s.errs())
	}
}

// awaitEnd waits until the client has ended, and returns its status.
func (s *sshSession) awaitEnd() int {
	<-s.done
	return s.status
}

// errs returns what an ended client wrote to its standard error.
func (s *sshSession) errs() string { return s.stderr.String() }

// firstWrite discards what is written to it.
type firstWrite struct {
	once     sync.Once
	happened chan struct{} // closed at the first write
}

func (w *firstWrite) Write(p []byte) (int, error) {
	w.once.Do(func() { close(w.happened) })
	return len(p), nil
}
