package sshgate

import (
	"errors"
	"sync"
	"time"
)

// unreadDelay is how long a channel's input waits for the workspace before it counts as
// unread. While it does, the SSH library fills its 2 MiB of the channel.
const unreadDelay = 2 * time.Second

// unread limits the channels whose input the workspace does not read, such as that of a
// suspended program. They wait for as long as they like while there are few. Beyond the
// limit, the user who has most of them loses the one that has waited longest.
type unread struct {
	max int

	mu    sync.Mutex
	count int
	users map[string][]*waiting // the longest first
}

func newUnread(most int) *unread { return &unread{max: most, users: map[string][]*waiting{}} }

// errUnread ends a channel beyond the limit.
var errUnread = errors.New("the workspace does not read the input of the channel")

// waiting is a channel as unread counts it. It is safe for concurrent use.
type waiting struct {
	of   *unread
	user string
	cut  func() // ends the channel

	mu     sync.Mutex
	timer  *time.Timer
	waits  int  // begin without done
	listed bool // counted by of, or cut
}

// watch returns a channel that does not wait. cut is called, in a goroutine of its own, if
// the channel has to end. The caller must call end.
func (u *unread) watch(user string, cut func()) *waiting {
	w := &waiting{of: u, user: user, cut: cut}
	w.timer = time.AfterFunc(unreadDelay, w.list)
	w.timer.Stop()
	return w
}

// begin begins a wait for the workspace, and done ends it. Waits may overlap.
func (w *waiting) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waits++; w.waits == 1 {
		w.timer.Reset(unreadDelay)
	}
}

func (w *waiting) done() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waits = max(w.waits-1, 0); w.waits == 0 {
		w.stop()
	}
}

// end ends all waits of the channel.
func (w *waiting) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waits = 0
	w.stop()
}

func (w *waiting) stop() {
	w.timer.Stop()
	if w.listed {
		w.listed = false
		w.of.remove(w)
	}
}

// list counts the channel once it has waited for unreadDelay.
func (w *waiting) list() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waits > 0 && !w.listed {
		w.listed = true
		w.of.add(w)
	}
}

func (u *unread) add(w *waiting) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.users[w.user] = append(u.users[w.user], w)
	if u.count++; u.count <= u.max {
		return
	}
	most := w.user
	for user, list := range u.users {
		if len(list) > len(u.users[most]) {
			most = user
		}
	}
	victim := u.users[most][0]
	u.drop(victim, 0)
	go victim.cut()
}

func (u *unread) remove(w *waiting) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i, other := range u.users[w.user] {
		if other == w {
			u.drop(w, i)
			return
		}
	}
}

// drop forgets a channel at its place in the list of its user.
func (u *unread) drop(w *waiting, i int) {
	list := append(u.users[w.user][:i:i], u.users[w.user][i+1:]...)
	if u.count--; len(list) == 0 {
		delete(u.users, w.user)
		return
	}
	u.users[w.user] = list
}
