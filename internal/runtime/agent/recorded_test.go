package agent_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pkg/sftp"

	"codehub/internal/runtime/agent"
	"codehub/internal/runtime/agent/inside"
	"codehub/internal/testing/agenttest"
	"codehub/internal/testing/harness"
)

// conversation is recorded in testdata/NAME.txt: what a server of that version sent, and what an
// agent of that version answered, byte for byte (docs/agent.md).
type conversation struct {
	name string
	call func(t *testing.T, c *agent.Client, recording bool) any
	want any // what call returns with the recorded answers
}

// of is what a command has printed, and how it ended.
type of struct {
	Stdout, Stderr string
	Exit           agent.Exit
}

func execOf(command agent.Command, stdin string, act func(*agent.Process)) func(*testing.T, *agent.Client, bool) any {
	return func(t *testing.T, c *agent.Client, _ bool) any {
		p, err := c.Exec(t.Context(), command)
		if err != nil {
			return err.Error()
		}
		defer p.Close()
		var out, errs bytes.Buffer
		var exit agent.Exit
		ended := make(chan error, 1)
		go func() {
			var err error
			exit, err = p.Run(&out, &errs)
			ended <- err
		}()
		if act != nil {
			act(p)
		}
		_, err = io.WriteString(p.Stdin, stdin)
		if err := errors.Join(err, p.Stdin.Close(), <-ended); err != nil {
			return err.Error()
		}
		return of{out.String(), errs.String(), exit}
	}
}

// echo serves one connection on a socket in the home.
func echo(t *testing.T, path string) {
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer l.Close()
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.Copy(c, c)
	}()
}

// exchange sends a line on a connection and returns what comes back.
func exchange(conn *agent.Conn, err error) any {
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	_, err = io.WriteString(conn, "ping\n")
	err = errors.Join(err, conn.CloseWrite())
	b, readErr := io.ReadAll(conn)
	if err := errors.Join(err, readErr); err != nil {
		return err.Error()
	}
	return string(b)
}

// recordedHome is the home of the agent that was recorded. Its paths are in the requests.
const recordedHome = "/tmp/codehub-recorded"

var versionOne = []conversation{
	{"v1/hello", func(t *testing.T, c *agent.Client, _ bool) any {
		h, err := c.Hello(t.Context())
		return fmt.Sprint(h, err)
	}, "{1 1 test} <nil>"},
	{"v1/wrong-secret", func(t *testing.T, c *agent.Client, _ bool) any {
		_, err := (&agent.Client{Addr: c.Addr, Secret: "wrong"}).Hello(t.Context())
		return refusal(err)
	}, "401 the secret is wrong"},
	{"v1/exec-pipes", execOf(agent.Command{Shell: "read a; echo out $a $B; echo err >&2; exit 3", Env: []string{"B=b"}, Dir: "/usr"}, "typed\n", nil),
		of{"out typed b\n", "err\n", agent.Exit{Code: 3}}},
	{"v1/exec-arguments", execOf(agent.Command{Args: []string{"printf", "%s", "a b"}}, "", nil), of{"a b", "", agent.Exit{}}},
	{"v1/exec-signal", execOf(agent.Command{Args: []string{"sleep", "100"}}, "", func(p *agent.Process) { _ = p.Signal("TERM") }),
		of{"", "", agent.Exit{Code: 143, Signal: "TERM"}}},
	{"v1/exec-terminal", execOf(agent.Command{Shell: "echo ready; read a; stty size; exit 4", Terminal: &agent.Terminal{Name: "xterm", Rows: 24, Cols: 80, Modes: map[uint8]uint32{53: 0}}},
		"go\n", func(p *agent.Process) { _ = p.Resize(30, 90) }), of{"ready\r\n30 90\r\n", "", agent.Exit{Code: 4}}},
	{"v1/exec-refused", execOf(agent.Command{Args: []string{"/no/such/program"}}, "", nil), "fork/exec /no/such/program: no such file or directory"},
	{"v1/dial-unix", func(t *testing.T, c *agent.Client, recording bool) any {
		if recording {
			echo(t, recordedHome+"/echo")
		}
		conn, err := c.Dial(t.Context(), "unix", recordedHome+"/echo")
		return exchange(conn, err)
	}, "ping\n"},
	{"v1/dial-refused", func(t *testing.T, c *agent.Client, _ bool) any {
		_, err := c.Dial(t.Context(), "tcp", "127.0.0.1:1")
		return refusal(err)
	}, "502 dial tcp 127.0.0.1:1: connect: connection refused"},
	{"v1/listen-unix", func(t *testing.T, c *agent.Client, recording bool) any {
		l, err := c.Listen(t.Context(), "unix", recordedHome+"/listens")
		if err != nil {
			return err.Error()
		}
		defer l.Close()
		if recording {
			visitor, err := net.Dial("unix", recordedHome+"/listens")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { visitor.Close() })
			_, _ = io.WriteString(visitor, "pong\n")
			_ = visitor.(*net.UnixConn).CloseWrite()
		}
		conn, remote, err := l.Accept()
		return []any{l.Address(), remote, exchange(conn, err)}
	}, []any{recordedHome + "/listens", "@", "pong\n"}},
	{"v1/listen-refused", func(t *testing.T, c *agent.Client, _ bool) any {
		_, err := c.Listen(t.Context(), "unix", "/no/such/folder/s")
		return refusal(err)
	}, "409 listen unix /no/such/folder/s: bind: no such file or directory"},
	{"v1/files", func(t *testing.T, c *agent.Client, _ bool) any {
		conn, err := c.Files(t.Context())
		if err != nil {
			return err.Error()
		}
		defer conn.Close()
		f, err := sftp.NewClientPipe(conn, conn)
		if err != nil {
			return err.Error()
		}
		dir, err := f.Getwd()
		_ = conn.Close()
		_ = f.Wait()
		return fmt.Sprint(dir, " ", err)
	}, recordedHome + " <nil>"},
	{"v1/ports", func(t *testing.T, c *agent.Client, _ bool) any {
		list, err := c.Ports(t.Context())
		return fmt.Sprint(list, err)
	}, "[{3000 true node server.js 7 1764060000} {8888 false  0 1764060001}] <nil>"},
	{"v1/watch-ports", func(t *testing.T, c *agent.Client, _ bool) any {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var list []agent.Port
		err := c.WatchPorts(ctx, func(seen []agent.Port) { list = seen; cancel() })
		if !errors.Is(err, context.Canceled) {
			return err.Error()
		}
		return fmt.Sprint(list)
	}, "[{3000 true node server.js 7 1764060000} {8888 false  0 1764060001}]"},
	{"v1/usage", func(t *testing.T, c *agent.Client, _ bool) any {
		u, err := c.Usage(t.Context())
		return fmt.Sprint(u, err)
	}, "{12.5 2 1048576 4294967296 5000 10000 7 [{make test 1764060000}]} <nil>"},
}

func refusal(err error) string {
	var refused *agent.RefusedError
	if !errors.As(err, &refused) {
		return fmt.Sprint(err)
	}
	return fmt.Sprint(refused.Status, " ", refused.Message)
}

// Agents of version 1 still understand what this server sends, and it understands what they
// answer.
func TestRecordedConversations(t *testing.T) {
	t.Parallel()
	for _, r := range versionOne {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			answers, left := replay(t, readRecording(t, r.name))
			h := agenttest.Hostile(t, answers)
			c := &agent.Client{Addr: h.Agent, Secret: "secret", AnswerTimeout: harness.Patience}
			if diff := cmp.Diff(r.want, r.call(t, c, false)); diff != "" {
				t.Errorf("the result (-want +got):\n%s", diff)
			}
			harness.Eventually(t, "all recorded requests", func() bool { return left.Load() == 0 })
		})
	}
}

// TestRecord is no test: with RECORD=1 it records the conversations that have no file yet.
func TestRecord(t *testing.T) { // not parallel: the home has one path
	if os.Getenv("RECORD") == "" {
		return
	}
	if err := os.Mkdir(recordedHome, 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(recordedHome)
	s := inside.NewServer(inside.Config{Secret: "secret", Version: "test", Home: recordedHome, Processes: &inside.Processes{}, Log: slog.New(slog.DiscardHandler)})
	// What the agent says of the machine is replaced; it is encoded as the agent does it.
	fixed := map[string]any{
		agent.PathPorts: agent.Ports{Ports: []agent.Port{{Port: 3000, Local: true, Process: "node server.js", PID: 7, Since: 1764060000}, {Port: 8888, Since: 1764060001}}},
		agent.PathUsage: agent.Usage{CPUSeconds: 12.5, CPULimit: 2, Memory: 1 << 20, MemoryLimit: 4 << 30, Disk: 5000, DiskSize: 10_000, Processes: 7, Holders: []agent.Holder{{What: "make test", Since: 1764060000}}},
	}
	serving := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v, ok := fixed[r.URL.Path]
		if !ok {
			s.ServeHTTP(w, r)
			return
		}
		if r.Header.Get("Upgrade") == "" {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(v)
			return
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+agent.Upgrade+"\r\n\r\n")
		_ = json.NewEncoder(conn).Encode(v)
		_, _ = io.Copy(io.Discard, conn)
		conn.Close()
	})}
	l := listenTCP(t)
	go func() { _ = serving.Serve(l) }()
	defer serving.Close()
	for _, r := range versionOne {
		file := filepath.Join("testdata", r.name+".txt")
		if _, err := os.Stat(file); err == nil {
			continue
		}
		rec := &recorder{to: l.Addr().String()}
		relay := listenTCP(t)
		go rec.serve(relay)
		got := r.call(t, &agent.Client{Addr: relay.Addr().String(), Secret: "secret"}, true)
		relay.Close()
		rec.open.Wait()
		if diff := cmp.Diff(r.want, got); diff != "" {
			t.Fatalf("%s (-want +got):\n%s", r.name, diff)
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, rec.text(), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

func listenTCP(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// step is what one side has sent before the other did. A nil text is the end of its direction.
type step struct {
	ofServer bool
	text     []byte
}

// recorder relays connections and records them.
type recorder struct {
	to   string
	open sync.WaitGroup

	mu    sync.Mutex
	conns []*[]step
}

func (r *recorder) serve(l net.Listener) {
	for {
		from, err := l.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", r.to)
		if err != nil {
			from.Close()
			return
		}
		steps := new([]step)
		r.mu.Lock()
		r.conns = append(r.conns, steps)
		r.mu.Unlock()
		r.open.Go(func() { r.copy(steps, true, to.(*net.TCPConn), from) })
		r.open.Go(func() { r.copy(steps, false, from.(*net.TCPConn), to) })
	}
}

func (r *recorder) copy(steps *[]step, ofServer bool, to *net.TCPConn, from net.Conn) {
	for buf := make([]byte, 64<<10); ; {
		n, err := from.Read(buf)
		r.mu.Lock()
		if n > 0 {
			if last := len(*steps) - 1; last >= 0 && (*steps)[last].ofServer == ofServer {
				(*steps)[last].text = append((*steps)[last].text, buf[:n]...)
			} else {
				*steps = append(*steps, step{ofServer, bytes.Clone(buf[:n])})
			}
		}
		if err != nil {
			*steps = append(*steps, step{ofServer, nil})
		}
		r.mu.Unlock()
		_, _ = to.Write(buf[:n])
		if err != nil {
			_ = to.CloseWrite()
			return
		}
	}
}

// text is the recording as a file: a line for each step, > of the server and < of the agent, and
// an empty line after each connection.
func (r *recorder) text() []byte {
	var b bytes.Buffer
	for _, steps := range r.conns {
		for _, s := range *steps {
			side, text := "<", "end"
			if s.ofServer {
				side = ">"
			}
			if s.text != nil {
				text = strconv.Quote(string(s.text))
			}
			fmt.Fprintln(&b, side, text)
		}
		fmt.Fprintln(&b)
	}
	return b.Bytes()
}

// readRecording reads the connections of a recording.
func readRecording(t *testing.T, name string) (conns [][]step) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	for conn := range strings.SplitSeq(strings.TrimSpace(string(raw)), "\n\n") {
		var steps []step
		for line := range strings.SplitSeq(conn, "\n") {
			side, quoted, _ := strings.Cut(line, " ")
			s := step{ofServer: side == ">"}
			if quoted != "end" {
				text, err := strconv.Unquote(quoted)
				if err != nil {
					t.Fatalf("%s: %s: %v", name, line, err)
				}
				s.text = []byte(text)
			}
			steps = append(steps, s)
		}
		conns = append(conns, steps)
	}
	return conns
}

// replay answers as recorded, and compares what the server sends with what it sent then. All of it
// must be asked for.
func replay(t *testing.T, conns [][]step) (answers agenttest.Answers, left *atomic.Int64) {
	answers, left = agenttest.Answers{}, &atomic.Int64{}
	for _, steps := range conns {
		was, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(steps[0].text)))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(was.Body)
		if err != nil {
			t.Fatal(err)
		}
		left.Add(1)
		answers[was.URL.Path] = func(c *agenttest.Call) {
			defer left.Add(-1)
			sameRequest(t, was, c.Request)
			if diff := missing(body, c.Body); diff != "" {
				t.Errorf("the body (-was +is):\n%s", diff)
			}
			for _, s := range steps[1:] {
				switch {
				case !s.ofServer && s.text == nil:
					_ = c.Conn.(interface{ CloseWrite() error }).CloseWrite()
				case !s.ofServer:
					_, _ = c.Write(s.text)
				case s.text != nil:
					sent := make([]byte, len(s.text))
					if _, err := io.ReadFull(c, sent); err != nil || !bytes.Equal(sent, s.text) {
						t.Errorf("the server sends %q (%v), and sent %q", sent, err, s.text)
					}
				}
			}
			agenttest.Silent(c)
		}
	}
	return answers, left
}

// sameRequest compares the head of a request with the recorded one, which may have less.
func sameRequest(t *testing.T, was, is *http.Request) {
	if is.Method != was.Method {
		t.Errorf("the method is %s, and was %s", is.Method, was.Method)
	}
	for what, of := range map[string][2]map[string][]string{"query": {was.URL.Query(), is.URL.Query()}, "header": {was.Header, is.Header}} {
		for key, value := range of[0] {
			if key == "Content-Length" || key == "User-Agent" {
				continue
			}
			if diff := cmp.Diff(value, of[1][key]); diff != "" {
				t.Errorf("%s of the %s (-was +is):\n%s", key, what, diff)
			}
		}
	}
}

// missing compares a JSON object with the recorded one. It may have more fields: an agent
// ignores those that it does not know.
func missing(was, is []byte) string {
	if len(was) == 0 {
		return ""
	}
	var a, b map[string]any
	if err := errors.Join(json.Unmarshal(was, &a), json.Unmarshal(is, &b)); err != nil {
		return err.Error()
	}
	for key := range b {
		if _, ok := a[key]; !ok {
			delete(b, key)
		}
	}
	return cmp.Diff(a, b)
}
