package dashboard

import (
	"regexp"
	"slices"
	"testing"
	"time"

	"codehub/internal/workspace"
)

var cardName = regexp.MustCompile(`<h2 class="card-name"><a [^>]*>([^<]+)</a>`)

func shownNames(html string) (names []string) {
	for _, m := range cardName.FindAllStringSubmatch(html, -1) {
		names = append(names, m[1])
	}
	return names
}

// Running workspaces come first, then the most recently used. The pages of the list together
// have every workspace.
func TestListShowsRunningThenRecentlyUsed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	for _, one := range []struct {
		name    string
		state   func(*workspace.Workspace)
		desired string
		unused  time.Duration
	}{
		{"stopped-early", standby, "STANDBY", 3 * time.Hour}, {"running-early", running, "RUNNING", 2 * time.Hour},
		{"stopped-late", standby, "STANDBY", 10 * time.Minute}, {"running-late", running, "RUNNING", time.Minute},
	} {
		id := w.add(one.name, one.state)
		w.want(id, "desired_state", one.desired)
		w.used(id, one.unused)
	}
	w.add("never-used", standby)
	page := b.get("/").body
	want := []string{"running-late", "running-early", "never-used", "stopped-late", "stopped-early"}
	if got := shownNames(page); !slices.Equal(got, want) {
		t.Errorf("the list has %v, want %v", got, want)
	}
	contains(t, "running", page, `<span class="running-for"><time datetime=`, ">for 2 min<", ">for 2 h 1 min<")
}

// Activity alone moves no card; a start does.
func TestListStreamKeepsTheOrder(t *testing.T) {
	t.Parallel()
	f := &listFeed{}
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
