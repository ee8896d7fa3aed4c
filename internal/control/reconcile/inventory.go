package reconcile

import (
	"time"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// maxRest is the longest time for which a workspace counts as resting before it is
// judged again. It bounds the delay if a decision ever depends on something that is
// not compared here.
const maxRest = 5 * time.Minute

// inventory holds every workspace with its container and volume across ticks, so
// that a tick judges only what changed and skips archived workspaces. Only the tick
// uses it.
type inventory struct {
	entries    []entry              // by ascending id
	last       []entry              // of the previous tick
	index      map[workspace.ID]int // positions in entries
	judgedAt   time.Time            // when all entries were last judged
	upSince    time.Time
	hasOrphans bool // the observation has containers or volumes without a workspace
}

type entry struct {
	row       *workspace.Workspace
	container *runtime.Container // nil: there is none
	volume    *runtime.Volume
	// resting: the last decision was to do nothing, and no later time changes that
	// as long as row, container and volume stay the same.
	resting bool
	settled bool // resting, and its volume is settled
	live    bool // the row has a live home whose volume was observed
}

// update replaces the entries by rows, which are sorted by id, and the observation.
// upSince is since when the runtime has responded without interruption.
func (r *inventory) update(now, upSince time.Time, rows []*workspace.Workspace, seen observation) {
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
	r.hasOrphans = false
	for id, k := range seen.containers {
		if i, ok := r.index[id]; ok {
			r.entries[i].container = k
		} else {
			r.hasOrphans = true
		}
	}
	for id, v := range seen.volumes {
		if i, ok := r.index[id]; ok {
			r.entries[i].volume = v
		} else if !v.Foreign {
			r.hasOrphans = true
		}
	}
	all := now.Sub(r.judgedAt).Abs() >= maxRest || !upSince.Equal(r.upSince)
	if all {
		r.judgedAt, r.upSince = now, upSince
	}
	passed := 0
	for i := range r.entries {
		e := &r.entries[i]
		for passed < len(r.last) && r.last[passed].row != e.row && r.last[passed].row.ID < e.row.ID {
			passed++
		}
		if passed == len(r.last) || r.last[passed].row != e.row {
			e.live = e.row.Home.State == workspace.HomeLive && e.row.Conditions.Is(workspace.VolumeReady)
			continue
		}
		was := r.last[passed]
		e.live = was.live
		if !all && was.resting && equalTo(was.container, e.container) && equalTo(was.volume, e.volume) {
			e.resting, e.settled = true, was.settled
		}
	}
}

// missingVolumes counts the volumes that the last observation had and this one
// lacks or shows as lost. If more than 20 % of at least five are missing, the tick treats the
// observation as failed: Docker was probably restarted with another data directory.
func (r *inventory) missingVolumes() (lost, of int) {
	for i := range r.entries {
		e := &r.entries[i]
		if !e.live {
			continue
		}
		of++
		if e.volume == nil || e.volume.Lost || e.volume.Claim != e.row.Home.Claim {
			lost++
		}
	}
	return lost, of
}

func equalTo[T comparable](a, b *T) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// recordRest records whether the workspace may rest: its decision depends on no
// time, no pending lookup and no request.
func (e *entry) recordRest(s decision) {
	row, r := s.row, s.result
	e.resting = r.Action.Kind == lifecycle.None && r.LookAgain.IsZero() && !r.ApplyQueued && !s.changed() &&
		row.Operation == workspace.OpNone && row.NextDesired == "" && row.RetryAt == nil && row.DeletedAt == nil &&
		row.RecoverRequestedAt == nil && row.CancelRequestedAt == nil && row.ForceStopRequestedAt == nil && row.RestoreFrom == nil &&
		!lifecycle.AsksBucket(row) &&
		(e.container == nil || e.container.State == runtime.ContainerRunning && row.Conditions.Is(workspace.ContainerReady))
	e.settled = false
}

// has reports whether the workspace exists in the database.
func (r *inventory) has(id workspace.ID) bool {
	_, ok := r.index[id]
	return ok
}

// opID returns the claim in the row as this tick read it, and false if the
// workspace does not exist.
func (r *inventory) opID(id workspace.ID) (opID string, ok bool) {
	i, ok := r.index[id]
	if !ok {
		return "", false
	}
	return r.entries[i].row.OpID, true
}
