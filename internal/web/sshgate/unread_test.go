package sshgate

import (
	"bytes"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"
)

// cuts are channels by the order in which they were cut.
type cuts chan string

func (c cuts) watch(u *unread, user, name string) *waiting {
	return u.watch(user, func() { c <- name })
}

func (c cuts) want(t *testing.T, name string) {
	t.Helper()
	synctest.Wait()
	select {
	case got := <-c:
		if got != name {
			t.Errorf("%q was cut, want %q", got, name)
		}
	default:
		if name != "" {
			t.Errorf("no channel was cut, want %q", name)
		}
	}
}

// Beyond the limit, the user with most unread channels loses the oldest. Within it they wait for
// as long as they like.
func TestUnreadIsLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u, cut := newUnread(3), make(cuts, 10)
		wait := func(user, name string) *waiting {
			w := cut.watch(u, user, name)
			w.begin()
			time.Sleep(unreadDelay + time.Second)
			return w
		}
		paused := wait("bob", "bob's")
		first, second := wait("ann", "first"), wait("ann", "second")
		time.Sleep(24 * time.Hour)
		cut.want(t, "")
		third := wait("ann", "third")
		cut.want(t, "first")
		fourth := wait("ann", "fourth")
		cut.want(t, "second")
		third.done()
		fifth := wait("ann", "fifth")
		cut.want(t, "")
		for _, w := range []*waiting{paused, first, second, third, fourth, fifth} {
			w.done()
		}
		if len(u.list) != 0 {
			t.Errorf("%d are left", len(u.list))
		}
	})
}

// Only what waits for long counts, from the first of waits that overlap to the end of the last.
func TestShortWaitsDoNotCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u, cut := newUnread(0), make(cuts, 10)
		w := cut.watch(u, "ann", "it")
		defer w.done()
		for range 10 {
			w.begin()
			time.Sleep(unreadDelay / 2)
			w.done()
			time.Sleep(unreadDelay / 2)
		}
		cut.want(t, "")
		w.begin()
		w.begin()
		time.Sleep(unreadDelay / 2)
		w.done()
		time.Sleep(unreadDelay)
		cut.want(t, "it")
	})
}

// lateClient is a channel whose client sends EOF, and data after it.
type lateClient struct {
	ssh.Channel
	ended, late chan struct{}
}

func (l lateClient) Read([]byte) (int, error) {
	<-l.ended
	select {
	case <-l.late:
		return 1, nil
	default:
		return 0, io.EOF
	}
}

func (lateClient) Stderr() io.ReadWriter { return &bytes.Buffer{} }

// Data after EOF, which no program would read, is noticed. A client that has only ended its
// direction, or sends data still, is left alone.
func TestDataAfterEOF(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := lateClient{ended: make(chan struct{}), late: make(chan struct{})}
		ch := &channel{Channel: client, closed: make(chan struct{})}
		found := make(chan bool, 1)
		go func() { found <- ch.discardOther() }()
		time.Sleep(time.Hour)
		close(client.ended)
		_, _ = ch.Read(nil)
		time.Sleep(time.Hour)
		if len(found) != 0 {
			t.Fatal("a channel without data was taken for one with data after EOF")
		}
		close(client.late)
		time.Sleep(2 * lateInterval)
		if len(found) != 1 || !<-found {
			t.Error("data after EOF was not noticed")
		}
	})
}
