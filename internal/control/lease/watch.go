package lease

import "time"

// hungTimeout is the age of the last heartbeat from which on a leader counts as
// hanging.
const hungTimeout = 8 * time.Second

// watchTimeout is how long a follower watches an old heartbeat before it believes the
// database's clock. The term of the leader is over then by the follower's clock, too.
const watchTimeout = termTimeout + retryInterval/2

// watch is what a follower has observed of the leader.
type watch struct {
	seen     leader
	since    time.Duration // when this heartbeat was first seen
	lastSeen time.Duration // time of the previous check
}

// hung reports whether the leader has sent no heartbeat for hungTimeout, either by
// the database's clock, which has no part of retryInterval in it, or by the follower's
// own. Since the database's clock may be set forward, the leader must have been silent
// for watchTimeout by the follower's clock, too.
func (w *watch) hung(now time.Duration, l leader) bool {
	if l.replica == "" {
		return false
	}
	// A follower that was itself stopped has not observed the time in between.
	if l.backend != w.seen.backend || !l.heartbeatAt.Equal(w.seen.heartbeatAt) || now-w.lastSeen > 3*retryInterval {
		w.since = now
	}
	w.seen, w.lastSeen = l, now
	watched := now - w.since
	return watched >= hungTimeout || l.heartbeatAge >= hungTimeout && watched >= watchTimeout
}
