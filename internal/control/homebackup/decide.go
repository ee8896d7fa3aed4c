package homebackup

import (
	"slices"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

const (
	// retryAfter is the pause before another attempt at a scheduled backup that failed.
	retryAfter = 10 * time.Minute
	// lateAfter is after how many intervals a used home without a backup is reported, and leastLate
	// after how long at the least.
	lateAfter = 3
	leastLate = 3 * time.Hour
)

type candidate = postgres.BackupCandidate

// due is a backup that is to be made now.
type due struct {
	candidate
	cause string
	since time.Time // it is due
	waits bool      // in the database, such as a request
	step  bool      // an operation waits for it
}

// plan is the result of decide.
type plan struct {
	due     []due       // in the order in which they begin
	refused []candidate // whose request can no longer be met
	late    []workspace.ID
	full    []workspace.ID // due on schedule, and not made because of the limit of their owner
}

// view is the input of decide.
type view struct {
	now      time.Time // the database's
	interval time.Duration
	most     int                     // scheduled and requested backups at a time
	running  map[workspace.ID]string // owners of the backups that run and count
	busy     map[workspace.ID]bool   // workspaces with a backup that runs
	awaited  map[string]bool         // ids of backups that an operation waits for
	pausedTo map[workspace.ID]time.Time
	full     map[string]bool // owners at their limit
}

// decide returns which backups are due: those before a step of an operation, which does not wait for others,
// then requests, then those of the schedule, of each owner in turn.
func decide(v view, list []candidate) plan {
	var p plan
	var waiting []due
	for _, c := range list {
		switch {
		case v.busy[c.ID]:
		case c.PresentState == workspace.BackupWaiting && (isStep(c.PresentCause) || v.awaited[c.PresentID]):
			if c.Home == workspace.HomeLive {
				p.due = append(p.due, due{c, c.PresentCause, v.now, true, true})
			} else {
				p.refused = append(p.refused, c)
			}
		case c.PresentState == workspace.BackupWaiting && c.Operation == workspace.OpNone && c.Home != workspace.HomeLive,
			c.PresentState == workspace.BackupWaiting && c.PresentCause == workspace.BackupHandOver && v.every(c) <= 0:
			p.refused = append(p.refused, c)
		case !accessible(c):
		case v.now.Before(v.pausedTo[c.ID]):
		case c.PresentState == workspace.BackupWaiting:
			waiting = append(waiting, due{c, c.PresentCause, *c.PresentAt, true, false})
		case c.PresentID != "": // it was left by an attempt that could not be recorded
		default:
			at, ok := v.scheduled(c)
			switch {
			case ok && v.full[c.OwnerID]:
				p.full = append(p.full, c.ID)
			case ok:
				waiting = append(waiting, due{c, workspace.BackupScheduled, at, false, false})
			}
		}
		if !v.full[c.OwnerID] && v.isLate(c) {
			p.late = append(p.late, c.ID)
		}
	}
	p.due = append(p.due, v.first(waiting)...)
	return p
}

// first returns as many of the waiting ones as may begin.
func (v view) first(waiting []due) (out []due) {
	slices.SortStableFunc(waiting, func(a, b due) int {
		if a.waits != b.waits {
			if a.waits {
				return -1
			}
			return 1
		}
		return a.since.Compare(b.since)
	})
	owners := map[string]int{}
	for _, owner := range v.running {
		owners[owner]++
	}
	for n := len(v.running); n < v.most && len(waiting) > 0; n++ {
		best := 0
		for i, d := range waiting {
			if d.waits != waiting[0].waits {
				break
			}
			if owners[d.OwnerID] < owners[waiting[best].OwnerID] {
				best = i
			}
		}
		out = append(out, waiting[best])
		owners[waiting[best].OwnerID]++
		waiting = slices.Delete(waiting, best, best+1)
	}
	return out
}

// isStep reports whether a backup is made before a step of an operation, which waits for it.
func isStep(cause string) bool {
	switch cause {
	case workspace.BackupArchive, workspace.BackupRestore, workspace.BackupImage:
		return true
	}
	return false
}

// accessible reports whether the home can be read without hindering an operation.
func accessible(c candidate) bool {
	if c.Home != workspace.HomeLive {
		return false
	}
	switch c.Operation {
	case workspace.OpArchiving, workspace.OpCreateEmptyArchive, workspace.OpRestoring, workspace.OpProvisioning, workspace.OpDeleting:
		return false
	}
	return true
}

// used reports whether the home may have changed since the last backup.
func used(c candidate) bool {
	return c.LastAt == nil || c.LastDamaged || c.Phase == workspace.PhaseRunning || c.PhaseChangedAt.After(*c.LastAt) ||
		c.LastAccessAt != nil && c.LastAccessAt.After(*c.LastAt)
}

// every is the interval of the workspace.
func (v view) every(c candidate) time.Duration {
	if c.Interval != nil {
		return time.Duration(*c.Interval) * time.Second
	}
	return v.interval
}

// scheduled returns since when a backup is due; ok is false if none is.
func (v view) scheduled(c candidate) (at time.Time, ok bool) {
	every := v.every(c)
	if every <= 0 || !used(c) {
		return at, false
	}
	at = c.CreatedAt
	if c.LastAt != nil {
		at = *c.LastAt
	}
	at = at.Add(every)
	if c.LastDamaged {
		at = *c.LastAt
	}
	if c.FailedAt != nil {
		at = later(at, c.FailedAt.Add(retryAfter))
	}
	return at, !v.now.Before(at)
}

// isLate reports whether a used home has had no backup for too long.
func (v view) isLate(c candidate) bool {
	every := v.every(c)
	if every <= 0 || c.Home != workspace.HomeLive || !used(c) {
		return false
	}
	at := c.CreatedAt
	if c.LastAt != nil {
		at = *c.LastAt
		if c.Phase != workspace.PhaseRunning { // it was not used for a part of the time
			at = later(at, c.PhaseChangedAt)
		}
	}
	return v.now.Sub(at) > max(lateAfter*every, leastLate)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
