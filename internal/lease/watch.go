package lease

import "time"

// hungAfter is how old the last beat of a leader is that hangs.
const hungAfter = 15 * time.Second

// watch is what a follower has seen of the leader.
type watch struct {
	seen  leader
	since time.Duration // when this very beat was first seen
	last  time.Duration // when it was last looked
}

// hung reports whether the leader, as seen now, has not beaten for hungAfter:
// by the database's clock, which also goes for who has only begun to look, or by
// the follower's own eyes. The database's clock may be set forward, so a beat
// that is due must fail to come in any case; set back, it says nothing.
func (w *watch) hung(now time.Duration, l leader) bool {
	if l.replica == "" {
		return false
	}
	// Who has not looked for a while, because it stood still, has not seen that
	// nothing happened.
	if l.backend != w.seen.backend || !l.beat.Equal(w.seen.beat) || now-w.last > 3*every {
		w.since = now
	}
	w.seen, w.last = l, now
	watched := now - w.since
	return watched >= hungAfter || l.age >= hungAfter && watched >= beatEvery+every
}
