package reconcile

import (
	"fmt"
	"strings"
	"time"

	"codehub/internal/lifecycle"
	"codehub/internal/workspace"
)

// crashes slows down the starts of workspaces whose containers end by
// themselves soon after they were ready: each such start counts as a success,
// and without a pause one after the other would follow at once, for ever. It
// is the tick's alone, and lives as long as the term.
type crashes map[workspace.ID]crash

type crash struct {
	count   int
	startAt time.Time // not before then
}

// shortLived is how long a container has to be ready for its end to be no
// reason to wait.
const shortLived = time.Minute

// concerns reports whether anything is known of the workspace.
func (c crashes) concerns(id workspace.ID) bool {
	_, ok := c[id]
	return ok
}

// heed holds back the start that s claims, if it comes too soon, and says
// when it may be made.
func (c crashes) heed(s step, p lifecycle.Policy, now time.Time) step {
	id, exited := s.row.ID, s.result.Row.Conditions.Get(workspace.ContainerReady).Reason == workspace.ReasonContainerExited
	known := c[id]
	switch {
	case s.row.Phase == workspace.PhaseRunning && exited && now.Sub(s.row.PhaseChangedAt) < shortLived:
		known.count++
		known.startAt = now.Add(p.Backoff(known.count, 0))
		c[id] = known
	case s.row.Phase == workspace.PhaseRunning && now.Sub(s.row.PhaseChangedAt) >= shortLived,
		s.row.DesiredState != workspace.DesiredRunning, s.row.DeletedAt != nil:
		delete(c, id) // it has lasted, or its owner has stopped it
		return s
	}
	if a := s.result.Action; a.Kind == lifecycle.Claim && a.Op == workspace.OpStarting && known.startAt.After(now) {
		s.result = withoutClaim(s)
		s.result.LookAgain = known.startAt
		s.result.Row.Conditions = known.told(s.result.Row.Conditions, now)
	}
	return s
}

// told says in the condition of the container what its start waits for, and
// what its owner can do. It is the same at each look.
func (c crash) told(conditions workspace.Conditions, now time.Time) workspace.Conditions {
	was := conditions.Get(workspace.ContainerReady)
	message := fmt.Sprintf("it has ended by itself soon after it was ready, %d times in a row; it is started again at %s, or at once if it is stopped and started",
		c.count, c.startAt.UTC().Format("15:04:05 UTC"))
	if c.count == 1 {
		message = strings.Replace(message, ", 1 times in a row", "", 1)
	}
	return conditions.With(workspace.ContainerReady, was.True(), was.Reason, message, now)
}

// forget drops those of workspaces that are no more.
func (c crashes) forget(current *roll) {
	for id := range c {
		if !current.has(id) {
			delete(c, id)
		}
	}
}
