package dashboard

import (
	"testing"

	"codehub/internal/workspace"
)

// Activity alone moves no card; a start does.
func TestListStreamKeepsTheOrder(t *testing.T) {
	t.Parallel()
	f := new(cardOrder)
	mk := func(id string, phase workspace.Phase) view { return view{ID: id, W: workspace.Workspace{Phase: phase}} }
	order := func(views ...view) (ids string) {
		f.steady(views)
		for _, v := range views {
			ids += v.ID
		}
		return ids
	}
	a, b, c := mk("a", workspace.PhaseRunning), mk("b", workspace.PhaseRunning), mk("c", workspace.PhaseStandby)
	if got := order(a, b, c); got != "abc" {
		t.Error(got)
	}
	if got := order(b, a, c); got != "abc" {
		t.Errorf("activity moved a card: %s", got)
	}
	started := mk("c", workspace.PhaseRunning)
	if got := order(started, b, a); got != "cba" {
		t.Errorf("a start moved no card: %s", got)
	}
	if got := order(b, a); got != "ba" {
		t.Errorf("after one was deleted: %s", got)
	}
}
