package sshgate

import (
	"errors"
	"slices"
	"sync"
	"time"
)

// unreadDelay is how long a channel's input waits for the workspace before it counts as
// unread. While it does, the SSH library fills its 2 MiB of the channel.
const unreadDelay = 2 * time.Second

// unread limits the channels whose input the workspace does not read, such as that of a
// suspended program. They wait for as long as they like while there are few. Beyond the
// limit, the user who has most of them loses the one that has waited longest. The window of an
// SSH channel is the library's, of a fixed size, so this limits their number.
type unread struct {
	max int

	mu   sync.Mutex
	list []*waiting // the longest first
}

func newUnread(most int) *unread { return &unread{max: most} }

// errUnread ends a channel beyond the limit.
var errUnread = errors.New("the workspace does not read the input of the channel")

// waiting is a channel as unread counts it. It is safe for concurrent use.
type waiting struct {
	of    *unread
	user  string
	cut   func() // ends the channel
	timer *time.Timer
	waits int // begin without done; guarded by of.mu
}

// watch returns a channel that does not wait. cut is called, in a goroutine of its own, if
// the channel has to end. The caller must call done in the end.
func (u *unread) watch(user string, cut func()) *waiting {
	w := &waiting{of: u, user: user, cut: cut}
	w.timer = time.AfterFunc(unreadDelay, w.list)
	w.timer.Stop()
	return w
}

// begin begins a wait for the workspace, and done ends it. Waits may overlap.
func (w *waiting) begin() {
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	if w.waits++; w.waits == 1 {
		w.timer.Reset(unreadDelay)
	}
}

func (w *waiting) done() {
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	if w.waits = max(w.waits-1, 0); w.waits == 0 {
		w.timer.Stop()
		w.of.list = slices.DeleteFunc(w.of.list, func(other *waiting) bool { return other == w })
	}
}

// list counts the channel once it has waited for unreadDelay.
func (w *waiting) list() {
	u := w.of
	u.mu.Lock()
	defer u.mu.Unlock()
	if w.waits == 0 || slices.Contains(u.list, w) {
		return
	}
	u.list = append(u.list, w)
	if len(u.list) <= u.max {
		return
	}
	users, most := map[string]int{}, w.user
	for _, other := range u.list {
		users[other.user]++
	}
	for user, n := range users {
		if n > users[most] {
			most = user
		}
	}
	i := slices.IndexFunc(u.list, func(other *waiting) bool { return other.user == most })
	go u.list[i].cut()
	u.list = slices.Delete(u.list, i, i+1)
}
