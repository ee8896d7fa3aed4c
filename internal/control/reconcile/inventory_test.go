package reconcile

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// inventoryFixture has three workspaces as a tick sees them; the second runs and the third is archived.
type inventoryFixture struct {
	rows []*workspace.Workspace
	seen observation
}

func newInventoryFixture() *inventoryFixture {
	s := &inventoryFixture{seen: observation{containers: map[workspace.ID]*runtime.Container{}, volumes: map[workspace.ID]*runtime.Volume{}}}
	for _, id := range []workspace.ID{"a", "b", "c"} {
		row := &workspace.Workspace{ID: id, Operation: workspace.OpNone, Home: workspace.Home{State: workspace.HomeLive, Claim: "of " + string(id)}}
		s.rows = append(s.rows, row)
		if id == "c" {
			row.Home = workspace.Home{State: workspace.HomeAbsent}
			continue
		}
		row.Conditions = row.Conditions.With(workspace.VolumeReady, true, workspace.ReasonVolumeReady, "", noon)
		s.seen.volumes[id] = &runtime.Volume{Workspace: id, Claim: row.Home.Claim}
	}
	b := s.rows[1]
	b.Conditions = b.Conditions.With(workspace.ContainerReady, true, workspace.ReasonContainerReady, "", noon)
	s.seen.containers["b"] = &runtime.Container{ID: "k", Workspace: "b", State: runtime.ContainerRunning}
	return s
}

// tick updates the inventory and decides to do nothing for every workspace that is
// judged.
func (s *inventoryFixture) tick(r *inventory, at time.Time) (judged string) {
	r.update(at, noon, s.rows, s.seen)
	for i := range r.entries {
		if e := &r.entries[i]; !e.resting {
			judged += string(e.row.ID)
			e.recordRest(decision{row: *e.row, result: lifecycle.Result{Row: *e.row}})
		}
	}
	return judged
}

// A resting workspace is judged again when something about it has changed, after an
// outage of the runtime, and after maxRest.
func TestInventoryRest(t *testing.T) {
	t.Parallel()
	replace := func(s *inventoryFixture, i int, change func(*workspace.Workspace)) {
		row := *s.rows[i]
		change(&row)
		s.rows[i] = &row
	}
	for _, x := range []struct {
		name   string
		change func(*inventoryFixture)
		after  time.Duration
		want   string
	}{
		{name: "nothing"},
		{name: "the row", change: func(s *inventoryFixture) { replace(s, 2, func(w *workspace.Workspace) { w.DesiredState = "RUNNING" }) }, want: "c"},
		{name: "the container's state", change: func(s *inventoryFixture) {
			s.seen.containers["b"] = &runtime.Container{ID: "k", Workspace: "b", State: runtime.ContainerExited}
		}, want: "b"},
		{name: "the container, listed again", change: func(s *inventoryFixture) { k := *s.seen.containers["b"]; s.seen.containers["b"] = &k }},
		{name: "an additional container", change: func(s *inventoryFixture) { s.seen.containers["c"] = &runtime.Container{ID: "l", Workspace: "c"} }, want: "c"},
		{name: "a removed container", change: func(s *inventoryFixture) { delete(s.seen.containers, "b") }, want: "b"},
		{name: "the volume's claim", change: func(s *inventoryFixture) { s.seen.volumes["a"] = &runtime.Volume{Workspace: "a", Claim: "x"} }, want: "a"},
		{name: "the volume's hold", change: func(s *inventoryFixture) {
			s.seen.volumes["a"] = &runtime.Volume{Workspace: "a", Claim: "of a", Held: true}
		}, want: "a"},
		{name: "a removed volume", change: func(s *inventoryFixture) { delete(s.seen.volumes, "a") }, want: "a"},
		{name: "an additional workspace", change: func(s *inventoryFixture) {
			s.rows = []*workspace.Workspace{{ID: "0"}, s.rows[0], s.rows[1], {ID: "bb"}, s.rows[2]}
		}, want: "0bb"},
		{name: "a removed workspace", change: func(s *inventoryFixture) { s.rows = s.rows[1:] }},
		{name: "no change for long", after: maxRest, want: "abc"},
		{name: "no change, with a clock that was set back", after: -maxRest, want: "abc"},
	} {
		s, r := newInventoryFixture(), &inventory{}
		if judged := s.tick(r, noon); judged != "abc" {
			t.Errorf("%s: first judged are %q", x.name, judged)
		}
		if judged := s.tick(r, noon.Add(time.Minute)); judged != "" {
			t.Errorf("%s: %q do not rest", x.name, judged)
		}
		if x.change != nil {
			x.change(s)
		}
		if judged := s.tick(r, noon.Add(x.after)); judged != x.want {
			t.Errorf("%s: judged again are %q, want %q", x.name, judged, x.want)
		}
		for id, want := range map[workspace.ID]bool{"c": true, "d": false} {
			if _, known := r.opID(id); r.has(id) != want || known != want {
				t.Errorf("%s: wrong result for whether there is %s", x.name, id)
			}
		}
	}
	s, r := newInventoryFixture(), &inventory{}
	s.tick(r, noon)
	r.update(noon, noon.Add(time.Second), s.rows, s.seen)
	for _, e := range r.entries {
		if e.resting {
			t.Errorf("%s rests although Docker was unavailable", e.row.ID)
		}
	}
}

// A missing home is counted whether its workspace rested or not.
func TestInventoryMissingVolumes(t *testing.T) {
	t.Parallel()
	s, r := newInventoryFixture(), &inventory{}
	for _, x := range []struct {
		change   func()
		lost, of int
	}{{nil, 0, 2}, {nil, 0, 2}, {func() { delete(s.seen.volumes, "a") }, 1, 2}, {func() { s.seen.volumes["b"] = &runtime.Volume{Claim: "x"} }, 2, 2}} {
		if x.change != nil {
			x.change()
		}
		r.update(noon, noon, s.rows, s.seen)
		if lost, of := r.missingVolumes(); lost != x.lost || of != x.of {
			t.Errorf("%d of %d are lost, want %d of %d", lost, of, x.lost, x.of)
		}
		s.tick(r, noon)
	}
}

// The decision on a resting workspace is the same at any later time, so it need not
// be judged.
func TestRestDoesNotDependOnTime(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(4, 4))
	rested := map[workspace.Phase]int{}
	n := 10_000
	if harness.Verifying() {
		n = 100_000
	}
	for range n {
		row, k, v := anyWorkspace(r)
		seen := observation{containers: map[workspace.ID]*runtime.Container{}, volumes: map[workspace.ID]*runtime.Volume{}}
		if k != nil {
			seen.containers[row.ID] = k
		}
		if v != nil {
			seen.volumes[row.ID] = v
		}
		judge := func(now time.Time, answered bool) decision {
			in := lifecycle.Input{
				Now: now, Row: row, Policy: lifecycle.DefaultPolicy(), UpSince: noon.Add(-time.Hour), ClaimID: "claim",
				Obs: seen.of(row, func(string) bool { return answered }), BucketUpSince: noon,
			}
			return decision{row: row, seen: in, result: lifecycle.Judge(in)}
		}
		e := &entry{row: &row, container: k, volume: v}
		e.recordRest(judge(noon, false))
		if !e.resting {
			continue
		}
		rested[row.Phase]++
		for _, later := range []time.Duration{time.Second, time.Hour, 1000 * time.Hour} {
			for _, answered := range []bool{false, true} {
				again := &entry{row: &row, container: k, volume: v}
				if again.recordRest(judge(noon.Add(later), answered)); !again.resting {
					t.Fatalf("%s later there is an action for %+v, container %+v, volume %+v", later, row, k, v)
				}
			}
		}
	}
	for _, p := range []workspace.Phase{workspace.PhaseRunning, workspace.PhaseStandby, workspace.PhaseArchived, workspace.PhaseError} {
		if rested[p] == 0 {
			t.Errorf("none rested in %s: %v", p, rested)
		}
	}
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// anyWorkspace returns a workspace in a random state that is mostly consistent, so
// that many rest.
func anyWorkspace(r *rand.Rand) (row workspace.Workspace, k *runtime.Container, v *runtime.Volume) {
	times := make([]*time.Time, 20)
	for _, d := range []time.Duration{-time.Hour, time.Minute} {
		at := noon.Add(d)
		times = append(times, &at)
	}
	row = workspace.Workspace{
		ID: workspace.ID(fmt.Sprintf("%08d-0000-7000-8000-000000000000", r.IntN(1e8))), Operation: workspace.OpNone,
		Home:         workspace.Home{State: pick(r, workspace.HomeStates()...), Claim: "home"},
		DesiredState: pick(r, workspace.DesiredRunning, workspace.DesiredStandby, workspace.DesiredArchived),
		NextDesired:  pick(r, "", "", "", workspace.DesiredDeleted), ArchiveKey: pick(r, "", "key"),
		ErrorReason: pick(r, append(make([]workspace.ErrorReason, 12), workspace.ErrorReasons()...)...),
		RetryAt:     pick(r, times...), DeletedAt: pick(r, times...), RecoverRequestedAt: pick(r, times...),
		CancelRequestedAt: pick(r, times...), ForceStopRequestedAt: pick(r, times...),
	}
	if row.ErrorReason != "" {
		row.ErrorCount = 1
	}
	if r.IntN(2) == 0 {
		v = &runtime.Volume{Workspace: row.ID, Claim: pick(r, "home", "home", "other"), Seeded: r.IntN(2) == 0}
	}
	if r.IntN(3) == 0 {
		k = &runtime.Container{ID: "k", Workspace: row.ID, State: pick(r, runtime.ContainerCreated, runtime.ContainerRunning, runtime.ContainerExited)}
	}
	// As after a tick, or with a changed observation.
	of := lifecycle.Input{Now: noon, Row: row, Obs: lifecycle.Observation{ContainerKnown: true, VolumeKnown: true, Archive: pick(r, lifecycle.ArchivePresent, lifecycle.ArchiveMissing)}}
	if v != nil && r.IntN(8) > 0 {
		of.Obs.Volume = &lifecycle.Volume{Claim: v.Claim}
	}
	if k != nil && r.IntN(8) > 0 {
		of.Obs.Container = &lifecycle.Container{ID: k.ID, State: map[runtime.ContainerState]lifecycle.ContainerState{
			runtime.ContainerCreated: lifecycle.Created, runtime.ContainerRunning: lifecycle.Running, runtime.ContainerExited: lifecycle.Exited,
		}[k.State], Answers: r.IntN(4) > 0}
	}
	row.Conditions = lifecycle.Conditions(of)
	row.Phase = lifecycle.Phase(row, row.Conditions)
	return row, k, v
}
