package bus

import (
	"time"

	"codehub/internal/workspace"
)

// echoWithin is for how long what the second way brings counts as what the
// first has brought: the time that it takes through Redis, with some room.
const echoWithin = 100 * time.Millisecond

// recently remembers ids for echoWithin, and forgets them within twice that.
type recently struct {
	since       time.Time // when now was begun
	now, before map[workspace.ID]time.Time
}

func (r *recently) add(id workspace.ID, at time.Time) {
	r.turn(at)
	r.now[id] = at
}

func (r *recently) holds(id workspace.ID, at time.Time) bool {
	r.turn(at)
	said, ok := r.now[id]
	if !ok {
		said, ok = r.before[id]
	}
	return ok && at.Sub(said) < echoWithin
}

func (r *recently) turn(at time.Time) {
	switch age := at.Sub(r.since); {
	case r.now == nil || age >= 2*echoWithin:
		r.since, r.now, r.before = at, map[workspace.ID]time.Time{}, nil
	case age >= echoWithin:
		r.since, r.now, r.before = at, map[workspace.ID]time.Time{}, r.now
	}
}
