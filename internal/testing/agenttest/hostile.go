package agenttest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	"codehub/internal/runtime/agent"
	"codehub/internal/workspace"
)

// Answers is what a hostile agent does with the requests for each path. It answers
// PathHello as an honest one, and the other paths with 404, unless there is an entry.
type Answers map[string]Answer

// Answer answers a request. The connection is closed when it returns.
type Answer func(c *Call)

// Call is a request to a hostile agent.
type Call struct {
	net.Conn
	Request *http.Request // its body is in Body
	Body    []byte

	early *bufio.Reader // what has arrived behind the request
}

// Read reads what the server sends after its request.
func (c *Call) Read(p []byte) (int, error) { return c.early.Read(p) }

// Hostile returns an agent that is in the hands of the workspace's user.
func Hostile(t testing.TB, answers Answers) *Agent {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := newAgent(l)
	go func() {
		defer close(n.served)
		n.answer(tracked{l, n}, answers)
	}()
	t.Cleanup(n.stop)
	return n
}

// Replace puts a hostile agent in the place of a workspace's agent.
func (a *Agents) Replace(id workspace.ID, answers Answers) *Agent {
	a.t.Helper()
	a.Stop(id)
	n := Hostile(a.t, answers)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.by[id] = n
	return n
}

// answer answers requests until the listener is closed.
func (n *Agent) answer(l net.Listener, answers Answers) {
	var calls sync.WaitGroup
	defer calls.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		calls.Go(func() {
			defer conn.Close()
			early := bufio.NewReader(conn)
			r, err := http.ReadRequest(early)
			if err != nil {
				return
			}
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			c := &Call{Conn: conn, Request: r, Body: body, early: early}
			switch answer := answers[r.URL.Path]; {
			case answer != nil:
				answer(c)
			case r.URL.Path == agent.PathHello:
				JSON(agent.Hello{Version: agent.Version, Oldest: agent.Oldest, Codehub: "hostile"})(c)
			default:
				Refused(http.StatusNotFound, "there is none")(c)
			}
		})
	}
}

// Raw answers with these bytes.
func Raw(text string) Answer {
	return func(c *Call) { _, _ = io.WriteString(c, text) }
}

// JSON answers with v.
func JSON(v any) Answer {
	return func(c *Call) { answerJSON(c, "200 OK", v) }
}

// Refused answers with an error.
func Refused(status int, message string) Answer {
	return func(c *Call) { answerJSON(c, fmt.Sprint(status, " Refused"), agent.Problem{Message: message}) }
}

func answerJSON(c *Call, status string, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	fmt.Fprintf(c, "HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s", status, len(b), b)
}

// Upgraded begins a conversation.
func Upgraded(conversation Answer) Answer {
	return func(c *Call) {
		if _, err := io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\n\r\n"); err == nil {
			conversation(c)
		}
	}
}

// Silent reads and answers nothing.
func Silent(c *Call) { _, _ = io.Copy(io.Discard, c) }

// Endless begins with these bytes, and repeats the others until the server closes the
// connection.
func Endless(begin, repeat string) Answer {
	return func(c *Call) {
		_, err := io.WriteString(c, begin)
		for more := bytes.Repeat([]byte(repeat), 1+(32<<10)/len(repeat)); err == nil; {
			_, err = c.Write(more)
		}
	}
}

// Frames returns frames as bytes.
func Frames(frames ...agent.Frame) string {
	var b bytes.Buffer
	w := agent.NewFrameWriter(&b)
	for _, f := range frames {
		_ = w.Write(f.Kind, f.Payload) // to memory
	}
	return b.String()
}

// Event is a frame of a listener's conversation.
func Event(v any) agent.Frame {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return agent.Frame{Kind: agent.FrameEvent, Payload: b}
}
