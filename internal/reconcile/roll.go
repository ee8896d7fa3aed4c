package reconcile

import (
	"time"

	"codehub/internal/lifecycle"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// restFor is how long a workspace is at most taken to be at rest before it is
// judged again though nothing about it has changed: should a decision ever
// depend on what is not compared here, that is how late it comes.
const restFor = 5 * time.Minute

// roll is every workspace with what is there of it, from tick to tick: a tick
// costs what there is to observe, and next to nothing for what is archived. It
// is the tick's alone.
type roll struct {
	entries []entry              // by ascending id
	last    []entry              // of the tick before
	index   map[workspace.ID]int // where in entries
	judged  time.Time            // when all were last judged
	upSince time.Time
	strange bool // there are containers or volumes of no workspace
}

type entry struct {
	row       *workspace.Workspace
	container *runtime.Container // nil: there is none
	volume    *runtime.Volume
	// rests: the last tick had nothing to do with it, and there will be
	// nothing at any later time as long as row, container and volume are what
	// they are.
	rests   bool
	settled bool // it rests, and its home is settled
	lives   bool // the row says that its home is live and was seen
}

// call puts down what was observed of the rows, which are by ascending id.
// upSince is since when the backend has answered without a break.
func (r *roll) call(now, upSince time.Time, rows []*workspace.Workspace, seen observation) {
	r.entries, r.last = r.last[:0], r.entries
	same := len(rows) == len(r.last)
	for i, row := range rows {
		r.entries = append(r.entries, entry{row: row})
		same = same && (r.last[i].row == row || r.last[i].row.ID == row.ID)
	}
	if !same || r.index == nil {
		r.index = make(map[workspace.ID]int, len(rows))
		for i, row := range rows {
			r.index[row.ID] = i
		}
	}
	r.strange = false
	for id, k := range seen.containers {
		if i, ok := r.index[id]; ok {
			r.entries[i].container = k
		} else {
			r.strange = true
		}
	}
	for id, v := range seen.volumes {
		if i, ok := r.index[id]; ok {
			r.entries[i].volume = v
		} else if !v.Foreign {
			r.strange = true
		}
	}
	afresh := now.Sub(r.judged).Abs() >= restFor || !upSince.Equal(r.upSince)
	if afresh {
		r.judged, r.upSince = now, upSince
	}
	passed := 0
	for i := range r.entries {
		e := &r.entries[i]
		for passed < len(r.last) && r.last[passed].row != e.row && r.last[passed].row.ID < e.row.ID {
			passed++
		}
		if passed == len(r.last) || r.last[passed].row != e.row {
			e.lives = e.row.Home.State == workspace.HomeLive && e.row.Conditions.Is(workspace.VolumeReady)
			continue
		}
		was := r.last[passed]
		e.lives = was.lives
		if !afresh && was.rests && equalTo(was.container, e.container) && equalTo(was.volume, e.volume) {
			e.rests, e.settled = true, was.settled
		}
	}
}

// lost counts the volumes that were there at the last observation and are not
// in this one (design §2: more than 20 % of at least five is no observation,
// but an engine that came back with another data folder).
func (r *roll) lost() (lost, of int) {
	for i := range r.entries {
		e := &r.entries[i]
		if !e.lives {
			continue
		}
		of++
		if e.volume == nil || e.volume.Claim != e.row.Home.Claim {
			lost++
		}
	}
	return lost, of
}

func equalTo[T comparable](a, b *T) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// note takes down whether the judge's decision lets the workspace rest: it
// waits for no time, no answer and nobody.
func (e *entry) note(s step) {
	row, r := s.row, s.result
	e.rests = r.Action.Kind == lifecycle.None && r.LookAgain.IsZero() && !r.ApplyQueued && !s.changed() &&
		row.Operation == workspace.OpNone && row.NextDesired == "" && row.RetryAt == nil && row.DeletedAt == nil &&
		row.RecoverRequestedAt == nil && row.CancelRequestedAt == nil && row.ForceStopRequestedAt == nil &&
		!lifecycle.AsksBucket(row) &&
		(e.container == nil || e.container.State == runtime.ContainerRunning && row.Conditions.Is(workspace.ContainerReady))
	e.settled = false
}

// has reports whether the database has the workspace.
func (r *roll) has(id workspace.ID) bool {
	_, ok := r.index[id]
	return ok
}

// opID is the claim on the workspace, as the tick has read it; false if the
// database does not have it.
func (r *roll) opID(id workspace.ID) (opID string, ok bool) {
	i, ok := r.index[id]
	if !ok {
		return "", false
	}
	return r.entries[i].row.OpID, true
}
