package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"codehub/api"
	"codehub/client"
	"codehub/internal/bus/activity"
	"codehub/internal/running/attach"
	"codehub/internal/runtime/agent/busy"
	"codehub/internal/testing/agenttest"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// execEnv is an env with workspaces whose agents run in this process.
type execEnv struct {
	*env
	agents   *agenttest.Agents
	attacher *attach.Attacher
	used     *activity.Recorder
}

func newExecEnv(t *testing.T) *execEnv {
	t.Helper()
	e := &execEnv{agents: agenttest.New(t), used: activity.New()}
	e.env = newEnv(t, func(c *Config) {
		store := c.Store
		e.attacher = attach.New(attach.Config{Store: store, Runtime: e.agents, Sessions: c.Auth, Activity: e.used, PerUser: 3, CheckInterval: 50 * time.Millisecond})
		c.Attach = e.attacher
		c.Heartbeat = 20 * time.Millisecond
	})
	return e
}

// running makes a workspace that runs, with an agent.
func (e *execEnv) running(p person, name string) (workspace.Workspace, *agenttest.Agent) {
	e.t.Helper()
	ws := e.workspace(p, name)
	e.Exec(`UPDATE workspaces SET phase = 'RUNNING', desired_state = 'RUNNING' WHERE id = $1`, ws.ID)
	return ws, e.agents.Start(ws.ID)
}

// client returns a client with a token of a user.
func (e *execEnv) client(p person) *client.Client {
	e.t.Helper()
	c, err := client.New(e.HTTP.URL, e.token(p))
	if err != nil {
		e.t.Fatal(err)
	}
	return c
}

func (e *execEnv) token(p person) string {
	e.t.Helper()
	a := e.want(http.StatusCreated, "", "POST", "/tokens", `{"name":"exec"}`, as(p))
	return read[api.Token](e.t, a).Token
}

// run runs a command to its end.
func (e *execEnv) run(c *client.Client, id workspace.ID, command api.Exec, stdin string) (stdout, stderr string, code int, err error) {
	e.t.Helper()
	x, err := c.Exec(e.t.Context(), string(id), command)
	if err != nil {
		return "", "", 0, err
	}
	defer x.Close()
	go func() { _ = x.Stdin(e.t.Context(), strings.NewReader(stdin)) }()
	var out, errs bytes.Buffer
	code, err = x.Run(e.t.Context(), &out, &errs, nil)
	return out.String(), errs.String(), code, err
}

func TestExecRunsCommands(t *testing.T) {
	t.Parallel()
	e := newExecEnv(t)
	ws, _ := e.running(e.ann, "site")
	c := e.client(e.ann)
	for _, tc := range []struct {
		name    string
		command api.Exec
		stdin   string
		out     string
		errs    string
		code    int
	}{
		{name: "arguments", command: api.Exec{Args: []string{"printf", "%s-%s", "a b", "$HOME"}}, out: "a b-$HOME"},
		{name: "standard input and error", command: api.Exec{Shell: "cat; echo no >&2; exit 7"}, stdin: "hello\n", out: "hello\n", errs: "no\n", code: 7},
		{name: "environment", command: api.Exec{Shell: "echo $A", Env: []string{"A=b c"}}, out: "b c\n"},
		{name: "terminal", command: api.Exec{Shell: "stty size", Terminal: &api.ExecTerminal{Name: "xterm", Rows: 33, Cols: 99}}, out: "33 99\r\n"},
		{name: "a signal", command: api.Exec{Shell: "kill -TERM $$"}, code: 143},
		{name: "much of both", command: api.Exec{Shell: "head -c 3000000 /dev/zero; cat | wc -c >&2"}, stdin: strings.Repeat("x", 2_000_000), out: string(make([]byte, 3_000_000)), errs: "2000000\n"},
	} {
		out, errs, code, err := e.run(c, ws.ID, tc.command, tc.stdin)
		if err != nil || out != tc.out || strings.TrimLeft(errs, " ") != tc.errs || code != tc.code {
			t.Errorf("%s: %.60q %.60q %d %v, want %.60q %.60q %d", tc.name, out, errs, code, err, tc.out, tc.errs, tc.code)
		}
	}
	if _, _, _, err := e.run(c, ws.ID, api.Exec{Args: []string{"/no/such/program"}}, ""); client.CodeOf(err) != "command_not_started" {
		t.Errorf("a missing program: %v", err)
	}
	if _, _, _, err := e.run(c, ws.ID, api.Exec{Args: []string{"ls"}, Shell: "ls"}, ""); client.CodeOf(err) != "invalid" && client.CodeOf(err) != "invalid_request" {
		t.Errorf("two commands: %v (%s)", err, client.CodeOf(err))
	}
}

// Signals and the size of the terminal reach a command that runs, and its use is recorded.
func TestExecSignalsAndActivity(t *testing.T) {
	t.Parallel()
	e := newExecEnv(t)
	ws, _ := e.running(e.ann, "site")
	x, err := e.client(e.ann).Exec(t.Context(), string(ws.ID), api.Exec{Shell: "trap 'stty size; exit 5' WINCH; echo ready; while :; do sleep 0.05; done", Terminal: &api.ExecTerminal{Name: "xterm", Rows: 10, Cols: 20}})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	stdout, printed := io.Pipe()
	out := make(chan string, 1)
	go func() {
		lines := bufio.NewReader(stdout)
		first, _ := lines.ReadString('\n')
		_ = x.Resize(t.Context(), 44, 56) // the trap is set
		rest, _ := io.ReadAll(lines)
		out <- first + string(rest)
	}()
	code, err := x.Run(t.Context(), printed, io.Discard, nil)
	_ = printed.Close()
	if got := <-out; err != nil || code != 5 || got != "ready\r\n44 56\r\n" {
		t.Errorf("resized: %q %d %v", got, code, err)
	}
	if a, ok := e.used.Last(ws.ID); !ok || a.Kind != activity.Output {
		t.Errorf("the last use is %v, want output", a)
	}
	y, err := e.client(e.ann).Exec(t.Context(), string(ws.ID), api.Exec{Args: []string{"sleep", "100"}})
	if err != nil {
		t.Fatal(err)
	}
	go func() { <-y.Started(); _ = y.Signal(t.Context(), "INT") }()
	if code, err := y.Run(t.Context(), io.Discard, io.Discard, nil); code != 130 || err != nil {
		t.Errorf("interrupted: %d %v", code, err)
	}
}

// An idle terminal is not use, though its connection is kept open.
func TestExecIdleTerminalIsNoActivity(t *testing.T) {
	t.Parallel()
	e := newExecEnv(t)
	ws, _ := e.running(e.ann, "site")
	conn := e.dial(e.ann, ws.ID, nil)
	defer conn.CloseNow()
	writeText(t, conn, api.Exec{Shell: "read x", Terminal: &api.ExecTerminal{Name: "xterm", Rows: 10, Cols: 20}})
	waitFor(t, conn, api.ExecStarted)
	begun, _ := e.used.Last(ws.ID)
	for range 3 {
		waitFor(t, conn, api.ExecHeartbeat)
	}
	if now, _ := e.used.Last(ws.ID); now != begun {
		t.Errorf("used at %v, %v", now, begun)
	}
	if err := conn.Write(t.Context(), websocket.MessageBinary, []byte("a")); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the condition", func() bool { now, _ := e.used.Last(ws.ID); return now.At.After(begun.At) })
}

// dial opens the WebSocket as a page of the server does.
func (e *execEnv) dial(p person, id workspace.ID, change func(http.Header)) *websocket.Conn {
	e.t.Helper()
	conn, resp, err := e.tryDial(p, id, change)
	if err != nil {
		e.t.Fatalf("open the WebSocket: %v (%v)", err, resp)
	}
	return conn
}

func (e *execEnv) tryDial(p person, id workspace.ID, change func(http.Header)) (*websocket.Conn, *http.Response, error) {
	h := http.Header{"Cookie": {p.cookie.Name + "=" + p.cookie.Value}, "Origin": {e.HTTP.URL}}
	if change != nil {
		change(h)
	}
	return websocket.Dial(e.t.Context(), e.HTTP.URL+Prefix+"/workspaces/"+string(id)+"/exec", &websocket.DialOptions{HTTPHeader: h})
}

func writeText(t *testing.T, conn *websocket.Conn, v any) {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Write(t.Context(), websocket.MessageText, b); err != nil {
		t.Fatal(err)
	}
}

// waitFor reads until a message of this type comes.
func waitFor(t *testing.T, conn *websocket.Conn, kind string) api.ExecOutput {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for {
		typ, b, err := conn.Read(ctx)
		if err != nil {
			t.Fatalf("wait for %s: %v", kind, err)
		}
		var m api.ExecOutput
		if typ == websocket.MessageBinary {
			continue
		}
		if err := json.Unmarshal(b, &m); err != nil {
			t.Fatal(err)
		}
		if m.Type == kind {
			return m
		}
		if m.Type == api.ExecError || m.Type == api.ExecExit {
			t.Fatalf("wait for %s: %s", kind, b)
		}
	}
}

// Only a page of the server itself, or a token, opens the WebSocket.
func TestExecRefusesOtherOrigins(t *testing.T) {
	t.Parallel()
	e := newExecEnv(t)
	ws, _ := e.running(e.ann, "site")
	token := e.token(e.ann)
	host := strings.TrimPrefix(e.HTTP.URL, "http://")
	for _, tc := range []struct {
		name   string
		change func(http.Header)
		status int
	}{
		{"another site", func(h http.Header) { h.Set("Origin", "https://evil.example") }, http.StatusForbidden},
		{"a workspace's page", func(h http.Header) { h.Set("Origin", "http://"+string(ws.ID)+"."+host) }, http.StatusForbidden},
		{"a sandboxed page", func(h http.Header) { h.Set("Origin", "null") }, http.StatusForbidden},
		{"a cookie without an origin", func(h http.Header) { h.Del("Origin") }, http.StatusForbidden},
		{"no session", func(h http.Header) { h.Del("Cookie") }, http.StatusUnauthorized},
		{"a token of no use to another site's page", func(h http.Header) {
			h.Del("Cookie")
			h.Set(api.TokenHeader, token)
			h.Set("Origin", "https://evil.example")
		}, http.StatusForbidden},
		{"a token", func(h http.Header) { h.Del("Cookie"); h.Del("Origin"); h.Set(api.TokenHeader, token) }, http.StatusSwitchingProtocols},
		{"its own page", nil, http.StatusSwitchingProtocols},
	} {
		conn, resp, err := e.tryDial(e.ann, ws.ID, tc.change)
		if resp == nil || resp.StatusCode != tc.status {
			t.Errorf("%s: %v %v, want %d", tc.name, resp, err, tc.status)
		}
		if err == nil {
			conn.CloseNow()
		}
	}
	e.want(http.StatusUpgradeRequired, "upgrade_required", "GET", "/workspaces/"+string(ws.ID)+"/exec", "", as(e.ann))
	if _, resp, err := e.tryDial(e.eve, ws.ID, nil); resp == nil || resp.StatusCode != http.StatusForbidden {
		t.Errorf("another user's workspace: %v %v", resp, err)
	}
}

// lastError returns the code of the error with which the server ends.
func lastError(t *testing.T, conn *websocket.Conn) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for {
		typ, b, err := conn.Read(ctx)
		if err != nil {
			t.Fatalf("wait for an error: %v", err)
		}
		var m api.ExecOutput
		if typ == websocket.MessageText && json.Unmarshal(b, &m) == nil && m.Type == api.ExecError {
			return m.Error.Code
		}
	}
}

// A command ends when the access ends, whatever its client reads.
func TestExecEndsWithAccess(t *testing.T) {
	t.Parallel()
	e := newExecEnv(t)
	ws, _ := e.running(e.ann, "site")
	for _, tc := range []struct {
		name, want string
		end        func(p person)
	}{
		{"logout", "unauthenticated", func(p person) {
			if err := e.Auth.Logout(t.Context(), p.Caller); err != nil {
				t.Fatal(err)
			}
		}},
		{"stop", "workspace_stopped", func(person) {
			e.Exec(`UPDATE workspaces SET operation = 'STOPPING', op_id = gen_random_uuid() WHERE id = $1`, ws.ID)
		}},
	} {
		p := e.enter("ann")
		conn := e.dial(p, ws.ID, nil)
		writeText(t, conn, api.Exec{Shell: "cat", Terminal: &api.ExecTerminal{Name: "xterm", Rows: 10, Cols: 20}})
		waitFor(t, conn, api.ExecStarted)
		tc.end(p)
		if code := lastError(t, conn); code != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, code, tc.want)
		}
		conn.CloseNow()
	}
}

// A client that reads nothing keeps neither the command nor its access open.
func TestExecEndsClientsThatDoNotRead(t *testing.T) {
	t.Parallel()
	e := newExecEnv(t)
	ws, _ := e.running(e.ann, "site")
	p := e.enter("ann")
	conn := e.dial(p, ws.ID, nil)
	defer conn.CloseNow()
	writeText(t, conn, api.Exec{Shell: "yes"})
	harness.Eventually(t, "the condition", func() bool { _, ok := e.used.Last(ws.ID); return ok })
	if err := e.Auth.Logout(t.Context(), p.Caller); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the condition", func() bool { return e.Streams.Open() == 0 })
}

// With a window, no more output is sent than the client has acknowledged.
func TestExecWindow(t *testing.T) {
	t.Parallel()
	e := newExecEnv(t)
	ws, agent := e.running(e.ann, "site")
	conn := e.dial(e.ann, ws.ID, nil)
	defer conn.CloseNow()
	const window, all = 64 << 10, 2 << 20
	writeText(t, conn, api.Exec{Shell: "head -c 2097152 /dev/zero; touch " + agent.Home + "/done", Window: window})
	got, open := 0, 0
	for got < all {
		typ, b, err := conn.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if typ == websocket.MessageText {
			var m api.ExecOutput
			if err := json.Unmarshal(b, &m); err != nil || m.Type == api.ExecError {
				t.Fatalf("%s %v", b, err)
			}
			if m.Type == api.ExecHeartbeat && open > 0 { // nothing more comes: the window is full
				writeText(t, conn, api.ExecInput{Type: api.ExecAck, Bytes: open})
				open = 0
			}
			continue
		}
		got, open = got+len(b)-1, open+len(b)-1
		if open > window+execPiece {
			t.Fatalf("%d bytes were sent without an acknowledgement", open)
		}
	}
	if m := waitFor(t, conn, api.ExecExit); *m.Code != 0 {
		t.Errorf("exit %d", *m.Code)
	}
}

// A client with a window that sends input without waiting gets all output, although its
// acknowledgements are behind input that the command reads only after its output is taken.
func TestExecWindowWithUnreadInput(t *testing.T) {
	t.Parallel()
	e := newExecEnv(t)
	ws, _ := e.running(e.ann, "site")
	conn := e.dial(e.ann, ws.ID, nil)
	defer conn.CloseNow()
	// The buffers of the connections hold less than the output, and less than the input.
	const window, all = 8 << 20, 32 << 20
	writeText(t, conn, api.Exec{Shell: "head -c 33554432 /dev/zero; exec wc -c >&2", Window: window})
	waitFor(t, conn, api.ExecStarted)
	acks := make(chan int, 1<<20) // sent in the order of the messages, as a browser does
	go func() {
		for range all / (64 << 10) {
			_ = conn.Write(t.Context(), websocket.MessageBinary, make([]byte, 64<<10))
		}
		for n := range acks {
			_ = conn.Write(t.Context(), websocket.MessageText, fmt.Appendf(nil, `{"type":"ack","bytes":%d}`, n))
		}
		_ = conn.Write(t.Context(), websocket.MessageText, []byte(`{"type":"end"}`))
	}()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for got := 0; got < all; {
		typ, b, err := conn.Read(ctx)
		if err != nil {
			t.Fatalf("after %d bytes: %v", got, err)
		}
		if typ == websocket.MessageBinary {
			got += len(b) - 1
			acks <- len(b) - 1
		}
	}
	close(acks)
	if m := waitFor(t, conn, api.ExecExit); *m.Code != 0 {
		t.Errorf("exit %d", *m.Code)
	}
}

// A user has a limited number of commands, and a stopped workspace is started.
func TestExecLimitsAndWakes(t *testing.T) {
	t.Parallel()
	e := newExecEnv(t)
	ws, _ := e.running(e.ann, "site")
	for range 3 {
		conn := e.dial(e.ann, ws.ID, nil)
		defer conn.CloseNow()
		writeText(t, conn, api.Exec{Shell: "cat"})
		waitFor(t, conn, api.ExecStarted)
	}
	conn := e.dial(e.ann, ws.ID, nil)
	defer conn.CloseNow()
	writeText(t, conn, api.Exec{Shell: "cat"})
	if code := lastError(t, conn); code != "too_many_streams" {
		t.Errorf("the fourth: %s", code)
	}

	slept := e.workspace(e.eve, "asleep")
	e.Exec(`UPDATE workspaces SET phase = 'STANDBY', desired_state = 'STANDBY' WHERE id = $1`, slept.ID)
	woken := e.dial(e.eve, slept.ID, nil)
	defer woken.CloseNow()
	writeText(t, woken, api.Exec{Args: []string{"true"}})
	if m := waitFor(t, woken, api.ExecProgress); m.Workspace.ID != string(slept.ID) || m.Workspace.DesiredState != "RUNNING" {
		t.Errorf("progress of %+v", m.Workspace)
	}
	e.agents.Start(slept.ID)
	e.Exec(`UPDATE workspaces SET phase = 'RUNNING' WHERE id = $1`, slept.ID)
	if m := waitFor(t, woken, api.ExecExit); *m.Code != 0 {
		t.Errorf("exit %d", *m.Code)
	}

	archived := e.workspace(e.eve, "archived")
	e.Exec(`UPDATE workspaces SET phase = 'ARCHIVED', desired_state = 'ARCHIVED' WHERE id = $1`, archived.ID)
	if _, _, _, err := e.run(e.client(e.eve), archived.ID, api.Exec{Args: []string{"true"}}, ""); client.CodeOf(err) != "not_running" {
		t.Errorf("an archived workspace: %v", err)
	}
	var lost *client.Error
	if _, _, _, err := e.run(e.client(e.eve), ws.ID, api.Exec{Args: []string{"true"}}, ""); !errors.As(err, &lost) {
		t.Errorf("another user's: %v", err)
	}
}

// asleep makes a stopped workspace.
func (e *execEnv) asleep(p person, name string) workspace.Workspace {
	e.t.Helper()
	ws := e.workspace(p, name)
	e.Exec(`UPDATE workspaces SET phase = 'STANDBY', desired_state = 'STANDBY' WHERE id = $1`, ws.ID)
	return ws
}

// A client that disconnects before its workspace runs starts no command, even if it has sent input
// ahead.
func TestExecOfGoneClientDoesNotRun(t *testing.T) {
	t.Parallel()
	e := newExecEnv(t)
	for name, ahead := range map[string]func(*websocket.Conn){
		"nothing ahead": func(*websocket.Conn) {},
		"the end of its input": func(conn *websocket.Conn) {
			writeText(t, conn, api.ExecInput{Type: api.ExecEnd})
		},
		"more input than is read ahead": func(conn *websocket.Conn) {
			for range 4 {
				if err := conn.Write(t.Context(), websocket.MessageBinary, make([]byte, 100<<10)); err != nil {
					t.Fatal(err)
				}
			}
		},
	} {
		ws := e.asleep(e.ann, "site")
		conn := e.dial(e.ann, ws.ID, nil)
		writeText(t, conn, api.Exec{Shell: "touch ran"})
		waitFor(t, conn, api.ExecProgress)
		ahead(conn)
		waitFor(t, conn, api.ExecHeartbeat)
		conn.CloseNow()
		harness.Eventually(t, "the end of the wait: "+name, func() bool { return e.Streams.Open() == 0 })
		agent := e.agents.Start(ws.ID)
		e.Exec(`UPDATE workspaces SET phase = 'RUNNING' WHERE id = $1`, ws.ID)
		time.Sleep(100 * time.Millisecond) // longer than attach's interval
		if _, err := os.Stat(filepath.Join(agent.Home, "ran")); err == nil {
			t.Errorf("%s: the command ran", name)
		}
		e.Exec(`UPDATE workspaces SET phase = 'STANDBY', desired_state = 'STANDBY', name = id::text WHERE id = $1`, ws.ID)
	}
}

// Input that a client sends ahead reaches the command in its order, however much it is.
func TestExecInputAhead(t *testing.T) {
	t.Parallel()
	e := newExecEnv(t)
	ws := e.asleep(e.ann, "site")
	conn := e.dial(e.ann, ws.ID, nil)
	defer conn.CloseNow()
	const pieces, size = 8, 100 << 10
	// The command ends with 0 if each piece consists of its number.
	writeText(t, conn, api.Exec{Shell: `i=0; while [ $i -lt 8 ]; do test "$(head -c 102400 | tr -d $i | wc -c)" -eq 0 || exit 1; i=$((i+1)); done; test "$(wc -c)" -eq 0`})
	waitFor(t, conn, api.ExecProgress)
	go func() {
		for n := range pieces {
			_ = conn.Write(t.Context(), websocket.MessageBinary, bytes.Repeat([]byte(strconv.Itoa(n)), size))
		}
		_ = conn.Write(t.Context(), websocket.MessageText, []byte(`{"type":"end"}`))
	}()
	waitFor(t, conn, api.ExecHeartbeat)
	e.agents.Start(ws.ID)
	e.Exec(`UPDATE workspaces SET phase = 'RUNNING' WHERE id = $1`, ws.ID)
	if m := waitFor(t, conn, api.ExecExit); *m.Code != 0 {
		t.Errorf("exit %d", *m.Code)
	}
}

// The usage of a workspace is measured only for its owner, and does not count as activity.
func TestUsage(t *testing.T) {
	t.Parallel()
	e := newExecEnv(t)
	ws, agent := e.running(e.ann, "site")
	release, err := busy.Hold(t.Context(), agent.BusySocket, "make\ttest\x1b[0m")
	if err != nil {
		t.Fatal(err)
	}
	path := "/workspaces/" + string(ws.ID) + "/usage"
	u := read[api.Usage](t, e.want(http.StatusOK, "", "GET", path, "", as(e.ann)))
	if u.Disk != nil || u.DiskSize != testSizes.Default.Disk || len(u.Holders) != 1 || u.Holders[0].What != "make test[0m" || time.Since(u.Holders[0].Since) > time.Minute {
		t.Errorf("usage: %+v", u)
	}
	release()
	harness.Eventually(t, "the holder is gone", func() bool {
		return len(read[api.Usage](t, e.want(http.StatusOK, "", "GET", path, "", as(e.ann))).Holders) == 0
	})
	e.Exec(`UPDATE workspaces SET home_bytes = 5000 WHERE id = $1`, ws.ID)
	if u = read[api.Usage](t, e.want(http.StatusOK, "", "GET", path, "", as(e.ann))); u.Disk == nil || *u.Disk != 5000 {
		t.Errorf("the usage of a measured home: %+v", u)
	}
	if a, ok := e.used.Last(ws.ID); ok {
		t.Errorf("used: %+v", a)
	}
	e.want(http.StatusForbidden, "forbidden", "GET", path, "", as(e.eve))
	e.Exec(`UPDATE workspaces SET phase = 'STANDBY', desired_state = 'STANDBY' WHERE id = $1`, ws.ID)
	e.want(http.StatusConflict, "not_running", "GET", path, "", as(e.ann))
	if state := read[api.Workspace](t, e.want(http.StatusOK, "", "GET", "/workspaces/"+string(ws.ID), "", as(e.ann))).DesiredState; state != "STANDBY" {
		t.Errorf("it was woken: %s", state)
	}
}
