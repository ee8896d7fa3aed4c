package sshgate_test

import (
	"crypto/ed25519"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"codehub/internal/bus/activity"
	"codehub/internal/postgres"
	"codehub/internal/testing/harness"
	"codehub/internal/web/sshgate"
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

// The other ends of an attachment are in package attach; TestGuestOfWorkspace is about the end
// of access to the workspace.
func TestSessionsEndWithAccess(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  func(w *world)
		says string
	}{
		"key removed":   {func(w *world) { check(w, w.db.DB.DeleteSSHKey(w.Context(), w.ann, w.keyID)) }, "key or token was removed"},
		"key expired":   {func(w *world) { w.db.Change(`UPDATE ssh_keys SET expires_at = now()`) }, "has expired"},
		"user disabled": {func(w *world) { w.db.Change(`UPDATE users SET disabled = true`) }, "account was disabled"},
		"stopped":       {func(w *world) { w.db.Change(`UPDATE workspaces SET phase = 'STANDBY', desired_state = 'STANDBY'`) }, "was stopped"},
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

// A connection starts the workspace and tells so. Its wait ends with Ctrl-C, or when the owner
// stops the workspace, which it does not start again.
func TestWaitForStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	starts := func(args ...string) (stdin io.Writer, out, errs *safeBuffer, exited <-chan int) {
		t.Helper()
		w.db.Change(`UPDATE workspaces SET phase = 'STANDBY', desired_state = 'STANDBY' WHERE id = $1`, w.demo.ID)
		out = &safeBuffer{}
		cmd := w.command("ssh", args...)
		cmd.Stdout = out
		stdin, errs, exited = w.background(cmd)
		harness.Eventually(t, "the client to say that the workspace starts", func() bool { return strings.Contains(errs.String()+out.String(), "codehub: demo is starting.") })
		return stdin, out, errs, exited
	}
	desired := func() workspace.DesiredState {
		t.Helper()
		ws, err := w.db.DB.Workspace(t.Context(), w.ann, w.demo.ID)
		check(t, err)
		return ws.DesiredState
	}
	stdin, _, errs, exited := starts("-tt", "demo")
	_, err := stdin.Write([]byte{3})
	check(t, err)
	if status := <-exited; status != 255 {
		t.Errorf("after Ctrl-C: ended with %d: %s", status, errs)
	}

	_, _, errs, exited = starts("demo", "echo in")
	stop := workspace.DesiredStandby
	_, err = w.db.DB.PatchWorkspace(t.Context(), w.ann, w.demo.ID, postgres.Patch{Desired: &stop})
	check(t, err)
	if status := <-exited; status != 255 || !strings.Contains(errs.String(), "codehub: demo was stopped while the connection waited for it. Connect again to start it.\n") {
		t.Errorf("after the stop: status %d: %s", status, errs)
	}
	if got := desired(); got != workspace.DesiredStandby {
		t.Errorf("after the stop: desired %s", got)
	}

	_, out, _, exited := starts("demo", "echo in")
	if got := desired(); got != workspace.DesiredRunning || out.String() != "" {
		t.Errorf("while it starts: desired %s, output %q", got, out)
	}
	w.db.Change(running, w.demo.ID)
	if status := <-exited; status != 0 || out.String() != "in\n" {
		t.Errorf("status %d, output %q", status, out)
	}
}

func TestMessagesSayWhatHelps(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, c := range map[string]struct{ set, says string }{
		"archived": {`phase = 'ARCHIVED', desired_state = 'ARCHIVED'`, "demo is archived. Restore it first: codehub restore demo, or http://localhost/workspaces/"},
		"pending":  {`phase = 'PENDING', desired_state = 'ARCHIVED'`, "codehub start demo"},
		"failed":   {`phase = 'ERROR', error_reason = 'Timeout', error_message = E'no \x1b[31m image.', desired_state = 'RUNNING'`, "demo has failed: no [31m image. To recover it: codehub recover demo, or http://"},
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

// An address whose keys were refused too often is told so; a connection that offers no key, as
// a scan does, counts as a refused one. TestAdmission has the other limits.
func TestFailedKeysAreLimited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const says = "Too many login attempts from your address"
	var wrong []ssh.Signer
	for range 2 {
		_, private, err := ed25519.GenerateKey(nil)
		check(t, err)
		signer, err := ssh.NewSignerFromKey(private)
		check(t, err)
		wrong = append(wrong, signer)
	}
	logins := 0
	for ; logins < 100; logins++ {
		cfg := &ssh.ClientConfig{User: "demo", HostKeyCallback: ssh.InsecureIgnoreHostKey()}
		if logins%2 == 0 {
			cfg.Auth = []ssh.AuthMethod{ssh.PublicKeys(wrong...)}
		}
		_, err := ssh.Dial("tcp", w.addr, cfg)
		if err == nil {
			t.Fatal("a login without a registered key was accepted")
		}
		if strings.Contains(err.Error(), says) {
			break
		}
	}
	if logins < 40 || logins == 100 { // each two count 3
		t.Errorf("refused after %d logins", logins)
	}
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
