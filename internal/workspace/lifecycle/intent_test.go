package lifecycle_test

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// stride is how many combinations everyWorkspace moves on at a time. It is coprime to
// the number of values of each, so every pair of values occurs.
var stride = 11 * everyNth

// everyWorkspace calls f with workspaces in combinations of what intents depend
// on, also with those that cannot occur.
func everyWorkspace(f func(w workspace.Workspace)) {
	combination := 0
	at := epoch
	container := workspace.Conditions{}.With(workspace.ContainerReady, false, workspace.ReasonContainerExited, "", epoch)
	lost := workspace.Conditions{}.With(workspace.Healthy, false, string(workspace.ErrDataLost), "", epoch)
	whole := workspace.Conditions{}.With(workspace.VolumeReady, true, workspace.ReasonVolumeReady, "", epoch)
	foreign := workspace.Conditions{}.With(workspace.VolumeReady, false, workspace.ReasonForeignVolume, "", epoch)
	queued := []workspace.DesiredState{"", workspace.DesiredDeleted, workspace.DesiredArchived, workspace.DesiredStandby, workspace.DesiredRunning}
	for _, phase := range workspace.Phases() {
		for _, op := range workspace.Operations() {
			for _, home := range workspace.HomeStates() {
				for _, desired := range queued[2:] {
					for _, next := range queued {
						for n := range 2 * 2 * 2 * 5 * 3 {
							if combination++; combination%stride != 0 {
								continue
							}
							w := workspace.Workspace{
								ID: "019a0000-0000-7000-8000-000000000001", Phase: phase, Operation: op, DesiredState: desired, NextDesired: next,
								Home: workspace.Home{State: home, Claim: "home"}, PhaseChangedAt: epoch,
							}
							if n%2 == 1 {
								w.DeletedAt = &at
							}
							if n/2%2 == 1 {
								w.RecoverRequestedAt, w.RecoverAction = &at, workspace.RecoverAfresh
							}
							if n/4%2 == 1 {
								w.DesiredCause = workspace.CauseIdle
							}
							w.Conditions = []workspace.Conditions{nil, container, lost, whole, foreign}[n/8%5]
							switch n / 40 {
							case 1:
								w.ErrorReason = workspace.ErrTimeout
							case 2:
								w.ErrorReason, w.ArchiveKey = workspace.ErrDataLost, "key"
							}
							f(w)
						}
					}
				}
			}
		}
	}
}

type intent struct {
	name string
	do   func(w workspace.Workspace, now time.Time) (lifecycle.Intent, error)
}

func intents() []intent {
	all := []intent{
		{"wake", lifecycle.Wake},
		{"stay", lifecycle.Stay},
		{"cancel", lifecycle.RequestCancel},
		{"force stop", lifecycle.RequestForceStop},
		{"restart", lifecycle.Restart},
		{"apply queued", func(w workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
			return lifecycle.ApplyQueued(w, now), nil
		}},
		{"undelete", func(w workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
			return lifecycle.Undelete(w, now, false)
		}},
		{"recover from an archive", func(w workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
			return lifecycle.RequestRecoverFrom(w, now, &workspace.Archive{Key: "another"})
		}},
		{"halt", func(w workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
			return lifecycle.Halt(w, now, false)
		}},
		{"halt, force", func(w workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
			return lifecycle.Halt(w, now, true)
		}},
		{"hand over", func(w workspace.Workspace, _ time.Time) (lifecycle.Intent, error) {
			return lifecycle.HandOver(w, "another", w.Name)
		}},
		{"idle timeout", func(w workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
			return lifecycle.EndIdle(w, now, workspace.TTL{Standby: time.Second, Archive: time.Second}), nil
		}},
	}
	for _, queue := range []bool{false, true} {
		for _, want := range []workspace.DesiredState{workspace.DesiredArchived, workspace.DesiredStandby, workspace.DesiredRunning} {
			all = append(all, intent{fmt.Sprintf("desire %s, queue %v", want, queue), func(w workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
				return lifecycle.Desire(w, now, want, queue)
			}})
		}
		all = append(all, intent{fmt.Sprintf("delete, queue %v", queue), func(w workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
			return lifecycle.Delete(w, now, queue)
		}})
	}
	for _, action := range []string{workspace.RecoverAfresh, workspace.RecoverEmpty, workspace.RecoverSetAside} {
		all = append(all, intent{"recover " + action, func(w workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
			return lifecycle.RequestRecover(w, now, action)
		}})
	}
	return all
}

// What holds for every intent and every workspace.
func TestIntentsKeepTheirContract(t *testing.T) {
	t.Parallel()
	now := epoch.Add(time.Hour)
	all := intents()
	refused, left, changed := map[string]bool{}, map[string]bool{}, map[string]bool{}
	everyWorkspace(func(w workspace.Workspace) {
		for _, in := range all {
			out, err := in.do(w, now)
			next := out.Workspace
			// The workspace as it was, except for its last use.
			same := next
			same.LastAccessAt, same.LastAccess = w.LastAccessAt, w.LastAccess
			switch {
			case err != nil && workspace.CodeOf(err) == "":
				t.Fatalf("%s, %s: error without a code: %v", in.name, describe(w), err)
			case err != nil:
				refused[in.name] = true
				continue
			case !out.Changed && (out.NeedsSlot || out.Audit.Action != "" || !reflect.DeepEqual(next, w)):
				t.Fatalf("%s, %s: unchanged, and yet %+v", in.name, describe(w), out)
			case !out.Changed:
				left[in.name] = true
				continue
			case lifecycle.HoldsSlot(next) && !lifecycle.HoldsSlot(w) && !out.NeedsSlot:
				t.Fatalf("%s, %s: takes a slot without a check of the limits", in.name, describe(w))
			case next.DesiredState != w.DesiredState && (next.DesiredCause != "") != (in.name == "idle timeout" || in.name == "restart"):
				t.Fatalf("%s, %s: cause %q", in.name, describe(w), next.DesiredCause)
			case out.AccessOnly && (out.Audit.Action != "" || !reflect.DeepEqual(same, w)):
				t.Fatalf("%s, %s: not only an access: %+v", in.name, describe(w), out)
			case w.Phase == workspace.PhaseDeleted:
				t.Fatalf("%s changes what is gone: %s", in.name, describe(w))
			}
			changed[in.name] = true
		}
	})
	never := map[string]bool{"apply queued": true, "idle timeout": true} // refused
	for _, in := range all {
		if !changed[in.name] || !refused[in.name] && !never[in.name] {
			t.Errorf("%s: changed something: %v, was refused: %v, changed nothing: %v", in.name, changed[in.name], refused[in.name], left[in.name])
		}
	}
}

// Wake starts or queues a start exactly where OpeningOf says that opening does.
func TestOpeningMatchesWake(t *testing.T) {
	t.Parallel()
	everyWorkspace(func(w workspace.Workspace) {
		opening := lifecycle.OpeningOf(w)
		out, err := lifecycle.Wake(w, epoch.Add(time.Hour))
		if err != nil {
			if opening != lifecycle.OpenDeleted {
				t.Fatalf("%s: opening %d, wake: %v", describe(w), opening, err)
			}
			return
		}
		next := out.Workspace
		starts := lifecycle.StartRequested(next)
		switch opening {
		case lifecycle.OpenStarts, lifecycle.OpenQueues:
			if !starts && next.NextDesired != workspace.DesiredDeleted {
				t.Fatalf("%s: opening %d, and no start follows", describe(w), opening)
			}
		default:
			// Nothing but the visitor's answer leads on, or nothing has to. A workspace
			// that runs and is to stop stays up for its visitor; an operation that does
			// not lead to RUNNING is followed by a start.
			decides := next.DesiredState != w.DesiredState || next.NextDesired != w.NextDesired
			stays := opening == lifecycle.OpenNow && w.Phase == workspace.PhaseRunning
			if rule, _ := lifecycle.RuleOf(w.Operation); decides && !stays && !rule.StartsAfter {
				t.Fatalf("%s: opening %d asks the visitor, and wake decides", describe(w), opening)
			}
		}
	})
}

// Every operation has a rule, leads one level up or down, and can be cancelled
// where its rule says.
func TestOperationsHaveRules(t *testing.T) {
	t.Parallel()
	policy := lifecycle.DefaultPolicy()
	for _, op := range workspace.Operations() {
		rule, ok := lifecycle.RuleOf(op)
		if ok != (op != workspace.OpNone) {
			t.Fatalf("%s has a rule: %v", op, ok)
		}
		if !ok {
			continue
		}
		if rule.Deadline(policy) <= 0 {
			t.Errorf("%s has no deadline", op)
		}
		if rule.Bucket != (rule.Progress == lifecycle.ProgressAlways) {
			t.Errorf("%s: what moves a home through object storage lasts while it progresses", op)
		}
		w := workspace.Workspace{Operation: op, Home: workspace.Home{State: workspace.HomeLive}}
		if to, ok := lifecycle.CancelTo(w); ok && workspace.Phase(to) != rule.From && rule.From != workspace.PhasePending {
			t.Errorf("%s, cancelled, is to go to %s, and not back to %s", op, to, rule.From)
		}
	}
}

// What a person meets who opens a workspace, by the phase at rest and by the
// operation.
func TestOpeningOf(t *testing.T) {
	t.Parallel()
	const archived, standby, running = workspace.DesiredArchived, workspace.DesiredStandby, workspace.DesiredRunning
	for _, c := range []struct {
		phase   workspace.Phase
		op      workspace.Operation
		desired workspace.DesiredState
		next    workspace.DesiredState
		want    lifecycle.Opening
	}{
		{workspace.PhaseRunning, "NONE", running, "", lifecycle.OpenNow},
		{workspace.PhaseRunning, "NONE", standby, "", lifecycle.OpenNow},
		{workspace.PhaseRunning, workspace.OpStopping, standby, "", lifecycle.OpenQueues},
		{workspace.PhaseStandby, "NONE", standby, "", lifecycle.OpenStarts},
		{workspace.PhaseStandby, "NONE", running, "", lifecycle.OpenStarts},
		{workspace.PhaseStandby, workspace.OpStarting, running, "", lifecycle.OpenWaits},
		{workspace.PhaseStandby, workspace.OpArchiving, archived, "", lifecycle.OpenQueues},
		{workspace.PhaseArchived, "NONE", archived, "", lifecycle.OpenRestores},
		{workspace.PhaseArchived, "NONE", archived, running, lifecycle.OpenWaits},
		{workspace.PhaseArchived, "NONE", archived, standby, lifecycle.OpenWaits},
		{workspace.PhaseArchived, "NONE", archived, workspace.DesiredDeleted, lifecycle.OpenRestores},
		{workspace.PhaseArchived, "NONE", standby, "", lifecycle.OpenWaits},
		{workspace.PhaseArchived, workspace.OpRestoring, standby, "", lifecycle.OpenQueues},
		{workspace.PhaseArchived, workspace.OpRestoring, running, "", lifecycle.OpenWaits},
		{workspace.PhasePending, "NONE", archived, "", lifecycle.OpenCreates},
		{workspace.PhasePending, "NONE", archived, running, lifecycle.OpenWaits},
		{workspace.PhasePending, "NONE", running, "", lifecycle.OpenWaits},
		{workspace.PhasePending, workspace.OpProvisioning, standby, "", lifecycle.OpenQueues},
		{workspace.PhasePending, workspace.OpProvisioning, running, "", lifecycle.OpenWaits},
		{workspace.PhasePending, workspace.OpCreateEmptyArchive, archived, "", lifecycle.OpenWaits},
		{workspace.PhaseError, "NONE", running, "", lifecycle.OpenFails},
		{workspace.PhaseDeleting, "NONE", standby, "", lifecycle.OpenDeleted},
		{workspace.PhaseStandby, workspace.OpDeleting, standby, "", lifecycle.OpenDeleted},
	} {
		w := workspace.Workspace{Phase: c.phase, Operation: c.op, DesiredState: c.desired, NextDesired: c.next}
		if got := lifecycle.OpeningOf(w); got != c.want {
			t.Errorf("%s in %s, desired %s then %q: %d, want %d", c.phase, c.op, c.desired, c.next, got, c.want)
		}
		now := time.Now()
		w.DeletedAt = &now
		if got := lifecycle.OpeningOf(w); got != lifecycle.OpenDeleted {
			t.Errorf("%s in %s, deleted: %d", c.phase, c.op, got)
		}
	}
}

// The state shows a request at once.
func TestStateOf(t *testing.T) {
	t.Parallel()
	const archived, standby, running = workspace.DesiredArchived, workspace.DesiredStandby, workspace.DesiredRunning
	now := time.Now()
	for _, c := range []struct {
		w    workspace.Workspace
		want lifecycle.State
	}{
		{workspace.Workspace{Phase: workspace.PhasePending, DesiredState: archived}, lifecycle.StatePending},
		{workspace.Workspace{Phase: workspace.PhasePending, DesiredState: running}, lifecycle.StatePreparing},
		{workspace.Workspace{Phase: workspace.PhaseStandby, DesiredState: standby}, lifecycle.StateStopped},
		{workspace.Workspace{Phase: workspace.PhaseStandby, DesiredState: running}, lifecycle.StateStarting},
		{workspace.Workspace{Phase: workspace.PhaseStandby, DesiredState: archived}, lifecycle.StateArchiving},
		{workspace.Workspace{Phase: workspace.PhaseRunning, DesiredState: running}, lifecycle.StateRunning},
		{workspace.Workspace{Phase: workspace.PhaseRunning, DesiredState: standby}, lifecycle.StateStopping},
		{workspace.Workspace{Phase: workspace.PhaseArchived, DesiredState: archived}, lifecycle.StateArchived},
		{workspace.Workspace{Phase: workspace.PhaseArchived, DesiredState: running}, lifecycle.StateRestoring},
		{workspace.Workspace{Phase: workspace.PhaseError, DesiredState: running}, lifecycle.StateError},
		{workspace.Workspace{Phase: workspace.PhaseStandby, DesiredState: standby, DeletedAt: &now}, lifecycle.StateDeleted},
		{workspace.Workspace{Phase: workspace.PhaseDeleting, DesiredState: standby, DeletedAt: &now, Operation: workspace.OpDeleting}, lifecycle.StateDeleting},
		{workspace.Workspace{Phase: workspace.PhaseDeleting, DesiredState: standby, DeletedAt: &now, ErrorReason: workspace.ErrTimeout}, lifecycle.StateDeleteFailed},
		// Its home is being removed, and codehub waits for the next attempt.
		{workspace.Workspace{Phase: workspace.PhaseDeleting, DesiredState: standby, DeletedAt: &now, ErrorReason: workspace.ErrActionFailed, Home: workspace.Home{State: workspace.HomeDeleting}}, lifecycle.StateDeleting},
		// Just undeleted.
		{workspace.Workspace{Phase: workspace.PhaseDeleting, DesiredState: standby, Home: workspace.Home{State: workspace.HomeLive}}, lifecycle.StateStopped},
		{workspace.Workspace{Phase: workspace.PhaseDeleting, DesiredState: running, Home: workspace.Home{State: workspace.HomeLive}}, lifecycle.StateStarting},
		{workspace.Workspace{Phase: workspace.PhaseDeleting, DesiredState: archived, Home: workspace.Home{State: workspace.HomeLive}}, lifecycle.StateArchiving},
		{workspace.Workspace{Phase: workspace.PhaseDeleting, DesiredState: archived}, lifecycle.StateArchived},
		{workspace.Workspace{Phase: workspace.PhaseDeleting, DesiredState: running}, lifecycle.StateRestoring},
		{workspace.Workspace{Phase: workspace.PhaseStandby, DesiredState: standby, Operation: workspace.OpRestoring}, lifecycle.StateRestoring},
	} {
		if c.w.Operation == "" {
			c.w.Operation = workspace.OpNone
		}
		if got := lifecycle.StateOf(c.w); got != c.want {
			t.Errorf("%s: %s, want %s", describe(c.w), got, c.want)
		}
	}
}
