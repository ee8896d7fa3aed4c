package lifecycle_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"codehub/internal/lifecycle"
	"codehub/internal/workspace"
)

// stride is how many combinations everyWorkspace moves on at a time. It divides
// the number of values of none of them, so every pair of values occurs.
const stride = 11

// everyWorkspace calls f with workspaces in combinations of what intents depend
// on, also with those that cannot occur.
func everyWorkspace(f func(w workspace.Workspace)) {
	combination := 0
	at := epoch
	container := workspace.Conditions{}.With(workspace.ContainerReady, false, workspace.ReasonContainerExited, "", epoch)
	lost := workspace.Conditions{}.With(workspace.Healthy, false, workspace.ReasonDataLost, "", epoch)
	whole := workspace.Conditions{}.With(workspace.VolumeReady, true, workspace.ReasonVolumeReady, "", epoch)
	queued := []workspace.DesiredState{"", workspace.DesiredDeleted, workspace.DesiredArchived, workspace.DesiredStandby, workspace.DesiredRunning}
	for _, phase := range workspace.Phases() {
		for _, op := range workspace.Operations() {
			for _, home := range workspace.HomeStates() {
				for _, desired := range queued[2:] {
					for _, next := range queued {
						for n := range 2 * 2 * 2 * 4 * 3 {
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
							w.Conditions = []workspace.Conditions{nil, container, lost, whole}[n/8%4]
							switch n / 32 {
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
		{"apply queued", func(w workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
			return lifecycle.ApplyQueued(w, now), nil
		}},
		{"undelete", func(w workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
			return lifecycle.Undelete(w, now, false)
		}},
		{"recover from an archive", func(w workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
			return lifecycle.RequestRecoverFrom(w, now, &workspace.Archive{Key: "another"})
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
	now, done := epoch.Add(time.Hour), 0
	everyWorkspace(func(w workspace.Workspace) {
		for _, in := range intents() {
			out, err := in.do(w, now)
			next := out.Workspace
			switch {
			case err != nil && workspace.CodeOf(err) == "":
				t.Fatalf("%s, %s: error without a code: %v", in.name, describe(w), err)
			case err != nil:
				continue
			case !out.Changed && (out.NeedsSlot || out.Audit.Action != "" || describe(next) != describe(w)):
				t.Fatalf("%s, %s: unchanged, and yet %+v", in.name, describe(w), out)
			case !out.Changed:
				continue
			case lifecycle.HoldsSlot(next) && !lifecycle.HoldsSlot(w) && !out.NeedsSlot:
				t.Fatalf("%s, %s: takes a slot without a check of the limits", in.name, describe(w))
			case next.DesiredState != w.DesiredState && (next.DesiredCause != "") != (in.name == "idle timeout"):
				t.Fatalf("%s, %s: cause %q", in.name, describe(w), next.DesiredCause)
			case out.AccessOnly && (out.Audit.Action != "" || describe(next) != describe(w)):
				t.Fatalf("%s, %s: not only an access: %+v", in.name, describe(w), out)
			case w.Phase == workspace.PhaseDeleted:
				t.Fatalf("%s changes what is gone: %s", in.name, describe(w))
			}
			done++
		}
	})
	t.Logf("%d changes", done)
}

// Whoever opens a workspace that the page says will start, starts it.
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
		starts := next.DesiredState == workspace.DesiredRunning || next.NextDesired == workspace.DesiredRunning
		switch opening {
		case lifecycle.OpenStarts, lifecycle.OpenQueues:
			if !starts && next.NextDesired != workspace.DesiredDeleted {
				t.Fatalf("%s: opening %d, and no start follows", describe(w), opening)
			}
		case lifecycle.OpenRestores, lifecycle.OpenCreates, lifecycle.OpenFails:
			if next.DesiredState != w.DesiredState || next.NextDesired != w.NextDesired {
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

// The table of operations in docs/states.md says what the rules say.
func TestOperationsAreDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/states.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range workspace.Operations()[1:] {
		rule, _ := lifecycle.RuleOf(op)
		from, cancelled := string(rule.From), string(rule.Cancelled)
		if from == "" {
			from = "any"
		}
		if cancelled == "" {
			cancelled = "–"
		}
		begins, ends := fmt.Sprintf("| %s | %s → %s |", op, from, rule.To), regexp.MustCompile(`\| `+cancelled+`(, [^|]*)? \|$`)
		found := false
		for line := range strings.Lines(string(page)) {
			found = found || strings.HasPrefix(line, begins) && ends.MatchString(strings.TrimSpace(line))
		}
		if !found {
			t.Errorf("docs/states.md has no row %s … | %s |", begins, cancelled)
		}
	}
}
