package sshgate_test

import (
	"bytes"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/crypto/ssh"

	"codehub/internal/runtime"
	"codehub/internal/runtime/agent"
	"codehub/internal/testing/agenttest"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// evil is what a terminal would interpret, and what is not UTF-8.
const evil = "\x1b[2J\x1b]0;title\x07\u009b31m\r\n\xff"

// hostile puts an agent in the hands of the workspace's user in the place of demo's.
func (w *world) hostile(answers agenttest.Answers) {
	w.Helper()
	h := agenttest.Hostile(w.TB, answers)
	w.upstream.mu.Lock()
	defer w.upstream.mu.Unlock()
	w.upstream.by = map[workspace.ID]runtime.Upstream{w.demo.ID: h.Upstream}
}

// client connects to a workspace without OpenSSH, which would hide what the server sends.
func (w *world) client(name, keyFile string) *ssh.Client {
	w.Helper()
	c, err := ssh.Dial("tcp", w.addr, w.config(name, keyFile))
	check(w, err)
	w.Cleanup(func() { c.Close() })
	return c
}

func (w *world) config(name, keyFile string) *ssh.ClientConfig {
	w.Helper()
	raw, err := os.ReadFile(keyFile)
	check(w, err)
	key, err := ssh.ParsePrivateKey(raw)
	check(w, err)
	host, _, _, _, err := ssh.ParseAuthorizedKey([]byte(w.gate.HostKey()))
	check(w, err)
	return &ssh.ClientConfig{User: name, Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, HostKeyCallback: ssh.FixedHostKey(host)}
}

// says runs a command and returns its output, its errors, and how the session ended.
func says(t *testing.T, c *ssh.Client) (out, errs string, err error) {
	t.Helper()
	s, err := c.NewSession()
	check(t, err)
	var stdout, stderr bytes.Buffer
	s.Stdout, s.Stderr = &stdout, &stderr
	err = s.Run("true")
	return stdout.String(), stderr.String(), err
}

// unsafe reports whether a terminal would interpret a message of the server.
func unsafe(message string) bool { return strings.ContainsAny(message, "\x1b\x07\r\u009b") }

// What a hostile agent says of a command reaches the terminal as plain text, and its end is one
// that SSH has.
func TestHostileAgentsCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	frames := func(exit string) agenttest.Answer {
		return agenttest.Upgraded(agenttest.Raw(agenttest.Frames(agent.Frame{Kind: 'z'}, agenttest.Event(agent.Accepted{ID: "forged"}), agent.Frame{Kind: agent.FrameExit, Payload: []byte(exit)})))
	}
	for name, test := range map[string]struct {
		exec   agenttest.Answer
		says   string
		status int // -1: none
	}{
		"refused":           {agenttest.Refused(http.StatusUnprocessableEntity, evil+"no such program"), "The command cannot be started: ", -1},
		"ends at once":      {agenttest.Upgraded(agenttest.Raw("")), "The workspace does not respond. Try again in a moment, or restart it: codehub restart demo", -1},
		"frame is too long": {agenttest.Upgraded(agenttest.Raw("o\xff\xff\xff\xff")), "The workspace does not respond. Try again in a moment, or restart it: codehub restart demo", -1},
		"success by 256":    {frames(`{"code":256}`), "", 255},
		"signal of escapes": {frames(`{"code":7,"signal":"\u001b[2J"}`), "", 7},
	} {
		w.hostile(agenttest.Answers{agent.PathExec: test.exec})
		out, errs, err := says(t, w.client("demo", w.key))
		status := 0
		switch e := err.(type) {
		case *ssh.ExitError:
			status = e.ExitStatus()
		case *ssh.ExitMissingError:
			status = -1
		}
		if out != "" || !strings.Contains(errs, test.says) || status != test.status || unsafe(errs) {
			t.Errorf("%s: %q, %q, %v", name, out, errs, err)
		}
	}
}

// Agents of other versions are refused, and the user learns what helps.
func TestAgentOfOtherVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, h := range []agent.Hello{{Version: 0}, {Version: 2, Oldest: 2, Codehub: evil}} {
		w.hostile(agenttest.Answers{agent.PathHello: agenttest.JSON(h)})
		const want = "codehub: The workspace was started by another version of codehub. To enter it, restart it: codehub restart demo\n"
		if r := w.ssh("true"); r.status != 255 || r.err != want {
			t.Errorf("%+v: %+v", h, r)
		}
	}
}

// An agent that does not answer holds a session no longer than its access.
func TestSilentAgentHoldsNoAccess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	asked := make(chan struct{}, 10)
	silent := func(c *agenttest.Call) { asked <- struct{}{}; agenttest.Silent(c) }
	w.hostile(agenttest.Answers{agent.PathExec: silent, agent.PathFiles: agenttest.Upgraded(silent), agent.PathDial: silent, agent.PathListen: agenttest.Upgraded(silent)})
	c := w.client("demo", w.key)
	ended := make(chan struct{}, 4)
	go func() { _, _, _ = says(t, c); ended <- struct{}{} }()
	go func() {
		defer func() { ended <- struct{}{} }()
		if s, err := c.NewSession(); err == nil {
			_ = s.RequestSubsystem("sftp")
			_ = s.Wait()
		}
	}()
	go func() { _, _ = c.Dial("tcp", "127.0.0.1:80"); ended <- struct{}{} }()
	for range 3 {
		<-asked
	}
	// Last, since a session waits for the forwards before it.
	go func() { _, _, _ = c.SendRequest("tcpip-forward", true, forwardOf(4000)); ended <- struct{}{} }()
	<-asked
	check(t, w.db.DB.DeleteSSHKey(t.Context(), w.ann, w.keyID))
	for range 4 {
		<-ended
	}
	_ = c.Wait()
}

// A command runs once the ports are forwarded that its client requested before it, as with
// sshd: it may use them.
func TestCommandWaitsForForward(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var events []string
	var mu sync.Mutex
	happens := func(event string) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, event)
	}
	asked, release := make(chan struct{}), make(chan struct{})
	w.hostile(agenttest.Answers{
		agent.PathListen: agenttest.Upgraded(func(c *agenttest.Call) {
			close(asked)
			select {
			case <-release:
			case <-t.Context().Done():
				return
			}
			happens("listens")
			agenttest.Raw(agenttest.Frames(agenttest.Event(agent.Listening{Address: "127.0.0.1:4000"})))(c)
			agenttest.Silent(c)
		}),
		agent.PathExec: func(*agenttest.Call) { happens("runs") },
	})
	c := w.client("demo", w.key)
	forwarded := make(chan bool, 1)
	go func() {
		ok, _, _ := c.SendRequest("tcpip-forward", true, forwardOf(4000))
		forwarded <- ok
	}()
	<-asked
	s, err := c.NewSession()
	check(t, err)
	check(t, s.Start("true"))
	for range 100 { // round trips, in which the command would most likely have run
		if _, _, err := c.OpenChannel("unknown", nil); err == nil {
			t.Fatal("a channel of an unknown type was opened")
		}
	}
	close(release)
	if !<-forwarded {
		t.Error("the port was not forwarded")
	}
	_ = s.Wait()
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(events, []string{"listens", "runs"}) {
		t.Errorf("%q", events)
	}
}

// A client that asked for no more sessions opens none, but other channels.
func TestNoMoreSessions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client("demo", w.key)
	if _, _, err := says(t, c); err != nil {
		t.Fatal(err)
	}
	if ok, _, err := c.SendRequest("no-more-sessions@openssh.com", true, nil); err != nil || !ok {
		t.Fatal(ok, err)
	}
	if _, err := c.NewSession(); err == nil {
		t.Error("a session was opened")
	}
	service := listen(t)
	echo(t, service)
	conn, err := c.Dial("tcp", service.Addr().String())
	check(t, err)
	check(t, conn.Close())
}

func forwardOf(port uint32) []byte {
	return ssh.Marshal(struct {
		Address string
		Port    uint32
	}{"localhost", port})
}

// forwardedTo is what a channel of a listener says.
type forwardedTo struct {
	Address    string
	Port       uint32
	Origin     string
	OriginPort uint32
}

// listens answers as the agent of a listener with these events.
func listens(address string, remotes ...string) agenttest.Answers {
	frames := []agent.Frame{agenttest.Event(agent.Listening{Address: address})}
	for _, remote := range remotes {
		frames = append(frames, agenttest.Event(agent.Accepted{ID: "forged", Remote: remote}))
	}
	return agenttest.Answers{
		agent.PathListen: agenttest.Upgraded(func(c *agenttest.Call) { agenttest.Raw(agenttest.Frames(frames...))(c); agenttest.Silent(c) }),
		agent.PathAccept: agenttest.Upgraded(agenttest.Silent),
	}
}

// A forged connection comes from the forward that its listener was asked for, whatever the agent
// says of ports and addresses.
func TestForgedForwards(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, claim := range []string{"127.0.0.1:22", "", evil, "127.0.0.1:99999"} {
		w.hostile(listens(claim, evil, "127.0.0.1:99999", "[fe80::1%eth0]:7"))
		c := w.client("demo", w.key)
		channels := c.HandleChannelOpen("forwarded-tcpip")
		if ok, reply, err := c.SendRequest("tcpip-forward", true, forwardOf(4000)); err != nil || !ok || len(reply) != 0 {
			t.Fatalf("listening at %q: %v, %q, %v", claim, ok, reply, err)
		}
		for range 3 {
			n := <-channels
			var to forwardedTo
			check(t, ssh.Unmarshal(n.ExtraData(), &to))
			if to.Address != "localhost" || to.Port != 4000 || to.Origin != "127.0.0.1" && to.Origin != "fe80::1" {
				t.Errorf("at %q: %+v", claim, to)
			}
			check(t, n.Reject(ssh.Prohibited, ""))
		}
		c.Close()
	}
	for claim, want := range map[string]uint32{"": 0, evil: 0, "127.0.0.1:0": 0, "127.0.0.1:65536": 0, "localhost:80": 0, "/tmp/socket": 0, "127.0.0.1:2222": 2222} {
		w.hostile(listens(claim))
		c := w.client("demo", w.key)
		ok, reply, err := c.SendRequest("tcpip-forward", true, forwardOf(0))
		check(t, err)
		if ok != (want != 0) || ok && !bytes.Equal(reply, ssh.Marshal(struct{ Port uint32 }{want})) {
			t.Errorf("a port of the agent's choice, %q: %v, %q", claim, ok, reply)
		}
		if again, _, err := c.SendRequest("tcpip-forward", true, forwardOf(0)); err != nil || again {
			t.Errorf("the same port twice, %q: %v, %v", claim, again, err)
		}
		c.Close()
	}
}

// Connections that an agent invents without end take no more channels than their user has, and
// reach no other connection of the user, and no other user.
func TestForgedConnectionsAreLimited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	answers := listens("127.0.0.1:4000")
	answers[agent.PathListen] = agenttest.Upgraded(agenttest.Endless(agenttest.Frames(agenttest.Event(agent.Listening{})), agenttest.Frames(agenttest.Event(agent.Accepted{ID: "forged"}))))
	w.hostile(answers)
	file, public := w.newKey("bob")
	bob := w.db.AddUser("bob")
	w.register(bob, "bob", public)
	w.db.Change(running, w.db.AddWorkspace(bob, "his").ID)

	var wrong atomic.Int64
	his, second, first := w.client("his", file), w.client("demo", w.key), w.client("demo", w.key)
	for _, c := range []*ssh.Client{his, second} {
		channels := c.HandleChannelOpen("forwarded-tcpip")
		go func() {
			for n := range channels {
				wrong.Add(1)
				_ = n.Reject(ssh.Prohibited, "")
			}
		}()
	}
	var opened atomic.Int64
	channels := first.HandleChannelOpen("forwarded-tcpip")
	go func() {
		for range channels { // without an answer
			opened.Add(1)
		}
	}()
	if ok, _, err := first.SendRequest("tcpip-forward", true, forwardOf(4000)); err != nil || !ok {
		t.Fatal(ok, err)
	}
	const most = 512 - 3 // two connections and the listener count as well
	harness.Eventually(t, "all channels are taken", func() bool { return opened.Load() == most })
	if out, errs, err := says(t, his); err != nil || out != "" {
		t.Errorf("another user's command: %q, %q, %v", out, errs, err)
	}
	if _, _, err := second.SendRequest("keepalive@openssh.com", true, nil); err != nil {
		t.Error(err)
	}
	if n, m := opened.Load(), wrong.Load(); n != most || m != 0 {
		t.Errorf("%d channels were opened, and %d on other connections", n, m)
	}
	first.Close()
	// The user has channels again.
	harness.Eventually(t, "another session", func() bool {
		s, err := second.NewSession()
		if err == nil {
			s.Close()
		}
		return err == nil
	})
}

// A workspace that does not make the socket of an SSH agent keeps no session from starting.
func TestAgentForwardingToSilentAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, files := range map[string]agenttest.Answer{
		"silent": agenttest.Upgraded(agenttest.Silent), "no SFTP": agenttest.Upgraded(agenttest.Raw(evil)), "long packet": agenttest.Upgraded(agenttest.Raw("\xff\xff\xff\xff\x02")),
		"refused": agenttest.Refused(http.StatusTeapot, evil),
	} {
		w.hostile(agenttest.Answers{
			agent.PathFiles: files,
			agent.PathExec:  agenttest.Upgraded(agenttest.Raw(agenttest.Frames(agent.Frame{Kind: agent.FrameStdout, Payload: []byte("in")}, agent.Frame{Kind: agent.FrameExit, Payload: []byte("{}")}))),
		})
		c := w.client("demo", w.key)
		s, err := c.NewSession()
		check(t, err)
		var stdout, stderr bytes.Buffer
		s.Stdout, s.Stderr = &stdout, &stderr
		if ok, err := s.SendRequest("auth-agent-req@openssh.com", true, nil); err != nil || !ok {
			t.Fatal(ok, err)
		}
		if err := s.Run("true"); err != nil || stdout.String() != "in" || !strings.Contains(stderr.String(), "The SSH agent cannot be forwarded") || unsafe(stderr.String()) {
			t.Errorf("%s: %q, %q, %v", name, stdout.String(), stderr.String(), err)
		}
		c.Close()
	}
}
