package inside_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/sys/unix"

	"codehub/internal/runtime/agent"
	"codehub/internal/runtime/agent/inside"
	"codehub/internal/testing/harness"
)

const secret = "0123456789abcdef"

// serve starts an agent on a loopback address and returns a client of it.
func serve(t *testing.T) *agent.Client {
	t.Helper()
	l, err := (&net.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second}}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := inside.NewServer(inside.Config{Secret: secret, Version: "test", Home: t.TempDir(), ResetInterval: 100 * time.Millisecond, Processes: &inside.Processes{}, Log: slog.New(slog.DiscardHandler)})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return &agent.Client{Addr: l.Addr().String(), Secret: secret}
}

// process is a command whose standard output is read as it comes.
type process struct {
	*agent.Process
	Stdout io.Reader
	done   chan struct{}
	exit   agent.Exit
	err    error
}

func begin(t *testing.T, c *agent.Client, command agent.Command) *process {
	t.Helper()
	started, err := c.Exec(t.Context(), command)
	if err != nil {
		t.Fatal(err)
	}
	stdout, printed := io.Pipe()
	t.Cleanup(func() { started.Close(); stdout.Close() })
	p := &process{Process: started, Stdout: stdout, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.exit, p.err = started.Run(printed, io.Discard)
		printed.CloseWithError(p.err)
	}()
	return p
}

func (p *process) Wait() (agent.Exit, error) {
	<-p.done
	return p.exit, p.err
}

// run runs a command to its end.
func run(t *testing.T, c *agent.Client, command agent.Command, stdin string) (stdout, stderr string, exit agent.Exit) {
	t.Helper()
	p, err := c.Exec(t.Context(), command)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var out, errs bytes.Buffer
	ended := make(chan error, 1)
	go func() {
		var err error
		exit, err = p.Run(&out, &errs)
		ended <- err
	}()
	if _, err := io.WriteString(p.Stdin, stdin); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Stdin.Close(), <-ended); err != nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), exit
}

func TestCommandWithPipes(t *testing.T) {
	t.Parallel()
	c := serve(t)
	long := strings.Repeat("0123456789abcde\n", 20_000)
	for _, test := range []struct {
		name                  string
		command               agent.Command
		stdin, stdout, stderr string
		exit                  agent.Exit
	}{
		{"both outputs and a code", agent.Command{Shell: "echo out; echo err >&2; exit 3"}, "", "out\n", "err\n", agent.Exit{Code: 3}},
		{"arguments are not read by a shell", agent.Command{Args: []string{"echo", "$HOME", "a b"}}, "", "$HOME a b\n", "", agent.Exit{}},
		{"long input", agent.Command{Args: []string{"cat"}}, long, long, "", agent.Exit{}},
		{"environment", agent.Command{Shell: "echo $A", Env: []string{"A=b c"}}, "", "b c\n", "", agent.Exit{}},
		{"folder", agent.Command{Args: []string{"pwd"}, Dir: "/usr"}, "", "/usr\n", "", agent.Exit{}},
		{"folder that does not exist", agent.Command{Args: []string{"pwd"}, Dir: "/usr/none/such"}, "", "/usr\n", "", agent.Exit{}},
		{"signal", agent.Command{Shell: "kill -TERM $$"}, "", "", "", agent.Exit{Code: 143, Signal: "TERM"}},
		{"no terminal", agent.Command{Shell: "tty"}, "", "not a tty\n", "", agent.Exit{Code: 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			stdout, stderr, exit := run(t, c, test.command, test.stdin)
			if stdout != test.stdout || stderr != test.stderr || exit != test.exit {
				t.Errorf("output %.100q, errors %.100q, exit %+v", stdout, stderr, exit)
			}
		})
	}
}

// A signal reaches the whole group also while input waits for a command that does not
// read.
func TestSignalBehindInput(t *testing.T) {
	t.Parallel()
	c := serve(t)
	p := begin(t, c, agent.Command{Shell: "trap 'echo ended; exit 7' TERM; echo ready; while :; do sleep 0.05; done"})
	if _, err := io.ReadFull(p.Stdout, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Stdin.Write(make([]byte, 200<<10)); err != nil { // more than a pipe holds
		t.Fatal(err)
	}
	if err := p.Signal("TERM"); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(p.Stdout)
	if exit, waited := p.Wait(); err != nil || waited != nil || exit.Code != 7 || string(out) != "ended\n" {
		t.Errorf("exit %+v, output %q, errors %v, %v", exit, out, err, waited)
	}
}

func TestCommandWithTerminal(t *testing.T) {
	t.Parallel()
	c := serve(t)
	p := begin(t, c, agent.Command{Shell: "stty size; echo $TERM; read line; stty size; echo got $line; exit 4",
		Terminal: &agent.Terminal{Name: "vt220", Rows: 30, Cols: 90, Modes: map[uint8]uint32{53: 0}}}) // no echo
	first := "30 90\r\nvt220\r\n"
	got := make([]byte, len(first))
	if _, err := io.ReadFull(p.Stdout, got); err != nil || string(got) != first {
		t.Fatalf("%q, %v", got, err)
	}
	if err := p.Resize(40, 100); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(p.Stdin, "한글\n"); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(p.Stdout)
	exit, waited := p.Wait()
	if want := "40 100\r\ngot 한글\r\n"; err != nil || waited != nil || string(rest) != want || exit.Code != 4 {
		t.Errorf("output %q, want %q; exit %+v, errors %v, %v", rest, want, exit, err, waited)
	}
}

// The login shell runs as sshd runs it, and the end of the conversation hangs its
// terminal up.
func TestLoginShellIsHungUp(t *testing.T) {
	t.Parallel()
	c := serve(t)
	mark := filepath.Join(t.TempDir(), "hung-up")
	p := begin(t, c, agent.Command{Terminal: &agent.Terminal{Name: "xterm", Rows: 24, Cols: 80}})
	go func() { _, _ = io.Copy(io.Discard, p.Stdout) }()
	fmt.Fprintf(p.Stdin, "trap 'echo $0 > %s; exit' HUP; echo $0 > %s.ready; read line\n", mark, mark)
	harness.Eventually(t, "the shell waits", func() bool { _, err := os.Stat(mark + ".ready"); return err == nil })
	p.Close()
	harness.Eventually(t, "the shell was hung up", func() bool {
		raw, err := os.ReadFile(mark)
		return err == nil && strings.HasPrefix(string(raw), "-")
	})
}

// A process in the background that holds the terminal does not keep the conversation.
func TestTerminalWithBackgroundProcess(t *testing.T) {
	t.Parallel()
	c := serve(t)
	p := begin(t, c, agent.Command{Shell: "trap '' HUP; sleep 30 & echo $!; exit 0", Terminal: &agent.Terminal{Rows: 24, Cols: 80}})
	out, err := io.ReadAll(p.Stdout)
	if exit, waited := p.Wait(); err != nil || waited != nil || exit.Code != 0 {
		t.Fatalf("exit %+v, errors %v, %v", exit, err, waited)
	}
	run(t, c, agent.Command{Shell: "kill " + strings.TrimSpace(string(out))}, "")
}

// echoServer answers each connection with what it sends, and ends after its end.
func echoServer(t *testing.T, network, address string) net.Listener {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return l
}

func TestDial(t *testing.T) {
	t.Parallel()
	c := serve(t)
	sent := make([]byte, 1<<20)
	_, _ = rand.Read(sent)
	for _, l := range []net.Listener{echoServer(t, "tcp", "127.0.0.1:0"), echoServer(t, "unix", filepath.Join(t.TempDir(), "s"))} {
		conn, err := c.Dial(t.Context(), l.Addr().Network(), l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			_, _ = conn.Write(sent)
			_ = conn.CloseWrite()
		}()
		got, err := io.ReadAll(conn)
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%s: %d bytes, %v", l.Addr().Network(), len(got), err)
		}
		conn.Close()
	}
	for _, address := range []string{"127.0.0.1:1", "nonsense", "/tmp"} {
		if _, err := c.Dial(t.Context(), "tcp", address); !errors.Is(err, agent.ErrRefused) {
			t.Errorf("%s: %v", address, err)
		}
	}
	if _, err := c.Dial(t.Context(), "unix", "relative"); !errors.Is(err, agent.ErrRefused) {
		t.Error(err)
	}
}

// A server that listens on the socket of one that has vanished replaces its listener, and the end
// of the former leaves the new one its file. Without that request a taken path is refused, and so
// is that of another program.
func TestRelisten(t *testing.T) {
	t.Parallel()
	c := serve(t)
	path := filepath.Join(t.TempDir(), "s")
	former, err := c.Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer former.Close()
	if _, err := c.Listen(t.Context(), "unix", path); !errors.Is(err, agent.ErrRefused) {
		t.Errorf("a taken path: %v", err)
	}
	for range 2 {
		next, err := c.Relisten(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		defer next.Close()
		if _, _, err := former.Accept(); err == nil {
			t.Error("the former listener has a connection")
		}
		program, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer program.Close()
		conn, _, err := next.Accept()
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		former = next
	}
	former.Close()
	harness.Eventually(t, "the socket is removed", func() bool { _, err := os.Lstat(path); return os.IsNotExist(err) })
	own := echoServer(t, "unix", path)
	if _, err := c.Relisten(t.Context(), path); !errors.Is(err, agent.ErrRefused) {
		t.Errorf("the socket of another program: %v", err)
	}
	if program, err := net.Dial("unix", own.Addr().String()); err != nil {
		t.Errorf("the other program's socket: %v", err)
	} else {
		program.Close()
	}
}

// stubborn is a program that accepts connections, and neither sends nor ends them.
func stubborn(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var open []net.Conn
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, c := range open {
			c.Close()
		}
	})
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
		}
	}()
	return l.Addr().String()
}

// joined counts the connections in this process that agents have joined.
func joined() int {
	var stacks bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&stacks, 2)
	return strings.Count(stacks.String(), "inside.join(")
}

// unjoined waits until agents have ended all connections.
func unjoined(t *testing.T) {
	t.Helper()
	harness.Eventually(t, "the agent to end all connections", func() bool { return joined() == 0 })
}

// A connection that the server gives up ends in the workspace, also if the program ignores the
// end of its input.
func TestAbandonedConnectionEnds(t *testing.T) { // not parallel: it counts goroutines
	c := serve(t)
	address := stubborn(t)
	const most = 50
	unjoined(t)
	var conns []*agent.Conn
	for range most {
		conn, err := c.Dial(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	// Dial returns with the agent's answer, which precedes the join.
	harness.Eventually(t, "the agent to join all connections", func() bool { return joined() == most })
	for i, conn := range conns {
		if i%2 == 0 {
			_ = conn.CloseWrite() // a half-closed one as well
		}
		conn.Close()
	}
	unjoined(t)
}

// A connection of a server that was killed ends, too: its kernel ends one direction, and resets
// the connection later.
func TestConnectionOfKilledServerEnds(t *testing.T) { // not parallel: it counts goroutines
	c := serve(t)
	unjoined(t)
	conn, err := c.Dial(t.Context(), "tcp", stubborn(t))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := conn.Conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the agent to join the connection", func() bool { return joined() == 1 })
	// The kernel forgets the connection after a second instead of a minute.
	if err := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_TCP, unix.TCP_LINGER2, 1) }); err != nil {
		t.Fatal(err)
	}
	conn.Conn.Close()
	unjoined(t)
}

func TestListen(t *testing.T) {
	t.Parallel()
	c := serve(t)
	socket := filepath.Join(t.TempDir(), "listens")
	for network, address := range map[string]string{"tcp": "127.0.0.1:0", "unix": socket} {
		l, err := c.Listen(t.Context(), network, address)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			conn, _, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			_, _ = io.Copy(conn, conn)
		}()
		visitor, err := net.Dial(network, l.Address())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(visitor, "hello")
		got := make([]byte, 5)
		if _, err := io.ReadFull(visitor, got); err != nil || string(got) != "hello" {
			t.Errorf("%s: %q, %v", network, got, err)
		}
		visitor.Close()
		l.Close()
		harness.Eventually(t, "nothing listens any more", func() bool {
			again, err := net.Dial(network, l.Address())
			if err == nil {
				again.Close()
			}
			return err != nil
		})
	}
	if _, err := c.Listen(t.Context(), "tcp", "256.0.0.1:0"); !errors.Is(err, agent.ErrRefused) {
		t.Error(err)
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	c := serve(t)
	conn, err := c.Files(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	client, err := sftp.NewClientPipe(conn, conn)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	f, err := client.Create("relative.txt")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(f, "content"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	home, err := client.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if raw, err := os.ReadFile(filepath.Join(home, "relative.txt")); err != nil || string(raw) != "content" {
		t.Errorf("%q, %v", raw, err)
	}
}

func TestPorts(t *testing.T) {
	t.Parallel()
	c := serve(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen := make(chan []agent.Port, 100)
	watched := make(chan error, 1)
	go func() { watched <- c.WatchPorts(ctx, func(p []agent.Port) { seen <- p }) }()
	<-seen
	l := echoServer(t, "tcp", "127.0.0.1:0")
	port := l.Addr().(*net.TCPAddr).Port
	mine := func(list []agent.Port) *agent.Port {
		if i := slices.IndexFunc(list, func(p agent.Port) bool { return p.Port == port }); i >= 0 {
			return &list[i]
		}
		return nil
	}
	for list := range seen {
		if p := mine(list); p != nil {
			if !p.Local || p.PID != os.Getpid() || !strings.HasPrefix(p.Process, filepath.Base(os.Args[0])) || p.Since == 0 {
				t.Errorf("%+v", p)
			}
			break
		}
	}
	all := echoServer(t, "tcp", "0.0.0.0:0")
	list, err := c.Ports(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	port = all.Addr().(*net.TCPAddr).Port
	if p := mine(list); p == nil || p.Local {
		t.Errorf("%+v", p)
	}
	cancel()
	if err := <-watched; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	u, err := serve(t).Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if u.DiskSize <= 0 || u.Disk <= 0 || u.Disk > u.DiskSize {
		t.Errorf("%+v", u)
	}
}

func TestHello(t *testing.T) {
	t.Parallel()
	h, err := serve(t).Hello(t.Context())
	if want := (agent.Hello{Version: agent.Version, Oldest: agent.Oldest, Codehub: "test"}); err != nil || h != want {
		t.Errorf("%+v, %v", h, err)
	}
}

// Without the secret nothing is answered, whatever else the request is.
func TestSecretIsRequired(t *testing.T) {
	t.Parallel()
	c := serve(t)
	for _, wrong := range []string{"", "wrong", secret + "0", secret[1:]} {
		for _, path := range []string{agent.PathHello, agent.PathExec, agent.PathDial, agent.PathListen, agent.PathAccept, agent.PathFiles, agent.PathPorts, agent.PathUsage, "/", "/v2/hello"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+c.Addr+path, strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+wrong)
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			var p agent.Problem
			if err := json.NewDecoder(res.Body).Decode(&p); err != nil || res.StatusCode != http.StatusUnauthorized || p.Message == "" {
				t.Errorf("%s with secret %q: %s, %+v, %v", path, wrong, res.Status, p, err)
			}
			res.Body.Close()
		}
	}
}

// An agent that is gone is unreachable.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	c := &agent.Client{Addr: l.Addr().String(), Secret: secret}
	if _, err := c.Hello(t.Context()); !errors.Is(err, agent.ErrUnreachable) {
		t.Error(err)
	}
}

// The end of the connection hangs up a command that does not read its terminal.
func TestHangUpBehindFullInput(t *testing.T) {
	t.Parallel()
	c := serve(t)
	file := filepath.Join(t.TempDir(), "hup")
	p := begin(t, c, agent.Command{
		Args:     []string{"sh", "-c", `trap "echo hup > ` + file + `; exit" HUP; stty raw -echo; echo up; while :; do sleep 0.1; done`},
		Terminal: &agent.Terminal{Name: "xterm", Rows: 24, Cols: 80},
	})
	if _, err := io.ReadFull(p.Stdout, make([]byte, 2)); err != nil {
		t.Fatal(err)
	}
	var sent atomic.Int64
	blocked := make(chan struct{})
	go func() {
		defer close(blocked)
		for junk := make([]byte, 32<<10); ; sent.Add(1) {
			if _, err := p.Stdin.Write(junk); err != nil {
				return
			}
		}
	}()
	// The queue and both sockets' buffers are full once nothing more is sent.
	for last := int64(-1); last != sent.Load(); {
		last = sent.Load()
		time.Sleep(300 * time.Millisecond)
	}
	p.Close()
	<-blocked
	harness.Eventually(t, "the command to be hung up", func() bool {
		b, _ := os.ReadFile(file)
		return string(b) == "hup\n"
	})
}

// post sends a request on a connection of its own.
func post(t *testing.T, c *agent.Client, target, body string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", c.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\nLater: x\r\nConnection: Upgrade\r\nUpgrade: %s\r\nContent-Length: %d\r\n\r\n%s", target, secret, agent.Upgrade, len(body), body)
	return conn
}

// begun reads the head with which a conversation begins.
func begun(t *testing.T, conn net.Conn) {
	t.Helper()
	want := "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + agent.Upgrade + "\r\n\r\n"
	head := make([]byte, len(want))
	if _, err := io.ReadFull(conn, head); err != nil || string(head) != want {
		t.Fatalf("%q, %v", head, err)
	}
}

// The end of the input that comes after the command's end does not reset the connection, which would
// lose the output in transit.
func TestOutputSurvivesLateInput(t *testing.T) {
	t.Parallel()
	c := serve(t)
	conn := post(t, c, agent.PathExec, `{"args":["head","-c","300000","/dev/zero"]}`)
	begun(t, conn)
	of := func(a string) string {
		_, port, _ := strings.Cut(a, ":")
		n, _ := strconv.Atoi(port)
		return fmt.Sprintf("0100007F:%04X", n)
	}
	// FIN_WAIT1: the agent has ended its direction, and its kernel still has output to send.
	ended := fmt.Sprintf(" %s %s 04 ", of(c.Addr), of(conn.LocalAddr().String()))
	harness.Eventually(t, "the agent to send all", func() bool {
		b, err := os.ReadFile("/proc/net/tcp")
		return err == nil && strings.Contains(string(b), ended)
	})
	if err := agent.NewFrameWriter(conn).Write(agent.FrameStdinEnd, nil); err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(conn)
	if err != nil || len(all) < 300_000 || !strings.HasSuffix(string(all), `{"code":0}`) {
		t.Errorf("%d bytes, %v", len(all), err)
	}
}

// What a server of a later version adds is ignored: fields, parameters and frames. A request that
// the agent does not know is answered with 404, by which the server knows it.
func TestLaterServer(t *testing.T) {
	t.Parallel()
	c := serve(t)
	conn := post(t, c, agent.PathExec+"?later=1", `{"args":["cat"],"later":{"x":[1]}}`)
	begun(t, conn)
	frames := agent.NewFrameWriter(conn)
	for _, f := range []agent.Frame{{Kind: 'Z', Payload: []byte("x")}, {Kind: agent.FrameStdin, Payload: []byte("hello")}, {Kind: 'Z'}, {Kind: agent.FrameStdinEnd}} {
		if err := frames.Write(f.Kind, f.Payload); err != nil {
			t.Fatal(err)
		}
	}
	all, err := io.ReadAll(conn)
	if err != nil || !strings.Contains(string(all), "hello") || !strings.HasSuffix(string(all), `{"code":0}`) {
		t.Errorf("%q, %v", all, err)
	}
	for _, target := range []string{"/v1/later", "/v2/exec"} {
		head := make([]byte, len("HTTP/1.1 404 "))
		if _, err := io.ReadFull(post(t, c, target, "{}"), head); err != nil || string(head) != "HTTP/1.1 404 " {
			t.Errorf("%s: %q, %v", target, head, err)
		}
	}
}

// Commands that run take no threads, of which a workspace has few.
func TestCommandsTakeNoThreads(t *testing.T) { // not parallel: it counts threads
	c := serve(t)
	threads := pprof.Lookup("threadcreate")
	before := threads.Count()
	var all []*process
	for range 100 {
		p := begin(t, c, agent.Command{Args: []string{"cat"}})
		all = append(all, p)
	}
	if more := threads.Count() - before; more > 50 {
		t.Errorf("100 commands made %d threads", more)
	}
	for _, p := range all {
		if err := p.Signal("TERM"); err != nil {
			t.Fatal(err)
		}
		if exit, err := p.Wait(); err != nil || exit.Signal != "TERM" {
			t.Fatalf("%+v, %v", exit, err)
		}
	}
}

// A program that cannot be started is refused with a sentence about that program.
func TestWhyACommandIsNotStarted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	c := serve(t)
	for path, want := range map[string]string{
		dir + "/missing":                         "does not exist",
		file("plain", "true\n", 0o644):           "may not be executed",
		dir:                                      "may not be executed",
		file("script", "#!/no/such/sh\n", 0o755): "needs another program to run, which does not exist",
		file("text", "no program\n", 0o755):      "is not a program for this machine",
		file("in", "", 0o644) + "/it":            "does not exist",
	} {
		_, err := c.Exec(t.Context(), agent.Command{Args: []string{path}})
		var refused *agent.RefusedError
		if !errors.As(err, &refused) || refused.Status != http.StatusUnprocessableEntity || refused.Message != path+" "+want {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
	_, err := c.Exec(t.Context(), agent.Command{Args: []string{"no-such-program"}})
	var refused *agent.RefusedError
	if !errors.As(err, &refused) || refused.Message != `there is no program "no-such-program" on its PATH` {
		t.Error(err)
	}
}
