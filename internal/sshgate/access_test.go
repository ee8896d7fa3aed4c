package sshgate_test

import (
	"bufio"
	"crypto/ed25519"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"codehub/internal/activity"
	"codehub/internal/harness"
	"codehub/internal/postgres"
	"codehub/internal/sshgate"
	"codehub/internal/workspace"
)

// open starts a session that stays open, and returns its errors and its end.
func (w *world) open(args ...string) (errs *safeBuffer, exited <-chan int) {
	w.Helper()
	out := &safeBuffer{}
	cmd := w.command("ssh", append(args, "demo", "echo up; sleep 1000")...)
	cmd.Stdout = out
	_, errs, exited = w.background(cmd)
	harness.Eventually(w, "the session to open", func() bool { return out.String() == "up\n" })
	return errs, exited
}

func TestSessionsEndWithAccess(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  func(w *world)
		says string
	}{
		"key removed":      {func(w *world) { check(w, w.db.DB.DeleteSSHKey(w.Context(), w.ann, w.keyID)) }, "key or token was removed"},
		"key expired":      {func(w *world) { w.db.Change(`UPDATE ssh_keys SET expires_at = now()`) }, "has expired"},
		"user disabled":    {func(w *world) { w.db.Change(`UPDATE users SET disabled = true`) }, "account was disabled"},
		"handed over":      {func(w *world) { w.db.Change(`UPDATE workspaces SET owner_user_id = $1`, w.db.AddUser("bob").UserID) }, "no longer have access"},
		"deleted":          {func(w *world) { w.db.Change(`UPDATE workspaces SET deleted_at = now()`) }, "no longer have access"},
		"stopped":          {func(w *world) { w.db.Change(`UPDATE workspaces SET phase = 'STANDBY', desired_state = 'STANDBY'`) }, "was stopped"},
		"container is new": {func(w *world) { w.upstream.replace("two") }, "was stopped"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			errs, exited := w.open()
			master := filepath.Join(w.dir, "m")
			_, idle := w.open("-M", "-S", master)
			c.end(w)
			for _, e := range []<-chan int{exited, idle} {
				if status := <-e; status != 255 {
					t.Errorf("ssh ended with %d", status)
				}
			}
			if !strings.Contains(errs.String(), c.says) {
				t.Errorf("the client says %q, want %q", errs, c.says)
			}
		})
	}
}

func TestServerKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// The connection is relayed, and the relay ends as a killed server does.
	relay := listen(t)
	closed := make(chan struct{})
	go func() {
		c, err := relay.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", w.addr)
		if err != nil {
			return
		}
		go func() { <-closed; c.(*net.TCPConn).SetLinger(0); c.Close(); to.Close() }()
		go func() { _, _ = to.(*net.TCPConn).ReadFrom(c) }()
		_, _ = c.(*net.TCPConn).ReadFrom(to)
	}()
	_, port, err := net.SplitHostPort(relay.Addr().String())
	check(t, err)
	_, exited := w.open("-o", "Port="+port)
	close(closed)
	if status := <-exited; status != 255 {
		t.Errorf("ssh ended with %d", status)
	}
}

func TestUnknownKeysAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other, public := w.newKey("other")
	key := w.key
	w.key = other
	w.configure()
	if r := w.ssh("true"); r.status != 255 || !strings.Contains(r.err, "Permission denied") {
		t.Fatalf("an unregistered key: %+v", r)
	}
	// Bob's key does not open ann's workspace, by name or id.
	bob := w.db.AddUser("bob")
	w.register(bob, "bob", public)
	for _, name := range []string{"demo", string(w.demo.ID)} {
		r := w.run(w.command("ssh", "-l", name, "demo", "true"), "")
		if r.status != 255 || !strings.Contains(r.err, "You have no workspace with the name") || r.out != "" {
			t.Errorf("as %s: %+v", name, r)
		}
	}
	w.key = key
	w.configure()
	w.run(w.command("ssh", "-l", string(w.demo.ID), "demo", "echo by id"), "").want(t, "by id\n")
	w.db.Change(`UPDATE users SET disabled = true WHERE username = 'ann'`)
	if r := w.ssh("true"); r.status != 255 || !strings.Contains(r.err, "Permission denied") {
		t.Errorf("a disabled user: %+v", r)
	}
}

func TestPasswordsAreNotOffered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, method := range []ssh.AuthMethod{ssh.Password("x"), ssh.KeyboardInteractive(func(string, string, []string, []bool) ([]string, error) { return nil, nil })} {
		_, err := ssh.Dial("tcp", w.addr, &ssh.ClientConfig{User: "demo", Auth: []ssh.AuthMethod{method}, HostKeyCallback: ssh.InsecureIgnoreHostKey()})
		if err == nil {
			t.Error("a login without a key was accepted")
		}
	}
	_, err := ssh.Dial("tcp", w.addr, &ssh.ClientConfig{User: "demo", HostKeyCallback: ssh.InsecureIgnoreHostKey()})
	if err == nil {
		t.Error("a login without authentication was accepted")
	}
}

func TestWakingTellsProgress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.db.Change(`UPDATE workspaces SET phase = 'STANDBY', desired_state = 'STANDBY' WHERE id = $1`, w.demo.ID)
	out := &safeBuffer{}
	cmd := w.command("ssh", "demo", "echo in")
	cmd.Stdout = out
	_, errs, exited := w.background(cmd)
	harness.Eventually(t, "the client to say that the workspace starts", func() bool { return strings.Contains(errs.String(), "codehub: demo is starting.\n") })
	if out.String() != "" {
		t.Errorf("output %q", out)
	}
	ws, err := w.db.DB.Workspace(t.Context(), w.ann, w.demo.ID)
	if err != nil || ws.DesiredState != workspace.DesiredRunning {
		t.Errorf("the workspace was not woken: %v %v", ws.DesiredState, err)
	}
	w.db.Change(running, w.demo.ID)
	if status := <-exited; status != 0 || out.String() != "in\n" {
		t.Errorf("status %d, output %q", status, out)
	}
}

// A waiting connection ends when the owner stops the workspace, and does not start it again.
func TestWaitEndsWithStop(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.db.Change(`UPDATE workspaces SET phase = 'STANDBY', desired_state = 'STANDBY' WHERE id = $1`, w.demo.ID)
	_, errs, exited := w.background(w.command("ssh", "demo", "echo in"))
	harness.Eventually(t, "the client to say that the workspace starts", func() bool { return strings.Contains(errs.String(), "starting") })
	stop := workspace.DesiredStandby
	_, err := w.db.DB.PatchWorkspace(t.Context(), w.ann, w.demo.ID, postgres.Patch{Desired: &stop})
	check(t, err)
	if status := <-exited; status != 255 || !strings.Contains(errs.String(), "codehub: demo was stopped while the connection waited for it. Connect again to start it.\n") {
		t.Errorf("status %d: %s", status, errs)
	}
	if ws, err := w.db.DB.Workspace(t.Context(), w.ann, w.demo.ID); err != nil || ws.DesiredState != workspace.DesiredStandby {
		t.Errorf("after the stop: desired %s, %v", ws.DesiredState, err)
	}
}

// A user gives up the wait with Ctrl-C.
func TestWaitIsInterrupted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.db.Change(`UPDATE workspaces SET phase = 'STANDBY', desired_state = 'STANDBY' WHERE id = $1`, w.demo.ID)
	stdin, errs, exited := w.background(w.command("ssh", "-tt", "demo"))
	harness.Eventually(t, "the client to say that the workspace starts", func() bool { return strings.Contains(errs.String(), "starting") })
	_, err := stdin.Write([]byte{3})
	check(t, err)
	if status := <-exited; status != 255 {
		t.Errorf("ended with %d: %s", status, errs)
	}
}

func TestMessagesSayWhatHelps(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, c := range map[string]struct{ set, says string }{
		"archived": {`phase = 'ARCHIVED', desired_state = 'ARCHIVED'`, "demo is archived. Restore it first: codehub restore demo, or http://localhost/workspaces/"},
		"pending":  {`phase = 'PENDING', desired_state = 'ARCHIVED'`, "codehub start demo"},
		"failed":   {`phase = 'ERROR', error_reason = 'Unreachable', error_message = E'no \x1b[31m image.', desired_state = 'RUNNING'`, "demo has failed: no [31m image. To recover it: codehub recover demo, or http://"},
	} {
		w.db.Exec(`UPDATE workspaces SET ` + c.set)
		r := w.ssh("true")
		if r.status != 255 || !strings.Contains(r.err, c.says) || r.out != "" {
			t.Errorf("%s: %+v", name, r)
		}
	}
	// The running limit is 1.
	w.db.Change(`UPDATE workspaces SET phase = 'STANDBY', desired_state = 'STANDBY', error_reason = NULL, error_message = NULL`)
	other := w.db.AddWorkspace(w.ann, "my other one")
	w.db.Change(running, other.ID)
	if r := w.ssh("true"); r.status != 255 || !strings.Contains(r.err, "codehub stop 'my other one'") {
		t.Errorf("the running limit: %+v", r)
	}
	// Without a session, the client learns it as well.
	if r := w.run(w.command("ssh", "-W", "127.0.0.1:1", "demo"), ""); r.status != 255 {
		t.Errorf("%+v", r)
	}
}

func TestUse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	last := func() (time.Time, activity.Kind) {
		a, _ := w.used.Last(w.demo.ID)
		return a.At, a.Kind
	}
	// An idle tunnel, keep-alives and a connection through which little passes are no use.
	service := listen(t)
	echo(t, service)
	port := freePort(t)
	_, log, _ := w.background(w.command("ssh", "-N", "-L", port+":"+service.Addr().String(), "-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=60", "-o", "LogLevel=DEBUG3", "demo"))
	for range 3 {
		echoes(t, dial(t, "tcp", "127.0.0.1:"+port), "ping")
	}
	// SSH_MSG_REQUEST_FAILURE is the answer to a keep-alive.
	harness.Eventually(t, "the answer to a keep-alive", func() bool { return strings.Contains(log.String(), "receive packet: type 82") })
	if at, kind := last(); !at.IsZero() {
		t.Errorf("an idle tunnel counts as %v", kind)
	}
	echoes(t, dial(t, "tcp", "127.0.0.1:"+port), strings.Repeat("typing ", 4<<10))
	harness.Eventually(t, "the tunnel's data to count", func() bool { _, kind := last(); return kind == activity.Client })

	w.ssh("echo", "output").want(t, "output\n")
	harness.Eventually(t, "output to count", func() bool { _, kind := last(); return kind == activity.Output })
	w.run(w.command("ssh", "demo", "cat >/dev/null"), "typing").want(t, "")
	harness.Eventually(t, "typing to count", func() bool { _, kind := last(); return kind == activity.Typing })
}

func TestLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(s *sshgate.Config) { s.MaxPerUser = 2 })
	w.open()
	w.open()
	if r := w.ssh("true"); r.status != 255 || !strings.Contains(r.err, "too many open connections") {
		t.Errorf("%+v", r)
	}
}

// An address whose keys were refused too often is told so, while another one gets in, and
// so does the first one after a while.
func TestFailedKeysAreLimited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var wrong []ssh.Signer
	for range 2 { // few, so that the limit is hardly exceeded and ends soon
		_, private, err := ed25519.GenerateKey(nil)
		check(t, err)
		signer, err := ssh.NewSignerFromKey(private)
		check(t, err)
		wrong = append(wrong, signer)
	}
	const says = "Too many login attempts from your address"
	// tryWrongKeys reports whether the limit refused the connection.
	tryWrongKeys := func() bool {
		_, err := ssh.Dial("tcp", w.addr, &ssh.ClientConfig{User: "demo", Auth: []ssh.AuthMethod{ssh.PublicKeys(wrong...)}, HostKeyCallback: ssh.InsecureIgnoreHostKey()})
		if err == nil {
			t.Fatal("an unregistered key was accepted")
		}
		return strings.Contains(err.Error(), says)
	}
	logins := 0
	for logins < 100 && !tryWrongKeys() {
		logins++
	}
	if logins < 30 || logins == 100 {
		t.Fatalf("refused after %d logins with 2 keys each", logins)
	}
	harness.Eventually(t, "OpenSSH to be refused with the reason", func() bool {
		r := w.ssh("true")
		if r.status != 0 {
			return r.status == 255 && strings.Contains(r.err, says)
		}
		for !tryWrongKeys() { // one more login had become due meanwhile
		}
		return false
	})
	w.run(w.command("ssh", "-o", "BindAddress=127.0.0.2", "demo", "echo in"), "").want(t, "in\n")
	harness.Eventually(t, "the address to be accepted again", func() bool { return w.ssh("true").status == 0 })
}

// A connection that offers no key, as a scan does, counts as a refused one.
func TestScansAreLimited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for range 100 {
		c, err := net.Dial("tcp", w.addr)
		check(t, err)
		check(t, c.SetDeadline(time.Now().Add(20*time.Second)))
		_, err = c.Write([]byte("SSH-2.0-scan\r\n\r\n"))
		check(t, err)
		r := bufio.NewReader(c)
		_, err = r.ReadString('\n') // the server's version
		check(t, err)
		head := make([]byte, 6) // of a packet, with its type
		_, err = io.ReadFull(r, head)
		check(t, err)
		c.Close()
		if head[5] == 1 { // SSH_MSG_DISCONNECT
			return
		}
	}
	t.Error("100 failed logins of an address were accepted")
}

func TestServeCaller(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := listen(t)
	client, err := net.Dial("tcp", l.Addr().String())
	check(t, err)
	server, err := l.Accept()
	check(t, err)
	l.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.gate.ServeCaller(server, w.ann, w.demo.ID, netip.MustParseAddr("192.0.2.1"))
	}()
	host, _, _, _, err := ssh.ParseAuthorizedKey([]byte(w.gate.HostKey()))
	check(t, err)
	conn, channels, requests, err := ssh.NewClientConn(client, "codehub", &ssh.ClientConfig{User: "any", HostKeyCallback: ssh.FixedHostKey(host)})
	check(t, err)
	c := ssh.NewClient(conn, channels, requests)
	s, err := c.NewSession()
	check(t, err)
	out, err := s.Output("echo in; echo ${SSH_CONNECTION%% *}")
	if err != nil || string(out) != "in\n192.0.2.1\n" {
		t.Errorf("%q %v", out, err)
	}
	c.Close()
	<-done
}
