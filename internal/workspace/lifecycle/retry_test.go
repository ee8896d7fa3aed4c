package lifecycle_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

func yes(i uint8) bool { return i == 1 }

// TestRunningOperation: what becomes of a running operation, for every state
// of its executor, its deadline and its owner's patience.
func TestRunningOperation(t *testing.T) {
	t.Parallel()
	a := readAnswers(t)
	retry := readTables(t, "retry.txt", words)
	running := retry["running"].only(t, "operation", "home", "healthy", "done", "queued", "container_ready", "volume_ready",
		"cancel", "failure", "overdue", "seen", "executor", "node", "desired")
	crossNth([]string{"operation", "home", "container", "volume", "archive", "queued", "desired"}, everyNth, func(v []uint8) {
		c := combination{operation: v[0], home: v[1], container: v[2], volume: v[3], archive: v[4], queued: v[5], desired: v[6]}
		if c.desired != 2 && (c.desired == 1 || word("operation", c.operation) != "ARCHIVING") {
			return // others go on for any desired state
		}
		if c.operation == 0 || a.never.find(c.deleted, c.error, c.home, c.operation, c.queued, c.container, c.volume, c.archive) != nil {
			return
		}
		for _, fact := range []string{word("container", c.container), word("volume", c.volume), word("archive", c.archive)} {
			switch fact {
			case "unknown:NoContainer", "unknown:NoVolume", "unknown:Ready":
			default:
				if strings.HasPrefix(fact, "unknown:") {
					return // what was last seen makes no difference that TestEveryCombination does not find
				}
			}
		}
		f := a.expect(t, c)
		done := words.index(t, "done", a.done.find(c.operation, c.home, c.volume, c.container, c.archive).answer[0])
		in := c.input()
		seen := uint8(0)
		if in.Obs.ContainerKnown && in.Obs.VolumeKnown {
			seen = 1
		}
		ended := in.Obs.Container != nil && in.Obs.Container.State != lifecycle.Running
		cross([]string{"cancel", "failure", "overdue", "executor", "node"}, func(v []uint8) {
			passing := word("failure", v[1]) == "Passing" || word("failure", v[1]) == "InUse"
			if yes(v[3]) && v[1] != 0 && !passing {
				return // one that has failed is not at work
			}
			if yes(v[4]) && !ended {
				return // TestOperationWaitsForLostNode has one that runs
			}
			in, asked := in, in.Now.Add(-time.Second)
			if yes(v[0]) {
				in.Row.CancelRequestedAt = &asked
			}
			if reason := word("failure", v[1]); reason == "Outage" {
				in.Work.Failure = &lifecycle.Failure{Outage: true, Message: "no response"}
			} else if passing {
				in.Work.Failure = &lifecycle.Failure{Reason: workspace.ErrActionFailed, Message: "busy", Passing: true, InUse: reason == "InUse"}
			} else if reason != "none" {
				in.Work.Failure = &lifecycle.Failure{Reason: workspace.ErrorReason(reason), Message: "it failed"}
			}
			if yes(v[2]) {
				long := in.Now.Add(-time.Hour)
				in.Row.OpStartedAt = &long
			}
			in.Work.Running = yes(v[3])
			if yes(v[4]) {
				k := *in.Obs.Container
				k.LostNode, in.Obs.Container = "node1", &k
			}
			rule := running.find(c.operation, c.home, f.healthy, done, c.queued, f.container, f.volume, v[0], v[1], v[2], seen, v[3], v[4], c.desired)
			if rule == nil {
				t.Fatalf("nothing is said of %s, %v", c, v)
			}
			checkRunning(t, c, in, rule.answer[0], lifecycle.Judge(in))
		})
	})
	allUsed(t, map[string]*table{"": running})
}

func checkRunning(t *testing.T, c combination, in lifecycle.Input, does string, r lifecycle.Result) {
	kind := map[string]lifecycle.Kind{"complete": lifecycle.Complete, "cancel": lifecycle.Cancel, "run": lifecycle.Run, "rerun": lifecycle.Run, "wait": lifecycle.None, "idle": lifecycle.None}[does]
	reason, message := workspace.ErrorReason(""), ""
	switch does {
	case "health":
		kind, reason = lifecycle.Fail, workspace.ErrorReason(lifecycle.Conditions(in).Get(workspace.Healthy).Reason)
		message = lifecycle.Conditions(in).Get(workspace.Healthy).Message
	case "failure":
		kind, reason, message = lifecycle.Fail, in.Work.Failure.Reason, in.Work.Failure.Message
	case "timeout":
		kind, reason, message = lifecycle.Fail, workspace.ErrTimeout, string(in.Row.Operation)+" did not finish in time."
		if f := in.Work.Failure; f != nil && f.Passing {
			message += " busy"
		}
	}
	if r.Action.Kind != kind || r.Action.Reason != reason || r.Action.Message != message {
		t.Fatalf("%s: %+v, want %s", c, r.Action, does)
	}
	if ended := kind == lifecycle.Fail || kind == lifecycle.Cancel || kind == lifecycle.Complete; ended != (r.Row.Operation == workspace.OpNone) {
		t.Fatalf("%s: %s leaves %s", c, does, r.Row.Operation)
	}
	if r.ClearCancel != (in.Row.CancelRequestedAt != nil) {
		t.Fatalf("%s: %s: the request to cancel is not answered", c, does)
	}
	queued := in.Row.NextDesired != "" && (kind == lifecycle.Complete || kind == lifecycle.Cancel || kind == lifecycle.Fail && !reason.Final())
	if r.ApplyQueued != queued {
		t.Fatalf("%s: %s: queued wish applied %v", c, does, r.ApplyQueued)
	}
	switch does {
	case "rerun", "idle":
		if !r.LookAgain.IsZero() {
			t.Fatalf("%s: %s: again at %v", c, does, r.LookAgain)
		}
	case "run", "wait":
		if due := deadlineOf(in); due.After(in.Now) != r.LookAgain.Equal(due) {
			t.Fatalf("%s: %s: again at %v, deadline %v", c, does, r.LookAgain, due)
		}
	}
}

// TestFailuresRecorded: which failures are final, and when the others are.
func TestFailuresRecorded(t *testing.T) {
	t.Parallel()
	recorded := readTables(t, "retry.txt", words)["recorded"].only(t, "reason", "attempts")
	cross([]string{"reason", "attempts", "operation"}, func(v []uint8) {
		op := workspace.Operation(word("operation", v[2]))
		reason := workspace.ErrorReason(word("reason", v[0]))
		if op == workspace.OpNone {
			return
		}
		rule := recorded.find(v[0], v[1])
		if rule == nil {
			t.Fatalf("nothing is said of %s after %d", reason, v[1])
		}
		g := look(workspace.PhaseStandby).during(op)
		g.Row.ErrorCount = int(v[1])
		g.Work = lifecycle.Work{Failure: &lifecycle.Failure{Reason: reason, Message: "why"}}
		if op == workspace.OpArchiving {
			g.wants(workspace.DesiredArchived)
		}
		if op == workspace.OpStopping {
			g.container(lifecycle.Running)
		}
		if op == workspace.OpDeleting {
			g.deleted(time.Minute).container(lifecycle.Exited)
		}
		if op == workspace.OpCreateEmptyArchive || op == workspace.OpProvisioning || op == workspace.OpRestoring {
			g.home(workspace.HomeFilling)
		}
		r := g.judged()
		wantAction(t, r, lifecycle.Fail, op)
		retried := rule.answer[1] == "yes"
		if string(r.Row.ErrorReason) != rule.answer[0] || r.Row.ErrorMessage != "why" || r.Row.ErrorCount != int(v[1])+1 ||
			(r.Row.RetryAt != nil) != retried || r.LookAgain.IsZero() == retried || r.Row.Operation != workspace.OpNone {
			t.Errorf("%s after %d in %s: %s, again at %v, want %v", reason, v[1], op, describe(r.Row), r.Row.RetryAt, rule.answer)
		}
		final := !retried && reason != workspace.ErrUnrestorable
		if inError := r.Row.Phase == workspace.PhaseError; inError != final && op != workspace.OpDeleting {
			t.Errorf("%s after %d in %s: phase %s", reason, v[1], op, r.Row.Phase)
		}
	})
	allUsed(t, map[string]*table{"": recorded})
}

// TestBackoff: how long it is until the next attempt.
func TestBackoff(t *testing.T) {
	t.Parallel()
	backoff := readTables(t, "retry.txt", words)["backoff"].only(t, "attempt", "base", "jitter")
	number := func(s string) int {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	cross(backoff.columns, func(v []uint8) {
		rule := backoff.find(v...)
		if rule == nil {
			t.Fatalf("nothing is said of %v", v)
		}
		g := look(workspace.PhaseStandby).during(workspace.OpStarting)
		g.Work = lifecycle.Work{Failure: &lifecycle.Failure{Reason: workspace.ErrActionFailed, Message: "why"}}
		g.Row.ErrorCount = number(word("attempt", v[0])) - 1
		g.Policy.RetryBase = time.Duration(number(word("base", v[1]))) * time.Second
		g.Jitter = float64(v[2]) // of [0,1): 1 is never reached
		want := g.Now.Add(time.Duration(number(rule.answer[0])) * time.Second)
		if r := g.judged(); r.Row.RetryAt == nil || !r.Row.RetryAt.Equal(want) || !r.LookAgain.Equal(want) {
			t.Errorf("attempt %s, base %s: again at %v, want %v", word("attempt", v[0]), word("base", v[1]), r.Row.RetryAt, want)
		}
	})
	allUsed(t, map[string]*table{"": backoff})
}

// TestDeadlines: what they count from, and how long they are. Every running
// operation has one.
func TestDeadlines(t *testing.T) {
	t.Parallel()
	deadline := readTables(t, "retry.txt", words)["deadline"].only(t, "operation", "up", "work")
	cross([]string{"operation", "up", "work"}, func(v []uint8) {
		op, work := workspace.Operation(word("operation", v[0])), word("work", v[2])
		if op == workspace.OpNone {
			return
		}
		rule := deadline.find(v...)
		if rule == nil {
			t.Fatalf("%s has no deadline with up %s, work %s", op, word("up", v[1]), work)
		}
		g := look(workspace.PhaseStandby).during(op)
		switch op {
		case workspace.OpArchiving:
			g.wants(workspace.DesiredArchived)
		case workspace.OpStopping, workspace.OpDeleting:
			g.container(lifecycle.Running)
		case workspace.OpProvisioning, workspace.OpRestoring, workspace.OpCreateEmptyArchive:
			g.home(workspace.HomeFilling)
		}
		from := map[string]time.Time{"claim": *g.Row.OpStartedAt}
		from["up"] = from["claim"].Add(200 * time.Millisecond)
		from["pulled"] = from["claim"].Add(300 * time.Millisecond)
		from["progress"] = from["claim"].Add(400 * time.Millisecond)
		switch word("up", v[1]) {
		case "after":
			g.UpSince = from["up"]
		case "bucket":
			g.BucketUpSince = from["up"]
		}
		switch work {
		case "pulling":
			g.Work.Preparing, g.Work.ProgressAt = true, from["progress"]
		case "pulled":
			g.Work.PreparedAt = from["pulled"]
		case "moving":
			g.Work.Moving, g.Work.ProgressAt = true, from["progress"]
		}
		seconds, err := strconv.Atoi(rule.answer[1])
		if err != nil {
			t.Fatal(err)
		}
		want := from[rule.answer[0]].Add(time.Duration(seconds) * time.Second)
		if r := g.judged(); !r.LookAgain.Equal(want) {
			t.Errorf("%s, up %s, %s: %v after the claim, want %v", op, word("up", v[1]), work, r.LookAgain.Sub(from["claim"]), want.Sub(from["claim"]))
		}
		g.Now = want
		if r := g.judged(); r.Action.Reason != workspace.ErrTimeout {
			t.Errorf("%s is not over at its deadline: %+v", op, r.Action)
		}
	})
	allUsed(t, map[string]*table{"": deadline})
}
