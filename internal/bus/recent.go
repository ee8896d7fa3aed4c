package bus

import (
	"time"

	"codehub/internal/workspace"
)

// echoWindow is how long a report through the second channel counts as a repetition
// of the first: the usual delay through Redis, with a margin.
const echoWindow = 100 * time.Millisecond

// recentIDs remembers IDs for echoWindow, and drops them within twice that.
type recentIDs struct {
	since       time.Time // when now was started
	now, before map[workspace.ID]time.Time
}

func (r *recentIDs) add(id workspace.ID, at time.Time) {
	r.rotate(at)
	r.now[id] = at
}

func (r *recentIDs) has(id workspace.ID, at time.Time) bool {
	r.rotate(at)
	added, ok := r.now[id]
	if !ok {
		added, ok = r.before[id]
	}
	return ok && at.Sub(added) < echoWindow
}

func (r *recentIDs) rotate(at time.Time) {
	switch age := at.Sub(r.since); {
	case r.now == nil || age >= 2*echoWindow:
		r.since, r.now, r.before = at, map[workspace.ID]time.Time{}, nil
	case age >= echoWindow:
		r.since, r.now, r.before = at, map[workspace.ID]time.Time{}, r.now
	}
}
