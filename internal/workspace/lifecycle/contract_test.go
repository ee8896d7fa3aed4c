package lifecycle_test

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// The contracts of docs/contracts.md that this package decides: one test each, for any
// workspace that can occur.

// anyLook draws a look at any workspace that can occur, with any requests and
// whatever its executor may be doing.
func (a *answers) anyLook(t *rapid.T) lifecycle.Input {
	c := rapid.Custom(func(t *rapid.T) combination {
		draw := func(column string) uint8 {
			return rapid.Uint8Range(0, uint8(len(words[column])-1)).Draw(t, column)
		}
		return combination{
			operation: draw("operation"), deleted: draw("deleted"), error: draw("error"), home: draw("home"), desired: draw("desired"),
			queued: draw("queued"), container: draw("container"), volume: draw("volume"), archive: draw("archive"),
		}
	}).Filter(func(c combination) bool {
		return a.never.find(c.deleted, c.error, c.home, c.operation, c.queued, c.container, c.volume, c.archive) == nil
	}).Draw(t, "look")
	in := c.input()
	in.Jitter = rapid.Float64Range(0, 0.999).Draw(t, "jitter")
	in.Row.ErrorCount += rapid.IntRange(0, 1).Draw(t, "failed before")
	in.Row.ArchiveOpID, in.Row.StopReason = "last-archiving", lifecycle.StopForced
	in.Row.Phase = rapid.SampledFrom(workspace.Phases()).Draw(t, "phase as stored")
	ago := func(what string) *time.Time {
		minutes := rapid.IntRange(-1, 3).Draw(t, what)
		if minutes < 0 {
			return nil
		}
		at := in.Now.Add(-time.Duration(minutes) * time.Minute)
		return &at
	}
	if in.Row.Operation == workspace.OpNone {
		if in.Row.RecoverRequestedAt = ago("recover"); in.Row.RecoverRequestedAt != nil {
			in.Row.RecoverAction = rapid.SampledFrom([]string{workspace.RecoverAfresh, workspace.RecoverEmpty, workspace.RecoverArchive, workspace.RecoverSetAside}).Draw(t, "action")
		}
		if rapid.IntRange(0, 3).Draw(t, "restore") == 0 && in.Row.NextDesired == "" && in.Row.DeletedAt == nil && in.Row.RecoverRequestedAt == nil {
			in.Row.RestoreFrom = backup()
			in.Obs.Earlier = lifecycle.Archive(rapid.IntRange(0, 3).Draw(t, "backup"))
		}
		if in.Row.RecoverAction == workspace.RecoverArchive {
			in.Row.RecoverFrom = &workspace.Archive{Key: earlierKey, Digest: "d", Size: 7, Entries: 3}
			in.Obs.Earlier = lifecycle.Archive(rapid.IntRange(0, 3).Draw(t, "earlier"))
		}
	} else {
		in.Row.OpStartedAt = ago("started")
		if in.Row.OpStartedAt == nil {
			in.Row.OpStartedAt = &opStarted
		}
		in.Work = anyWork(t, in.Now)
	}
	in.Row.CancelRequestedAt, in.Row.ForceStopRequestedAt = ago("cancel"), ago("force stop")
	if k := in.Obs.Container; k != nil && k.State != lifecycle.Running && rapid.Bool().Draw(t, "node lost") {
		k.LostNode = "node1"
	}
	return in
}

func anyWork(t *rapid.T, now time.Time) lifecycle.Work {
	switch rapid.IntRange(0, 6).Draw(t, "work") {
	case 0:
		return lifecycle.Work{Running: true}
	case 1:
		return lifecycle.Work{Running: true, Preparing: true, ProgressAt: now.Add(-time.Minute)}
	case 2:
		return lifecycle.Work{Running: true, PreparedAt: now.Add(-time.Minute), ProgressAt: now.Add(-time.Second)}
	case 3:
		reason := rapid.SampledFrom(workspace.ErrorReasons()).Draw(t, "failure")
		return lifecycle.Work{Failure: &lifecycle.Failure{Reason: reason, Message: "why"}}
	case 4:
		busy := &lifecycle.Failure{Reason: workspace.ErrActionFailed, Message: "why", Passing: true, InUse: rapid.Bool().Draw(t, "in use")}
		return lifecycle.Work{Running: rapid.Bool().Draw(t, "tried again"), Failure: busy}
	case 5:
		return lifecycle.Work{Running: rapid.Bool().Draw(t, "tried again"), Failure: &lifecycle.Failure{Outage: true, Message: "no response"}}
	}
	return lifecycle.Work{}
}

// contract checks a property of every look.
func contract(t *testing.T, holds func(t *rapid.T, in lifecycle.Input)) {
	t.Helper()
	t.Parallel()
	a := readAnswers(t)
	rapid.Check(t, func(t *rapid.T) { holds(t, a.anyLook(t)) })
}

// Once everything is observed, the row's previous conditions do not matter, except
// whether the container was ready.
func TestContractRealityOverRows(t *testing.T) {
	contract(t, func(t *rapid.T, in lifecycle.Input) {
		in.Obs.ContainerKnown, in.Obs.VolumeKnown = true, true
		if in.Row.ArchiveKey != "" && in.Obs.Archive == lifecycle.ArchiveUnknown {
			in.Obs.Archive = lifecycle.ArchivePresent
		}
		if lifecycle.AsksEarlier(in.Row) && in.Obs.Earlier == lifecycle.ArchiveUnknown {
			in.Obs.Earlier = lifecycle.ArchiveMissing
		}
		other := in
		other.Row.Phase = rapid.SampledFrom(workspace.Phases()).Draw(t, "another phase")
		other.Row.Conditions = workspace.Conditions{
			workspace.VolumeReady:  {Status: "True", Reason: workspace.ReasonVolumeReady},
			workspace.ArchiveReady: {Status: "False", Reason: workspace.ReasonArchiveMissing, Message: in.Row.ArchiveKey},
			workspace.Healthy:      {Status: "False", Reason: string(workspace.ErrDataLost)},
		}
		if c, ok := in.Row.Conditions[workspace.ContainerReady]; ok {
			other.Row.Conditions[workspace.ContainerReady] = c
		}
		if x, y := timeless(lifecycle.Judge(in)), timeless(lifecycle.Judge(other)); !reflect.DeepEqual(x, y) {
			t.Fatalf("from one row:\n%+v\nfrom another:\n%+v", x, y)
		}
	})
}

// timeless leaves out since when conditions are as they are.
func timeless(r lifecycle.Result) lifecycle.Result {
	c := workspace.Conditions{}
	for k, v := range r.Row.Conditions {
		v.LastTransitionTime = time.Time{}
		c[k] = v
	}
	r.Row.Conditions = c
	return r
}

// A decision depends only on what is observed: until LookAgain the time changes
// nothing, and Settle is not decided forever.
func TestContractLevelTriggered(t *testing.T) {
	contract(t, func(t *rapid.T, in lifecycle.Input) {
		r := lifecycle.Judge(in)
		if again := lifecycle.Judge(in); !reflect.DeepEqual(r, again) {
			t.Fatalf("the same look twice:\n%+v\n%+v", r, again)
		}
		if r.Action.Kind == lifecycle.None && !r.ApplyQueued {
			later := in
			later.Now = in.Now.Add(time.Duration(rapid.IntRange(1, 40000).Draw(t, "later")) * time.Second)
			if !r.LookAgain.IsZero() && !later.Now.Before(r.LookAgain) {
				later.Now = r.LookAgain.Add(-time.Nanosecond)
			}
			if l := lifecycle.Judge(later); l.Action != r.Action || l.ApplyQueued != r.ApplyQueued || !l.LookAgain.Equal(r.LookAgain) {
				t.Fatalf("%v later: %+v instead of %+v, to be looked at again at %v", later.Now.Sub(in.Now), l.Action, r.Action, r.LookAgain)
			}
		}
		g := &given{in}
		for range 10 {
			r := g.judged()
			switch r.Action.Kind {
			case lifecycle.None, lifecycle.Claim, lifecycle.Run, lifecycle.RemoveContainer, lifecycle.SetAside:
				return
			}
			g.next(r)
		}
		t.Fatalf("bookkeeping without end: %s", describe(g.Row))
	})
}

// The judge changes no column of the API layer.
func TestContractSingleWriter(t *testing.T) {
	controllers := []string{"Home", "Conditions", "Phase", "PhaseChangedAt", "Operation", "OpID", "OpStartedAt",
		"ArchiveOpID", "ArchiveKey", "ArchiveDigest", "ArchiveSize", "ErrorReason", "ErrorMessage", "ErrorCount",
		"RunningImage", "RunningEnv", "RetryAt", "StopReason", "Progress"}
	contract(t, func(t *rapid.T, in lifecycle.Input) {
		was, is := reflect.ValueOf(in.Row), reflect.ValueOf(lifecycle.Judge(in).Row)
		for i := range was.NumField() {
			name := was.Type().Field(i).Name
			if !slices.Contains(controllers, name) && !reflect.DeepEqual(was.Field(i).Interface(), is.Field(i).Interface()) {
				t.Fatalf("%s has changed: %v, now %v", name, was.Field(i), is.Field(i))
			}
		}
	})
}

// One operation at a time: the judge claims one if none runs, with the new claim's ID,
// and only the judge ends it. ERROR implies NONE.
func TestContractOneOperation(t *testing.T) {
	contract(t, func(t *rapid.T, in lifecycle.Input) {
		r := lifecycle.Judge(in)
		op, claim := r.Row.Operation, r.Action.Kind == lifecycle.Claim
		switch {
		case (op == workspace.OpNone) != (r.Row.OpID == "") || (op == workspace.OpNone) != (r.Row.OpStartedAt == nil):
			t.Fatalf("%s with claim %q since %v", op, r.Row.OpID, r.Row.OpStartedAt)
		case claim && (in.Row.Operation != workspace.OpNone || r.Row.OpID != in.ClaimID || op != r.Action.Op):
			t.Fatalf("%s claimed as %q in place of %s", op, r.Row.OpID, in.Row.Operation)
		case !claim && op != workspace.OpNone && (op != in.Row.Operation || r.Row.OpID != in.Row.OpID):
			t.Fatalf("%s has become %s without a claim", in.Row.Operation, op)
		case r.Row.Phase == workspace.PhaseError && op != workspace.OpNone:
			t.Fatalf("ERROR during %s", op)
		case in.Row.Operation != workspace.OpNone && op == workspace.OpNone:
			switch r.Action.Kind {
			case lifecycle.Complete, lifecycle.Fail, lifecycle.Cancel:
			default:
				t.Fatalf("%s has ended of itself", in.Row.Operation)
			}
		}
	})
}

// Operations connect neighbouring levels, in one direction.
func TestContractOrdered(t *testing.T) {
	t.Parallel()
	stages := map[workspace.Operation][2]workspace.Phase{
		workspace.OpProvisioning:       {workspace.PhasePending, workspace.PhaseStandby},
		workspace.OpCreateEmptyArchive: {workspace.PhasePending, workspace.PhaseArchived},
		workspace.OpRestoring:          {workspace.PhaseArchived, workspace.PhaseStandby},
		workspace.OpStarting:           {workspace.PhaseStandby, workspace.PhaseRunning},
		workspace.OpStopping:           {workspace.PhaseRunning, workspace.PhaseStandby},
		workspace.OpArchiving:          {workspace.PhaseStandby, workspace.PhaseArchived},
	}
	for _, c := range []struct {
		from workspace.Phase
		to   workspace.DesiredState
		ops  []workspace.Operation
	}{
		{workspace.PhasePending, workspace.DesiredRunning, []workspace.Operation{workspace.OpProvisioning, workspace.OpStarting}},
		{workspace.PhasePending, workspace.DesiredStandby, []workspace.Operation{workspace.OpProvisioning}},
		{workspace.PhasePending, workspace.DesiredArchived, []workspace.Operation{workspace.OpCreateEmptyArchive}},
		{workspace.PhaseArchived, workspace.DesiredRunning, []workspace.Operation{workspace.OpRestoring, workspace.OpStarting}},
		{workspace.PhaseArchived, workspace.DesiredStandby, []workspace.Operation{workspace.OpRestoring}},
		{workspace.PhaseArchived, workspace.DesiredArchived, nil},
		{workspace.PhaseStandby, workspace.DesiredRunning, []workspace.Operation{workspace.OpStarting}},
		{workspace.PhaseStandby, workspace.DesiredStandby, nil},
		{workspace.PhaseStandby, workspace.DesiredArchived, []workspace.Operation{workspace.OpArchiving}},
		{workspace.PhaseRunning, workspace.DesiredRunning, nil},
		{workspace.PhaseRunning, workspace.DesiredStandby, []workspace.Operation{workspace.OpStopping}},
		{workspace.PhaseRunning, workspace.DesiredArchived, []workspace.Operation{workspace.OpStopping, workspace.OpArchiving}},
	} {
		g := look(c.from).wants(c.to)
		var ops []workspace.Operation
		for range 20 {
			r := g.judged()
			if r.Action.Kind == lifecycle.Claim {
				if r.Row.Phase != stages[r.Action.Op][0] {
					t.Errorf("%s to %s: %s claimed in %s", c.from, c.to, r.Action.Op, r.Row.Phase)
				}
				ops = append(ops, r.Action.Op)
				g.next(r).carriedOut()
				continue
			}
			if r.Action.Kind == lifecycle.Complete && r.Row.Phase != stages[r.Action.Op][1] {
				t.Errorf("%s to %s: %s led to %s", c.from, c.to, r.Action.Op, r.Row.Phase)
			}
			g.next(r)
		}
		if !slices.Equal(ops, c.ops) {
			t.Errorf("%s to %s: %v, want %v", c.from, c.to, ops, c.ops)
		}
		if string(g.Row.Phase) != string(c.to) {
			t.Errorf("%s to %s: ends in %s", c.from, c.to, g.Row.Phase)
		}
	}
}

// carriedOut is what the running operation makes of the backends.
func (g *given) carriedOut() {
	switch g.Row.Operation {
	case workspace.OpProvisioning:
		g.Obs.Volume = &lifecycle.Volume{Claim: g.Row.Home.Claim, Seeded: true}
	case workspace.OpRestoring:
		g.Obs.Volume = &lifecycle.Volume{Claim: g.Row.Home.Claim, Marker: g.Row.ArchiveKey}
	case workspace.OpStarting:
		g.container(lifecycle.Running).Obs.Container.Answers = true
	case workspace.OpStopping:
		g.Obs.Container = nil
	case workspace.OpCreateEmptyArchive:
		g.archived("archives/" + g.Row.ArchiveOpID)
	case workspace.OpArchiving:
		g.archived("archives/" + g.Row.ArchiveOpID)
		g.Row.Home.State, g.Obs.Volume = workspace.HomeArchived, nil
	}
}

// Only a live home with its own volume is started, and only observed resources are
// removed.
func TestContractAContainerHasItsVolume(t *testing.T) {
	contract(t, func(t *rapid.T, in lifecycle.Input) {
		r := lifecycle.Judge(in)
		switch {
		case r.Action.Op == workspace.OpStarting && r.Action.Kind == lifecycle.Claim:
			if r.Row.Home.State != workspace.HomeLive || !r.Row.Conditions.Is(workspace.VolumeReady) || in.Row.DeletedAt != nil {
				t.Fatalf("a start is claimed: %s", describe(r.Row))
			}
		case r.Action.Kind == lifecycle.RemoveContainer && in.Obs.Container == nil:
			t.Fatal("a container is to be removed that was not seen")
		}
		if r.Row.Phase == workspace.PhaseRunning && r.Row.Home.State != workspace.HomeLive {
			t.Fatalf("RUNNING on a home in %s", r.Row.Home.State)
		}
	})
}

// Every claim of ARCHIVING has an upload of its own; a restore is complete when its
// marker is the key; the volume of a home that is being filled is found by its claim.
func TestContractArchiveAndRestoreAreRepeatable(t *testing.T) {
	contract(t, func(t *rapid.T, in lifecycle.Input) {
		r := lifecycle.Judge(in)
		uploads := r.Action.Kind == lifecycle.Claim && (r.Action.Op == workspace.OpArchiving || r.Action.Op == workspace.OpCreateEmptyArchive)
		if want := map[bool]string{true: in.ClaimID, false: in.Row.ArchiveOpID}[uploads]; r.Row.ArchiveOpID != want {
			t.Fatalf("%d %s: archive_op_id %q, want %q", r.Action.Kind, r.Action.Op, r.Row.ArchiveOpID, want)
		}
		if r.Action.Kind == lifecycle.Complete && r.Action.Op == workspace.OpRestoring &&
			(in.Obs.Volume == nil || in.Obs.Volume.Marker != in.Row.ArchiveKey || r.Row.Home.Marker != in.Row.ArchiveKey) {
			t.Fatalf("restored: %+v, marker %q, key %q", in.Obs.Volume, r.Row.Home.Marker, in.Row.ArchiveKey)
		}
		if in.Row.Home.State == workspace.HomeFilling && r.Row.Home.State != workspace.HomeAbsent && r.Row.Home.Claim != in.Row.Home.Claim {
			t.Fatalf("the volume of %q is forgotten for %q", in.Row.Home.Claim, r.Row.Home.Claim)
		}
	})
}

// The home's state changes in order: only a deletion past its grace leads to deleting,
// a live home ends only by that, by an archive, or when its loss is confirmed.
func TestContractOrder(t *testing.T) {
	contract(t, func(t *rapid.T, in lifecycle.Input) {
		r := lifecycle.Judge(in)
		from, to := in.Row.Home.State, r.Row.Home.State
		pastGrace := in.Row.DeletedAt != nil && !in.Now.Before(in.Row.DeletedAt.Add(in.Policy.DeleteGrace))
		lost := !lifecycle.Conditions(in).Is(workspace.Healthy) || in.Row.DeletedAt != nil && in.Obs.VolumeKnown
		step := [2]workspace.HomeState{from, to}
		switch {
		case from == to:
		case step == [2]workspace.HomeState{workspace.HomeAbsent, workspace.HomeFilling}:
		case step == [2]workspace.HomeState{workspace.HomeFilling, workspace.HomeLive}:
		case step == [2]workspace.HomeState{workspace.HomeFilling, workspace.HomeDiscarding} && r.Action.Op == workspace.OpArchiving &&
			in.Obs.Archive == lifecycle.ArchivePresent && lifecycle.Wanted(in.Row) == workspace.DesiredArchived:
		case to == workspace.HomeDeleting && pastGrace && r.Action.Op == workspace.OpDeleting:
		case (from.Removable() || from == workspace.HomeDeleting) && to == workspace.HomeAbsent && in.Obs.VolumeKnown:
		case step == [2]workspace.HomeState{workspace.HomeArchived, workspace.HomeLive} && r.Action.Kind == lifecycle.Recover &&
			in.Obs.Volume != nil && in.Obs.Volume.Claim == in.Row.Home.Claim && in.Obs.Volume.Complete():
		case step == [2]workspace.HomeState{workspace.HomeArchived, workspace.HomeDiscarding} && r.Action.Kind == lifecycle.Recover && confirmed(in):
		case step == [2]workspace.HomeState{workspace.HomeFilling, workspace.HomeAbsent} && in.Row.DeletedAt != nil && in.Obs.VolumeKnown:
		case step == [2]workspace.HomeState{workspace.HomeLive, workspace.HomeAbsent} && lost &&
			(pastGrace || confirmed(in)):
		default:
			t.Fatalf("%s has become %s: %d %s", from, to, r.Action.Kind, r.Action.Op)
		}
		if r.Action.Kind == lifecycle.Claim && r.Action.Op == workspace.OpArchiving && from.Removable() &&
			in.Row.ArchiveKey != "" && in.Obs.Archive != lifecycle.ArchivePresent {
			t.Fatal("a volume is removed for an archive that was not seen")
		}
		if r.Action.Kind == lifecycle.Claim && r.Action.Op == workspace.OpProvisioning && in.Row.ArchiveKey != "" {
			t.Fatal("an empty home is made in place of an archived one")
		}
	})
}

// The row keeps naming what garbage collection protects: the key until its loss is
// confirmed or a backup replaces it, and the last upload.
func TestContractArchivesStayNamed(t *testing.T) {
	contract(t, func(t *rapid.T, in lifecycle.Input) {
		r := lifecycle.Judge(in)
		replaced := r.ClearRestore && r.Row.ArchiveKey == backupKey && in.Obs.Archive == lifecycle.ArchivePresent && in.Obs.Earlier == lifecycle.ArchivePresent
		if r.Row.ArchiveKey != in.Row.ArchiveKey && !replaced && !(confirmed(in) && r.Action.Kind == lifecycle.Recover && in.Row.DeletedAt == nil) {
			t.Fatalf("archive_key %q is dropped by %d", in.Row.ArchiveKey, r.Action.Kind)
		}
		if r.Action.Kind == lifecycle.Fail && r.Row.ArchiveOpID != in.Row.ArchiveOpID {
			t.Fatal("a failed upload is not named any more")
		}
	})
}

// confirmed: its owner has given the home up, for an empty one or for an
// earlier archive that was seen to be there.
func confirmed(in lifecycle.Input) bool {
	return in.Row.RecoverAction == workspace.RecoverEmpty ||
		in.Row.RecoverAction == workspace.RecoverArchive && in.Obs.Earlier == lifecycle.ArchivePresent
}

// An outage is not a failed attempt, every other failure is, and the last one is final.
// An error ends by a recovery, or with the workspace.
func TestContractRetries(t *testing.T) {
	contract(t, func(t *rapid.T, in lifecycle.Input) {
		r := lifecycle.Judge(in)
		if f := in.Work.Failure; f != nil && f.Outage && r.Row.ErrorMessage == f.Message {
			t.Fatal("an outage is recorded")
		}
		still := r.Action.Kind == lifecycle.Recover && r.Action.Reason != ""
		if still && (r.Row.ErrorCount != 1 || r.Row.RetryAt != nil || !r.Row.ErrorReason.Final() || r.Row.Phase != workspace.PhaseError) {
			t.Fatalf("recovered, and still lost: %s", describe(r.Row))
		}
		if r.Action.Kind == lifecycle.Fail {
			unrestorable := r.Row.ErrorReason == workspace.ErrUnrestorable // not tried again, and no ERROR
			if r.Row.ErrorCount != in.Row.ErrorCount+1 || (r.Row.RetryAt == nil) != (r.Row.ErrorReason.Final() || unrestorable) {
				t.Fatalf("failed: %s, again at %v", describe(r.Row), r.Row.RetryAt)
			}
			if !r.Row.ErrorReason.Final() && !unrestorable && r.Row.ErrorCount >= workspace.MaxAttempts {
				t.Fatalf("attempt %d is not the last", r.Row.ErrorCount)
			}
			if r.Row.ErrorReason.Final() && r.Row.Phase != workspace.PhaseError && in.Row.DeletedAt == nil {
				t.Fatalf("%s in %s", r.Row.ErrorReason, r.Row.Phase)
			}
		} else if r.Row.ErrorCount > in.Row.ErrorCount && !still {
			t.Fatalf("%d counts as a failure", r.Action.Kind)
		}
		if in.Row.ErrorReason.Final() && r.Row.ErrorReason == "" && in.Row.DeletedAt == nil && in.Row.RecoverRequestedAt == nil {
			t.Fatal("an error is gone that nobody has recovered from")
		}
	})
}
