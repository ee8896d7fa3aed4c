package reconcile

import (
	"time"

	"codehub/internal/judge"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// restFor is how long a workspace is at most taken to be at rest before it is
// judged again though nothing about it has changed: should a decision ever
// depend on what is not compared here, that is how late it comes.
const restFor = 5 * time.Minute

// rest remembers the workspaces with which the last tick had nothing to do,
// and would not have at any later time: as long as row, container and volume
// are what they were, they need no judging. Most of a large installation is at
// rest. It is the tick's alone.
type rest struct {
	last, next []resting // by ascending id; those of the tick before, and of this one
	passed     int       // how much of last has been gone by
	judged     time.Time // when all were last judged
	upSince    time.Time
}

type resting struct {
	row       *workspace.Workspace
	container *runtime.Container
	volume    *runtime.Volume
	rests     bool
}

// begin is told that a tick begins, on a backend that has answered since then.
func (r *rest) begin(now, upSince time.Time) {
	r.last, r.next, r.passed = r.next, r.last[:0], 0
	if now.Sub(r.judged).Abs() >= restFor || !upSince.Equal(r.upSince) {
		r.last, r.judged, r.upSince = r.last[:0], now, upSince
	}
}

// lasts reports whether the workspace is at rest as it was. It is asked once
// in a tick for every row, by ascending id; if not, note is told next what was
// found.
func (r *rest) lasts(row *workspace.Workspace, k *runtime.Container, v *runtime.Volume) bool {
	for r.passed < len(r.last) && r.last[r.passed].row != row && r.last[r.passed].row.ID < row.ID {
		r.passed++
	}
	now := resting{row: row, container: k, volume: v}
	if r.passed < len(r.last) {
		was := r.last[r.passed]
		now.rests = was.rests && was.row == row && same(was.container, k) && same(was.volume, v)
	}
	r.next = append(r.next, now)
	return now.rests
}

// note takes down whether the judge's decision lets the workspace rest.
func (r *rest) note(s step) {
	at := &r.next[len(r.next)-1]
	at.rests = quiet(s) && (at.container == nil || at.container.State == runtime.ContainerRunning && s.row.Conditions.Is(workspace.ContainerReady))
}

// quiet reports whether nothing follows from the decision, and nothing will as
// long as it is made on the same: it waits for no time, no answer and nobody.
func quiet(s step) bool {
	row, r := s.row, s.result
	return r.Action.Kind == judge.None && r.LookAgain.IsZero() && !r.ApplyQueued && !s.changed() &&
		row.Operation == workspace.OpNone && row.NextDesired == "" && row.RetryAt == nil && row.DeletedAt == nil &&
		row.RecoverRequestedAt == nil && row.CancelRequestedAt == nil && row.ForceStopRequestedAt == nil &&
		!judge.AsksBucket(row)
}

func same[T comparable](a, b *T) bool {
	return a == b || a != nil && b != nil && *a == *b
}
