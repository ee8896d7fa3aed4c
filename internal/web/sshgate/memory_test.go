package sshgate_test

import (
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"codehub/internal/testing/harness"
	"codehub/internal/web/sshgate"
)

// window is how much of a channel's input the SSH library keeps.
const window = 2 << 20

// closed returns a channel that is closed once the SSH channel is.
func closed(requests <-chan *ssh.Request) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		ssh.DiscardRequests(requests)
	}()
	return done
}

// A session that asks for no program ends, and says so.
func TestSessionWithoutProgramEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client("demo", w.key)
	ch, requests, err := c.OpenChannel("session", nil)
	check(t, err)
	over := closed(requests)
	_, err = ch.Write(make([]byte, window-32<<10))
	check(t, err)
	said, err := io.ReadAll(ch.Stderr())
	check(t, err)
	<-over
	if !strings.Contains(string(said), "it started no program") {
		t.Errorf("the client was told %q", said)
	}
	if out, errs, err := says(t, c); err != nil {
		t.Errorf("another session of the connection: %q, %q, %v", out, errs, err)
	}
}

// Channels whose input the workspace does not read end when there are too many, of the user who
// has most. Other users' programs may stop reading for as long as they like.
func TestUnreadChannelsAreLimited(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	const most, opened = 4, 10
	w := newWorld(t, func(c *sshgate.Config) { c.Budget.Unread = most })
	file, public := w.newKey("bob")
	bob := w.db.AddUser("bob")
	w.register(bob, "bob", public)
	w.db.Change(running, w.db.AddWorkspace(bob, "his").ID)
	paused, err := w.client("his", file).NewSession()
	check(t, err)
	stdin, err := paused.StdinPipe()
	check(t, err)
	check(t, paused.Start("exec sleep 1000"))
	var hisEnded atomic.Bool
	var his sync.WaitGroup
	his.Go(func() {
		for junk := make([]byte, 32<<10); ; {
			if _, err := stdin.Write(junk); err != nil {
				hisEnded.Store(true)
				return
			}
		}
	})

	service := listen(t)
	accepted := make(chan net.Conn, opened)
	go func() {
		for {
			conn, err := service.Accept()
			if err != nil {
				return
			}
			accepted <- conn // which nothing reads
		}
	}()
	c := w.client("demo", w.key)
	var ended atomic.Int64
	var all sync.WaitGroup
	for range opened {
		conn, err := c.Dial("tcp", service.Addr().String())
		check(t, err)
		all.Go(func() {
			junk := make([]byte, 32<<10)
			for {
				if _, err := conn.Write(junk); err != nil {
					ended.Add(1)
					return
				}
			}
		})
	}
	harness.Eventually(t, "the channels beyond the limit to end", func() bool { return ended.Load() >= opened-most })
	time.Sleep(3 * time.Second)
	if n := ended.Load(); n > opened-most+1 { // bob's program may count or not
		t.Errorf("%d of %d channels have ended", n, opened)
	}
	if out, errs, err := says(t, c); err != nil {
		t.Errorf("a session of the same connection: %q, %q, %v", out, errs, err)
	}
	if hisEnded.Load() {
		t.Error("the program of another user has ended")
	}
	c.Close()
	all.Wait()
	for range opened {
		(<-accepted).Close()
	}
	_ = paused.Close()
	his.Wait()
}

// Data that no program reads takes no memory.
func TestDataWithoutUseIsDiscarded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	service := listen(t)
	echo(t, service)
	c := w.client("demo", w.key)
	for _, open := range []func() (ssh.Channel, <-chan *ssh.Request, error){
		func() (ssh.Channel, <-chan *ssh.Request, error) { return c.OpenChannel("session", nil) },
		func() (ssh.Channel, <-chan *ssh.Request, error) {
			return c.OpenChannel("direct-tcpip", ssh.Marshal(forwardedTo{"127.0.0.1", uint32(service.Addr().(*net.TCPAddr).Port), "127.0.0.1", 1}))
		},
	} {
		ch, requests, err := open()
		check(t, err)
		go ssh.DiscardRequests(requests)
		written := make(chan error, 1)
		go func() {
			_, err := ch.Stderr().Write(make([]byte, 3*window))
			written <- err
		}()
		select {
		case err := <-written:
			check(t, err)
		case <-time.After(harness.Patience):
			t.Fatal("the server keeps the data")
		}
		ch.Close()
	}
}

// Sessions that wait for their workspace keep little input, so they do not count as unread,
// however many wait.
func TestWaitingSessionsAreKept(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	w := newWorld(t, func(c *sshgate.Config) { c.Budget.Unread = 1 })
	w.db.Change(`UPDATE workspaces SET phase = 'STANDBY', desired_state = 'STANDBY' WHERE id = $1`, w.demo.ID)
	c := w.client("demo", w.key)
	var outputs []io.Reader
	for range 3 {
		s, err := c.NewSession()
		check(t, err)
		stdin, err := s.StdinPipe()
		check(t, err)
		stdout, err := s.StdoutPipe()
		check(t, err)
		check(t, s.RequestSubsystem("sftp"))
		_, err = stdin.Write([]byte{0, 0, 0, 5, 1, 0, 0, 0, 3}) // SSH_FXP_INIT, version 3
		check(t, err)
		outputs = append(outputs, stdout)
	}
	time.Sleep(5 * time.Second) // twice as long as it takes to count
	w.db.Change(running, w.demo.ID)
	for _, out := range outputs {
		head := make([]byte, 5)
		if _, err := io.ReadFull(out, head); err != nil || head[4] != 2 { // SSH_FXP_VERSION
			t.Errorf("SFTP answered %v, %v", head, err)
		}
	}
}
