package sshgate_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"
)

func TestCommands(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.ssh("echo", "hello").want(t, "hello\n")
	r := w.ssh("echo out; echo err >&2; exit 7")
	if r.out != "out\n" || r.err != "err\n" || r.status != 7 {
		t.Errorf("%+v", r)
	}
	for _, cipher := range []string{"aes128-ctr", "aes256-gcm@openssh.com"} {
		w.run(w.command("ssh", "-c", cipher, "demo", "cat"), "input\n").want(t, "input\n")
	}
	if r := w.ssh("kill -TERM $$"); r.status != 255 {
		t.Errorf("a command that a signal ended: %+v", r)
	}
	if r := w.ssh("exit 255"); r.status != 255 || r.err != "" {
		t.Errorf("%+v", r)
	}
	cmd := w.command("ssh", "-o", "SendEnv=LC_* SECRET", "-o", "SetEnv=LANG=ko_KR.UTF-8", "demo", "echo $LANG $LC_TIME $SECRET; pwd; echo ${SSH_CONNECTION%% *}")
	cmd.Env = append(cmd.Env, "LC_TIME=ko_KR.UTF-8", "SECRET=x")
	w.run(cmd, "").want(t, "ko_KR.UTF-8 ko_KR.UTF-8\n"+w.home+"\n127.0.0.1\n")
	if r := w.run(w.command("ssh", "-s", "demo", "unknown"), ""); r.status == 0 {
		t.Errorf("an unknown subsystem: %+v", r)
	}
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.run(w.command("ssh", "-tt", "demo", "tty >/dev/null && echo terminal $TERM; stty -echo; read line; echo got $line"), "typed\n")
	if !strings.Contains(r.out, "terminal") || !strings.Contains(r.out, "got typed") || r.status != 0 {
		t.Errorf("%+v", r)
	}
	// A shell on a terminal, and Ctrl-C.
	out := &safeBuffer{}
	cmd := w.command("ssh", "-tt", "demo")
	cmd.Stdout = out
	stdin, _, exited := w.background(cmd)
	typed := func(text, answer string) {
		t.Helper()
		_, err := io.WriteString(stdin, text)
		check(t, err)
		harness.Eventually(t, "the answer "+answer, func() bool { return strings.Contains(out.String(), answer) })
	}
	// What is in the foreground answers: the shell may lose a Ctrl-C between two commands.
	typed("sh -c 'echo up $((1+1)); exec sleep 1000'\n", "up 2")
	typed("\x03", "^C")
	typed("echo after $((1+1))\n", "after 2")
	_, err := io.WriteString(stdin, "exit 3\n")
	check(t, err)
	if status := <-exited; status != 3 {
		t.Errorf("ended with %d", status)
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	local := filepath.Join(w.dir, "local")
	check(t, os.Mkdir(local, 0o700))
	check(t, os.WriteFile(filepath.Join(local, "a"), []byte(strings.Repeat("content\n", 100_000)), 0o640))
	same := func(a, b string) {
		t.Helper()
		x, err := os.ReadFile(a)
		check(t, err)
		y, err := os.ReadFile(b)
		check(t, err)
		if string(x) != string(y) {
			t.Errorf("%s has %d bytes, %s has %d", a, len(x), b, len(y))
		}
	}
	for _, args := range [][]string{{"-q"}, {"-q", "-O"}} { // by SFTP, and by the old protocol's exec
		if args[len(args)-1] == "-O" {
			if err := os.Remove(filepath.Join(w.home, "b")); err != nil {
				t.Fatal(err)
			}
		}
		w.run(w.command("scp", append(args, "-p", filepath.Join(local, "a"), "demo:b")...), "").want(t, "")
		same(filepath.Join(local, "a"), filepath.Join(w.home, "b"))
		w.run(w.command("scp", append(args, "demo:b", filepath.Join(local, "c"))...), "").want(t, "")
		same(filepath.Join(local, "a"), filepath.Join(local, "c"))
	}
	r := w.run(w.command("sftp", "-q", "-b", "-", "demo"), "mkdir d\nput "+filepath.Join(local, "a")+" d/x\nrename d/x d/y\nls d\n")
	if !strings.Contains(r.out, "d/y") || r.status != 0 {
		t.Errorf("%+v", r)
	}
}

// echo serves an echo of lines on a listener.
func echo(t testing.TB, l net.Listener) {
	t.Helper()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); _, _ = io.Copy(c, c) }()
		}
	}()
	t.Cleanup(func() { l.Close() })
}

func echoes(t testing.TB, c net.Conn, text string) {
	t.Helper()
	defer c.Close()
	check(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	_, err := fmt.Fprintln(c, text)
	check(t, err)
	got, err := bufio.NewReader(c).ReadString('\n')
	if err != nil || got != text+"\n" {
		t.Errorf("got %q, %v; want %q", got, err, text)
	}
}

// freePort returns a port on which no other test listens.
func freePort(t testing.TB) string {
	t.Helper()
	address, err := proc.FreeAddress()
	check(t, err)
	_, port, err := net.SplitHostPort(address)
	check(t, err)
	return port
}

func dial(t testing.TB, network, address string) (c net.Conn) {
	t.Helper()
	harness.Eventually(t, "connect to "+address, func() bool {
		var err error
		c, err = net.Dial(network, address)
		return err == nil
	})
	return c
}

func TestForwards(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	service := listen(t)
	echo(t, service)
	socket := filepath.Join(w.dir, "service.sock")
	unix, err := net.Listen("unix", socket)
	check(t, err)
	echo(t, unix)
	local, remote, dynamic := freePort(t), freePort(t), freePort(t)
	remoteSocket := filepath.Join(w.dir, "remote.sock")
	localSocket := filepath.Join(w.dir, "local.sock")
	cmd := w.command("ssh", "-N", "-o", "ExitOnForwardFailure=yes",
		"-L", local+":"+service.Addr().String(), "-L", localSocket+":"+socket,
		"-R", remote+":"+service.Addr().String(), "-R", remoteSocket+":"+socket,
		"-D", dynamic, "demo")
	_, errs, exited := w.background(cmd)
	echoes(t, dial(t, "tcp", "127.0.0.1:"+local), "local")
	echoes(t, dial(t, "unix", localSocket), "local socket")
	echoes(t, dial(t, "tcp", "127.0.0.1:"+remote), "remote")
	echoes(t, dial(t, "unix", remoteSocket), "remote socket")

	// SOCKS5 without a login, to an address by name.
	c := dial(t, "tcp", "127.0.0.1:"+dynamic)
	_, port, err := net.SplitHostPort(service.Addr().String())
	check(t, err)
	var n uint16
	_, err = fmt.Sscan(port, &n)
	check(t, err)
	request := append([]byte{5, 1, 0, 5, 1, 0, 3, byte(len("localhost"))}, "localhost"...)
	_, err = c.Write(append(request, byte(n>>8), byte(n)))
	check(t, err)
	reply := make([]byte, 2+10)
	_, err = io.ReadFull(c, reply)
	check(t, err)
	if reply[3] != 0 {
		t.Fatalf("SOCKS: %v", reply)
	}
	echoes(t, c, "dynamic")
	select {
	case status := <-exited:
		t.Fatalf("ssh ended with %d: %s", status, errs)
	default:
	}

	// -W, and an address where nothing listens.
	w.run(w.command("ssh", "-W", service.Addr().String(), "demo"), "through\n").want(t, "through\n")
	silent, _ := harness.ReservePort(t)
	if r := w.run(w.command("ssh", "-W", "127.0.0.1:"+strconv.Itoa(silent), "demo"), ""); r.status != 255 {
		t.Errorf("%+v", r)
	}
	// A port that is in use in the workspace.
	if r := w.run(w.command("ssh", "-o", "ExitOnForwardFailure=yes", "-R", remote+":"+service.Addr().String(), "demo", "true"), ""); r.status != 255 {
		t.Errorf("%+v", r)
	}
	// A port that the workspace chooses.
	r := w.run(w.command("ssh", "-o", "LogLevel=INFO", "-R", "0:"+service.Addr().String(), "demo", "true"), "")
	if !strings.Contains(r.err, "Allocated port") || r.status != 0 {
		t.Errorf("%+v", r)
	}
}

func TestHalfClosedForward(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprint(rw, n, strings.Repeat(".", 1<<20))
	}))
	t.Cleanup(srv.Close)
	addr := strings.TrimPrefix(srv.URL, "http://")
	r := w.run(w.command("ssh", "-W", addr, "demo"), "POST / HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello")
	if _, body, _ := strings.Cut(r.out, "\r\n\r\n"); !strings.HasPrefix(body, "5.") || len(body) != 1+1<<20 {
		t.Errorf("%d bytes, %q", len(r.out), r.err)
	}
}

func TestControlMaster(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	socket := filepath.Join(w.dir, "master")
	_, errs, exited := w.background(w.command("ssh", "-N", "-M", "-S", socket, "demo"))
	harness.Eventually(t, "the master to connect", func() bool {
		return w.run(w.command("ssh", "-S", socket, "-O", "check", "demo"), "").status == 0
	})
	var all sync.WaitGroup
	for i := range 15 {
		all.Go(func() {
			w.run(w.command("ssh", "-S", socket, "demo", fmt.Sprint("echo ", i)), "").want(t, fmt.Sprintln(i))
		})
	}
	all.Wait()
	if n := w.gate.Open(); n != 1 {
		t.Errorf("%d connections are open, want that of the master", n)
	}
	if used, all := w.gate.Slots(); used < 1 || all < used {
		t.Errorf("%d of %d slots are used", used, all)
	}
	port := freePort(t)
	service := listen(t)
	echo(t, service)
	forward := []string{"-S", socket, "-R", port + ":" + service.Addr().String()}
	w.run(w.command("ssh", append(forward, "-O", "forward", "demo")...), "").want(t, "")
	echoes(t, dial(t, "tcp", "127.0.0.1:"+port), "later")
	w.run(w.command("ssh", append(forward, "-O", "cancel", "demo")...), "").want(t, "")
	harness.Eventually(t, "the listener to end", func() bool {
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	w.run(w.command("ssh", "-S", socket, "-O", "exit", "demo"), "")
	if status := <-exited; status != 0 && status != 255 {
		t.Errorf("the master ended with %d: %s", status, errs)
	}
	harness.Eventually(t, "the connection and all channels to end", func() bool {
		used, _ := w.gate.Slots()
		return used == 0 && w.gate.Open() == 0
	})
}

func TestForwardedAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	socket := filepath.Join(w.dir, "agent.sock")
	agent := w.command("ssh-agent")
	agent.Args = []string{"ssh-agent", "-D", "-a", socket}
	w.background(agent)
	dial(t, "unix", socket).Close() // its file is there before it listens
	add := w.command("ssh-add")
	add.Args = []string{"ssh-add", "-q", w.key}
	add.Env = append(add.Env, "SSH_AUTH_SOCK="+socket)
	w.run(add, "").want(t, "")
	cmd := w.command("ssh", "-A", "demo", "ssh-add -L; stat -c %a $SSH_AUTH_SOCK ${SSH_AUTH_SOCK%/*}; echo $SSH_AUTH_SOCK")
	cmd.Env = append(cmd.Env, "SSH_AUTH_SOCK="+socket)
	r := w.run(cmd, "")
	lines := strings.Split(strings.TrimSpace(r.out), "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[0], strings.TrimSpace(w.public)) || lines[1] != "600" || lines[2] != "700" {
		t.Fatalf("%+v", r)
	}
	harness.Eventually(t, "the socket's folder to be removed", func() bool {
		_, err := os.Stat(filepath.Dir(lines[3]))
		return os.IsNotExist(err)
	})
}
