package reconcile

import (
	"cmp"
	"slices"
	"time"

	"codehub/internal/workspace"
)

// slotRequest is an operation that needs a slot of a lane.
type slotRequest struct {
	id      workspace.ID
	owner   string
	since   time.Time // when a tick first refused it a slot; the current tick's time if none did
	changed time.Time // last change of the row: orders requests that wait since the same tick
}

// bySlotOrder returns the positions of requests in the order in which they get slots.
// Owners with fewer operations come first, where running counts the running operations of
// each owner and a slot given earlier in the order counts as well; then those that wait
// longer. So no owner takes all slots while others wait.
func bySlotOrder(requests []slotRequest, running map[string]int) []int {
	order := make([]int, len(requests))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		x, y := &requests[a], &requests[b]
		if c := x.since.Compare(y.since); c != 0 {
			return c
		}
		if c := x.changed.Compare(y.changed); c != 0 {
			return c
		}
		return cmp.Compare(x.id, y.id)
	})
	// byOperations has the requests by how many operations their owner has before them.
	var byOperations [][]int
	given := make(map[string]int, len(running))
	for _, i := range order {
		owner := requests[i].owner
		n := running[owner] + given[owner]
		given[owner]++
		for len(byOperations) <= n {
			byOperations = append(byOperations, nil)
		}
		byOperations[n] = append(byOperations[n], i)
	}
	return slices.Concat(byOperations...)
}

// assign gives the free slots to the decisions that need one, and refuses the others.
func (p *plan) assign(now time.Time) {
	refused := false
	for l, wanting := range p.wanting {
		if len(wanting) <= p.free[l] {
			continue
		}
		requests := make([]slotRequest, len(wanting))
		for i, d := range wanting {
			row := &p.decisions[d].row
			requests[i] = slotRequest{id: row.ID, owner: row.OwnerID, since: p.since(row.ID, now), changed: row.UpdatedAt}
		}
		for _, i := range bySlotOrder(requests, p.running[l])[p.free[l]:] {
			p.refuse(&p.decisions[wanting[i]], now)
			refused = true
		}
	}
	if refused {
		p.decisions = slices.DeleteFunc(p.decisions, func(s decision) bool { return !s.acts() })
	}
}

// since returns since when the workspace waits for a slot.
func (p *plan) since(id workspace.ID, now time.Time) time.Time {
	if since, waits := p.waitingSince[id]; waits {
		return since
	}
	return now
}
