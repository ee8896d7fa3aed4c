package reconcile

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// TestSlotOrder: requests are given as "owner id since changed", in seconds.
func TestSlotOrder(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		requests []string
		running  map[string]int
		want     string
	}{
		"none":                         {},
		"the oldest first":             {requests: []string{"ada 1 3 0", "ada 2 1 0", "ada 3 2 0"}, want: "2 3 1"},
		"then by change, then by id":   {requests: []string{"ada 3 1 1", "ada 2 1 1", "ada 1 1 2"}, want: "2 3 1"},
		"owners take turns":            {requests: []string{"ada 1 1 0", "ada 2 1 0", "ada 3 1 0", "bob 4 2 0", "eve 5 3 0"}, want: "1 4 5 2 3"},
		"running operations count":     {requests: []string{"ada 1 1 0", "bob 2 2 0", "bob 3 2 0"}, running: map[string]int{"ada": 1}, want: "2 1 3"},
		"older for as many operations": {requests: []string{"ada 1 2 0", "bob 2 1 0"}, running: map[string]int{"ada": 2, "bob": 2}, want: "2 1"},
	} {
		var requests []slotRequest
		for _, r := range c.requests {
			var q slotRequest
			var since, changed time.Duration
			if _, err := fmt.Sscan(r, &q.owner, &q.id, &since, &changed); err != nil {
				t.Fatal(err)
			}
			q.since, q.changed = noon.Add(since*time.Second), noon.Add(changed*time.Second)
			requests = append(requests, q)
		}
		var got []string
		for _, i := range bySlotOrder(requests, c.running) {
			got = append(got, string(requests[i].id))
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: %s, want %s", name, s, c.want)
		}
	}
}

// TestPlanAssignsSlots: one slot is free at each tick. Those that wait keep their place,
// though workspaces with lower ids arrive.
func TestPlanAssignsSlots(t *testing.T) {
	t.Parallel()
	wants := func(p *plan, now time.Time, owner string, ids ...workspace.ID) {
		for _, id := range ids {
			row := workspace.Workspace{ID: id, OwnerID: owner, Operation: workspace.OpNone}
			s := decision{row: row, result: lifecycle.Result{Row: row, Action: lifecycle.Action{Kind: lifecycle.Claim, Op: workspace.OpRestoring}}}
			s.row.Conditions = lifecycle.Conditions(s.seen)
			s.row.Phase = lifecycle.Phase(s.row, s.row.Conditions)
			s.result.Row.Operation = workspace.OpRestoring
			p.add(s, nil, now)
		}
	}
	var waiting map[workspace.ID]time.Time
	running := map[string]int{}
	for i, tick := range []struct {
		ada, bob []workspace.ID
		free     int
		want     workspace.ID
	}{
		{ada: []workspace.ID{"b", "c", "d"}, bob: []workspace.ID{"e"}, free: 1, want: "b"},
		{ada: []workspace.ID{"c", "d"}, bob: []workspace.ID{"e"}},
		{ada: []workspace.ID{"a", "c", "d"}, bob: []workspace.ID{"e"}, free: 1, want: "e"},
		{ada: []workspace.ID{"a", "c", "d"}, free: 1, want: "c"},
		{ada: []workspace.ID{"a", "d"}, free: 1, want: "d"},
		{ada: []workspace.ID{"a"}, free: 1, want: "a"},
	} {
		p := plan{free: map[lane]int{restoring: tick.free}, running: map[lane]map[string]int{restoring: running}, waitingSince: waiting}
		now := noon.Add(time.Duration(i) * time.Second)
		wants(&p, now, "ada", tick.ada...)
		wants(&p, now, "bob", tick.bob...)
		p.assign(now)
		waiting = p.waiting
		var got workspace.ID
		for _, s := range p.decisions {
			if s.result.Action.Kind == lifecycle.Claim {
				got += s.row.ID
				running[s.row.OwnerID]++
			}
		}
		if want := len(tick.ada) + len(tick.bob) - len(got); got != tick.want || len(waiting) != want || len(p.decisions) != len(got) {
			t.Errorf("tick %d: %q got a slot, want %q; %d wait, want %d; %d decisions", i, got, tick.want, len(waiting), want, len(p.decisions))
		}
	}
	if waiting != nil {
		t.Errorf("%v still wait", waiting)
	}
}

func BenchmarkSlotOrder(b *testing.B) {
	requests := make([]slotRequest, 5000)
	for i := range requests {
		requests[i] = slotRequest{id: workspace.ID(fmt.Sprint(i)), owner: fmt.Sprint(i % 50), since: noon}
	}
	for b.Loop() {
		bySlotOrder(requests, nil)
	}
}
