package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"codehub/internal/runtime/agent"
	"codehub/internal/testing/agenttest"
	"codehub/internal/testing/harness"
)

// What a terminal or a page would interpret, and what is not UTF-8.
const evil = "\x1b[2J\x1b]0;title\x07<script>alert(1)</script>\u202e\r\n\xff\xfe\x00"

// client returns a client of a hostile agent.
func client(t *testing.T, answers agenttest.Answers) *agent.Client {
	t.Helper()
	h := agenttest.Hostile(t, answers)
	return &agent.Client{Addr: h.Agent, Secret: h.Secret, AnswerTimeout: harness.Patience}
}

// hasty returns a client that waits for a moment only, for an agent that does not answer.
func hasty(t *testing.T, answers agenttest.Answers) *agent.Client {
	t.Helper()
	c := client(t, answers)
	c.AnswerTimeout = 200 * time.Millisecond
	return c
}

// everywhere answers all requests in the same way.
func everywhere(a agenttest.Answer) agenttest.Answers {
	return agenttest.Answers{
		agent.PathHello: a, agent.PathExec: a, agent.PathDial: a, agent.PathListen: a,
		agent.PathAccept: a, agent.PathFiles: a, agent.PathPorts: a, agent.PathUsage: a, agent.PathContext: a, agent.PathUnpack: a,
	}
}

// calls are all that a server asks of an agent.
var calls = map[string]func(context.Context, *agent.Client) error{
	"hello": func(ctx context.Context, c *agent.Client) error { _, err := c.Hello(ctx); return err },
	"usage": func(ctx context.Context, c *agent.Client) error { _, err := c.Usage(ctx); return err },
	"ports": func(ctx context.Context, c *agent.Client) error { _, err := c.Ports(ctx); return err },
	"watch": func(ctx context.Context, c *agent.Client) error { return c.WatchPorts(ctx, func([]agent.Port) {}) },
	"dial": func(ctx context.Context, c *agent.Client) error {
		conn, err := c.Dial(ctx, "tcp", "127.0.0.1:80")
		return closed(conn, err)
	},
	"files": func(ctx context.Context, c *agent.Client) error {
		conn, err := c.Files(ctx)
		return closed(conn, err)
	},
	"exec": func(ctx context.Context, c *agent.Client) error {
		p, err := c.Exec(ctx, agent.Command{Args: []string{"true"}})
		return closed(p, err)
	},
	"context": func(ctx context.Context, c *agent.Client) error {
		r, err := c.Context(ctx, "project/api", ".", "Dockerfile")
		if err == nil {
			defer r.Close()
			_, err = io.Copy(io.Discard, r)
		}
		return err
	},
	"unpack": func(ctx context.Context, c *agent.Client) error {
		_, err := c.Unpack(ctx, "file", false, func(w io.Writer) error { _, err := w.Write(make([]byte, 1<<10)); return err })
		return err
	},
	"listen": func(ctx context.Context, c *agent.Client) error {
		l, err := c.Listen(ctx, "tcp", "127.0.0.1:0")
		return closed(l, err)
	},
}

func closed(c io.Closer, err error) error {
	if err == nil {
		c.Close()
	}
	return err
}

// A call ends without an answer, whether the agent takes the connection, begins a response, or a
// conversation.
func TestSilentAgent(t *testing.T) {
	t.Parallel()
	for name, call := range calls {
		for how, answer := range map[string]agenttest.Answer{
			"nothing":       agenttest.Silent,
			"part of head":  func(c *agenttest.Call) { agenttest.Raw("HTTP/1.1 200 OK\r\nA: b")(c); agenttest.Silent(c) },
			"part of body":  func(c *agenttest.Call) { agenttest.Raw("HTTP/1.1 200 OK\r\n\r\n{")(c); agenttest.Silent(c) },
			"part of error": func(c *agenttest.Call) { agenttest.Raw("HTTP/1.1 500 No\r\n\r\n{")(c); agenttest.Silent(c) },
		} {
			t.Run(name+"/"+how, func(t *testing.T) {
				t.Parallel()
				if err := call(t.Context(), hasty(t, everywhere(answer))); !errors.Is(err, agent.ErrUnreachable) && !errors.Is(err, agent.ErrRefused) {
					t.Error(err)
				}
			})
		}
	}
	begun := hasty(t, everywhere(agenttest.Upgraded(agenttest.Silent)))
	if err := calls["listen"](t.Context(), begun); !errors.Is(err, agent.ErrUnreachable) {
		t.Errorf("a listener that does not say where it listens: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, call := range calls {
		if err := call(ctx, begun); !errors.Is(err, context.Canceled) {
			t.Errorf("%s, cancelled: %v", name, err)
		}
	}
}

// A call takes a bounded amount of memory for any response of an agent. This test
// runs alone, so it counts its own allocations only.
func TestEndlessAnswersTakeBoundedMemory(t *testing.T) {
	const limit = 24 << 20
	const ok, begun = "HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 101 Switching Protocols\r\n\r\n"
	for how, answer := range map[string]agenttest.Answer{
		"long header":           agenttest.Endless("HTTP/1.1 200 OK\r\nA: ", "x"),
		"many headers":          agenttest.Endless("HTTP/1.1 200 OK\r\n", "A:\r\n"),
		"long status":           agenttest.Endless("HTTP/1.1 200 ", "x"),
		"long string":           agenttest.Endless(ok+`{"codehub":"`, "x"),
		"many holders":          agenttest.Endless(ok+`{"holders":[{}`, ",{}"),
		"many ports":            agenttest.Endless(ok+`{"ports":[{"port":1}`, `,{"port":1}`),
		"deep":                  agenttest.Endless(ok+`{"ports":`, "["),
		"long chunk":            agenttest.Endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\n \r\n"),
		"long reason":           agenttest.Endless("HTTP/1.1 422 No\r\n\r\n"+`{"message":"`, "x"),
		"long line":             agenttest.Endless(begun+`{"ports":[{"process":"`, "x"),
		"long frame":            agenttest.Endless(begun+"a\xff\xff\xff\xff", "x"),
		"frames of other kinds": agenttest.Endless(begun, "z\x00\x01\x00\x00"+strings.Repeat("x", 64<<10)),
		"frames without length": agenttest.Endless(begun, "z\x00\x00\x00\x00"),
	} {
		c := hasty(t, everywhere(answer))
		for name, call := range calls {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_ = call(t.Context(), c) // a conversation may have begun well
			runtime.ReadMemStats(&after)
			if n := after.TotalAlloc - before.TotalAlloc; n > limit {
				t.Errorf("%s, %s: %d bytes were allocated", name, how, n)
			}
		}
	}
}

// The reason for a refusal is one line of printable text.
func TestHostileReason(t *testing.T) {
	t.Parallel()
	for _, message := range []string{evil, strings.Repeat("long ", 1000), "", strings.Repeat(evil, 1000)} {
		c := client(t, everywhere(agenttest.Refused(http.StatusTeapot, message)))
		for name, call := range calls {
			err := call(t.Context(), c)
			var refused *agent.RefusedError
			if !errors.As(err, &refused) || refused.Status != http.StatusTeapot {
				t.Fatalf("%s: %v", name, err)
			}
			if refused.Message == "" || utf8.RuneCountInString(refused.Message) > 1000 || !printable(refused.Message) {
				t.Errorf("%s: %q", name, refused.Message)
			}
		}
	}
	c := client(t, everywhere(agenttest.Raw("HTTP/1.1 500 \x1b[2J\r\n\r\n")))
	if _, err := c.Hello(t.Context()); err == nil || !printable(err.Error()) {
		t.Errorf("a status line: %q", err)
	}
}

func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// A list of ports has ports only, each once, with what people and JSON can read.
func TestHostilePorts(t *testing.T) {
	t.Parallel()
	list := []agent.Port{
		{Port: 3000, Process: evil, PID: -1, Since: math.MaxInt64}, {Port: 0}, {Port: -5, Process: "negative"},
		{Port: 65536}, {Port: math.MaxInt}, {Port: 80, Process: strings.Repeat("한", 1000), Since: math.MinInt64}, {Port: 3000, Process: "again"},
	}
	checkPorts := func(got []agent.Port) {
		t.Helper()
		if len(got) != 2 || got[0].Port != 80 || got[1].Port != 3000 || got[1].PID != 0 || got[1].Process == "again" {
			t.Fatalf("%+v", got)
		}
		for _, p := range got {
			if !printable(p.Process) || utf8.RuneCountInString(p.Process) > 256 {
				t.Errorf("the process %q", p.Process)
			}
			if _, err := time.Unix(p.Since, 0).UTC().MarshalJSON(); err != nil || p.Since < 0 {
				t.Errorf("since %d: %v", p.Since, err)
			}
		}
	}
	c := client(t, agenttest.Answers{agent.PathPorts: agenttest.JSON(agent.Ports{Ports: list})})
	got, err := c.Ports(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	checkPorts(got)

	line, err := json.Marshal(agent.Ports{Ports: list})
	if err != nil {
		t.Fatal(err)
	}
	watched := client(t, agenttest.Answers{agent.PathPorts: agenttest.Upgraded(agenttest.Raw(string(line) + "\n"))})
	seen := 0
	if err := watched.WatchPorts(t.Context(), func(got []agent.Port) { seen++; checkPorts(got) }); !errors.Is(err, agent.ErrUnreachable) || seen != 1 {
		t.Errorf("watched: %d lists, %v", seen, err)
	}

	many := make([]agent.Port, 60_000)
	for i := range many {
		many[i].Port = 1 + i
	}
	c = client(t, agenttest.Answers{agent.PathPorts: agenttest.JSON(agent.Ports{Ports: many})})
	if got, err := c.Ports(t.Context()); err == nil && len(got) != agent.MaxPorts {
		t.Errorf("%d ports", len(got))
	}
	for text, ok := range map[string]bool{`{"ports":null}`: true, `{}`: true, `{"ports":[]}`: true, `{"ports":{}}`: false, `{"ports":[{"port":"x"}]}`: false, `[`: false, ``: false} {
		c := client(t, agenttest.Answers{agent.PathPorts: agenttest.Raw("HTTP/1.1 200 OK\r\n\r\n" + text)})
		if got, err := c.Ports(t.Context()); (err == nil) != ok || len(got) != 0 {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
}

// An agent that reports changes without end gets no more than a part of the server's time.
func TestWatchedPortsArePaced(t *testing.T) {
	t.Parallel()
	c := client(t, agenttest.Answers{agent.PathPorts: agenttest.Upgraded(agenttest.Raw(strings.Repeat("{}\n", 4)))})
	began, lists := time.Now(), 0
	if err := c.WatchPorts(t.Context(), func([]agent.Port) { lists++ }); !errors.Is(err, agent.ErrUnreachable) {
		t.Error(err)
	}
	if took := time.Since(began); lists != 4 || took < time.Second {
		t.Errorf("%d lists in %v", lists, took)
	}
	endless := client(t, agenttest.Answers{agent.PathPorts: agenttest.Upgraded(agenttest.Endless("", "{}\n"))})
	ctx, cancel := context.WithCancel(t.Context())
	if err := endless.WatchPorts(ctx, func([]agent.Port) { cancel() }); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// finished runs a command on an agent that answers with these bytes.
func finished(t *testing.T, conversation string) (stdout string, exit agent.Exit, err error) {
	t.Helper()
	c := client(t, agenttest.Answers{agent.PathExec: agenttest.Upgraded(agenttest.Raw(conversation))})
	p, err := c.Exec(t.Context(), agent.Command{Args: []string{"true"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var out strings.Builder
	exit, err = p.Run(&out, io.Discard)
	return out.String(), exit, err
}

func output(text string) agent.Frame {
	return agent.Frame{Kind: agent.FrameStdout, Payload: []byte(text)}
}

func exits(text string) agent.Frame { return agent.Frame{Kind: agent.FrameExit, Payload: []byte(text)} }

// Frames that make no sense end the command at most, and what follows its end has no effect.
func TestHostileCommand(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		sent string
		out  string
		exit agent.Exit
		ok   bool
	}{
		"frames of the server": {agenttest.Frames(agent.Frame{Kind: agent.FrameStdin, Payload: []byte("x")}, agent.Frame{Kind: agent.FrameSignal, Payload: []byte("KILL")},
			agenttest.Event(agent.Accepted{ID: "forged"}), output("a"), exits(`{"code":3}`)), "a", agent.Exit{Code: 3}, true},
		"unknown kind":          {agenttest.Frames(agent.Frame{Kind: 'z', Payload: []byte("x")}, output("a"), exits(`{"code":3,"more":{}}`)), "a", agent.Exit{Code: 3}, true},
		"exit twice":            {agenttest.Frames(output("a"), exits(`{"code":3}`), output("b"), exits(`{"code":0}`)), "a", agent.Exit{Code: 3}, true},
		"exit first":            {agenttest.Frames(exits(`{"code":0}`), output("b")), "", agent.Exit{}, true},
		"code that is success":  {agenttest.Frames(exits(`{"code":256}`)), "", agent.Exit{Code: 255}, true},
		"negative code":         {agenttest.Frames(exits(`{"code":-1}`)), "", agent.Exit{Code: 255}, true},
		"signal of escapes":     {agenttest.Frames(exits(`{"code":143,"signal":"TERM\u001b[2J"}`)), "", agent.Exit{Code: 143}, true},
		"long signal":           {agenttest.Frames(exits(`{"code":143,"signal":"` + strings.Repeat("A", 1000) + `"}`)), "", agent.Exit{Code: 143}, true},
		"no exit":               {agenttest.Frames(output("a")), "a", agent.Exit{}, false},
		"exit that is no JSON":  {agenttest.Frames(exits("3")), "", agent.Exit{}, false},
		"code that is too long": {agenttest.Frames(exits(`{"code":1e99}`)), "", agent.Exit{}, false},
		"frame too long":        {"o\xff\xff\xff\xff", "", agent.Exit{}, false},
		"part of a frame":       {"o\x00\x00\x00\x05abc", "", agent.Exit{}, false},
		"part of a header":      {"o\x00", "", agent.Exit{}, false},
		"nothing":               {"", "", agent.Exit{}, false},
	} {
		out, exit, err := finished(t, test.sent)
		if out != test.out || exit != test.exit || (err == nil) != test.ok || err != nil && !errors.Is(err, agent.ErrUnreachable) {
			t.Errorf("%s: %q, %+v, %v", name, out, exit, err)
		}
	}
}

// A command whose agent neither reads nor ends is ended by the server.
func TestCommandOfAgentThatDoesNotRead(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	defer close(hold) // before the agent is stopped
	c := client(t, agenttest.Answers{agent.PathExec: agenttest.Upgraded(func(c *agenttest.Call) {
		agenttest.Raw(agenttest.Frames(output("up")))(c)
		<-hold
	})})
	p, err := c.Exec(t.Context(), agent.Command{})
	if err != nil {
		t.Fatal(err)
	}
	stdout, printed := io.Pipe()
	ended := make(chan error, 1)
	go func() { _, err := p.Run(printed, io.Discard); ended <- err }()
	if _, err := io.ReadFull(stdout, make([]byte, 2)); err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() {
		for junk := make([]byte, 64<<10); ; {
			if _, err := p.Stdin.Write(junk); err != nil {
				written <- err
				return
			}
		}
	}()
	p.Close()
	if err := <-written; err == nil {
		t.Error("the input was written")
	}
	if <-ended == nil {
		t.Error("the command has ended well")
	}
}

// A connection ends in the direction that the agent has ended, and takes bytes in the other.
func TestHalfClosedDial(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	c := client(t, agenttest.Answers{agent.PathDial: agenttest.Upgraded(func(c *agenttest.Call) {
		if closer, ok := c.Conn.(interface{ CloseWrite() error }); ok {
			_ = closer.CloseWrite()
		}
		all, _ := io.ReadAll(c)
		got <- string(all)
	})})
	conn, err := c.Dial(t.Context(), "tcp", "127.0.0.1:80")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if b, err := io.ReadAll(conn); err != nil || len(b) != 0 {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := io.WriteString(conn, "still"); err != nil {
		t.Error(err)
	}
	_ = conn.CloseWrite()
	if text := <-got; text != "still" {
		t.Errorf("%q", text)
	}
}

// A forged connection of a listener is asked for at the same agent, and nowhere else. Events that
// are none, and connections that do not exist, keep no others.
func TestForgedAccept(t *testing.T) {
	t.Parallel()
	ids := make(chan string, 100)
	var events []agent.Frame
	forged := []string{"other", "../../v1/exec", "x&network=tcp", "a b\r\nAuthorization: no", strings.Repeat("y", 10_000), "real"}
	for _, id := range forged {
		events = append(events, agent.Frame{Kind: 'z', Payload: []byte("not JSON")}, agenttest.Event(agent.Accepted{ID: id, Remote: evil}))
	}
	c := client(t, agenttest.Answers{
		agent.PathListen: agenttest.Upgraded(func(c *agenttest.Call) {
			agenttest.Raw(agenttest.Frames(append([]agent.Frame{agenttest.Event(agent.Listening{Address: "127.0.0.1:1"})}, events...)...))(c)
			agenttest.Silent(c)
		}),
		agent.PathAccept: func(c *agenttest.Call) {
			id := c.Request.URL.Query().Get("id")
			if len(c.Request.URL.Query()) != 1 || c.Request.URL.Path != agent.PathAccept {
				t.Errorf("the request %s", c.Request.URL)
			}
			ids <- id
			if id != "real" {
				agenttest.Refused(http.StatusNotFound, "the connection has gone")(c)
				return
			}
			agenttest.Upgraded(agenttest.Silent)(c)
		},
	})
	l, err := c.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, _, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	for _, want := range forged {
		if id := <-ids; id != want && len(id) < 100 {
			t.Errorf("the server asked for %q, want %q", id, want)
		}
		if want == "real" {
			break
		}
	}
}

// Connections that an agent invents without end do not outlive the listener, nor does the wait for one.
func TestAcceptEndsWithListener(t *testing.T) {
	t.Parallel()
	for how, answer := range map[string]agenttest.Answer{"refused": agenttest.Refused(http.StatusNotFound, ""), "silent": agenttest.Silent} {
		asked := make(chan struct{}, 1000)
		h := agenttest.Hostile(t, agenttest.Answers{
			agent.PathListen: agenttest.Upgraded(agenttest.Endless(agenttest.Frames(agenttest.Event(agent.Listening{})), agenttest.Frames(agenttest.Event(agent.Accepted{ID: "x"})))),
			agent.PathAccept: func(c *agenttest.Call) {
				select {
				case asked <- struct{}{}:
				default:
				}
				answer(c)
			},
		})
		c := &agent.Client{Addr: h.Agent, Secret: h.Secret}
		l, err := c.Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { _, _, err := l.Accept(); ended <- err }()
		<-asked
		l.Close()
		select {
		case err := <-ended:
			if err == nil {
				t.Errorf("%s: a connection", how)
			}
		case <-time.After(10 * time.Second): // below the agent's time to answer
			t.Errorf("%s: Accept has not returned", how)
		}
	}
}

// An agent that sends a listener's server other than connections ends the listener: it must not
// keep the server busy. Some frames of unknown kinds may precede each connection.
func TestListenerWithoutConnectionsEnds(t *testing.T) {
	t.Parallel()
	unknown := agent.Frame{Kind: 'z'}
	for how, sent := range map[string]string{
		"events without an ID":                                 agenttest.Frames(agenttest.Event(agent.Accepted{})),
		"frames of unknown kinds":                              agenttest.Frames(unknown),
		"invented connections between frames of unknown kinds": agenttest.Frames(agenttest.Event(agent.Accepted{ID: "invented"}), unknown),
	} {
		c := client(t, agenttest.Answers{agent.PathListen: agenttest.Upgraded(agenttest.Endless(agenttest.Frames(agenttest.Event(agent.Listening{})), sent))})
		l, err := c.Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { _, _, err := l.Accept(); ended <- err }()
		select {
		case err := <-ended:
			if err == nil {
				t.Errorf("%s: a connection", how)
			}
		case <-time.After(harness.Patience):
			t.Errorf("%s: Accept has not returned", how)
		}
		l.Close()
	}
	some := append(slices.Repeat([]agent.Frame{unknown}, 60), agenttest.Event(agent.Accepted{ID: "real"}))
	c := client(t, agenttest.Answers{
		agent.PathListen: agenttest.Upgraded(agenttest.Endless(agenttest.Frames(agenttest.Event(agent.Listening{})), agenttest.Frames(some...))),
		agent.PathAccept: agenttest.Upgraded(agenttest.Silent),
	})
	l, err := c.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for range 3 {
		conn, _, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
}

// What listeners say of themselves is not JSON, or is of another kind.
func TestHostileListener(t *testing.T) {
	t.Parallel()
	for name, sent := range map[string]string{
		"no JSON": agenttest.Frames(agent.Frame{Kind: agent.FrameEvent, Payload: []byte(evil)}), "end": "", "long frame": "a\x00\xff\xff\xff",
		"array": agenttest.Frames(agent.Frame{Kind: agent.FrameEvent, Payload: []byte("[]")}), "other kind": agenttest.Frames(output("{}")),
	} {
		c := client(t, agenttest.Answers{agent.PathListen: agenttest.Upgraded(agenttest.Raw(sent))})
		if l, err := c.Listen(t.Context(), "tcp", "127.0.0.1:0"); !errors.Is(err, agent.ErrUnreachable) {
			t.Errorf("%s: %v, %v", name, l, err)
		}
	}
}
