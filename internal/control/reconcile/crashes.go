package reconcile

import (
	"fmt"
	"time"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// crashes delays the starts of workspaces whose containers end soon after they were
// ready. Such a start counts as a success, so without a delay the next would follow
// immediately and forever. Only the tick uses it, and it lives as long as the term.
type crashes map[workspace.ID]crash

type crash struct {
	count     int
	notBefore time.Time // start no earlier
}

// shortLived is how long a container must have been ready for its exit not to count
// as a crash.
const shortLived = time.Minute

// has reports whether the workspace has a record.
func (c crashes) has(id workspace.ID) bool {
	_, ok := c[id]
	return ok
}

// delayStart removes the claim of a start that comes too soon, and sets when the
// start may be claimed.
func (c crashes) delayStart(s decision, p lifecycle.Policy, now time.Time) decision {
	id, exited := s.row.ID, s.result.Row.Conditions.Get(workspace.ContainerReady).Reason == workspace.ReasonContainerExited
	known := c[id]
	switch {
	case s.row.Phase == workspace.PhaseRunning && exited && now.Sub(s.row.PhaseChangedAt) < shortLived:
		known.count++
		known.notBefore = now.Add(p.Backoff(known.count, 0))
		c[id] = known
	case s.row.Phase == workspace.PhaseRunning && now.Sub(s.row.PhaseChangedAt) >= shortLived,
		s.row.DesiredState != workspace.DesiredRunning, s.row.DeletedAt != nil:
		delete(c, id) // it ran long enough, or its owner stopped it
		return s
	}
	if a := s.result.Action; a.Kind == lifecycle.Claim && a.Op == workspace.OpStarting && known.notBefore.After(now) {
		s.result = withoutClaim(s)
		s.result.LookAgain = known.notBefore
		s.result.Row.Conditions = known.explain(s.result.Row.Conditions, now)
	}
	return s
}

// explain adds to the condition of the container when the next start is and what
// its owner can do. The text is the same at every tick.
func (c crash) explain(conditions workspace.Conditions, now time.Time) workspace.Conditions {
	was := conditions.Get(workspace.ContainerReady)
	message := fmt.Sprintf(msgCrashed, c.count, c.notBefore.UTC().Format("15:04:05 UTC"))
	return conditions.With(workspace.ContainerReady, was.True(), was.Reason, message, now)
}

// forget drops the records of workspaces that no longer exist.
func (c crashes) forget(current *inventory) {
	for id := range c {
		if !current.has(id) {
			delete(c, id)
		}
	}
}
