package lifecycle_test

import (
	"strings"
	"testing"
	"time"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// answers are the tables that together say what is expected of one look.
type answers struct {
	volume, archive, container, healthy *table
	phase                               *table
	workspace, deleted                  *table
	done                                *table
	running                             *table
	never                               *table
	all                                 []map[string]*table
}

func readAnswers(t testing.TB) *answers {
	t.Helper()
	conditions := readTables(t, "conditions.txt", words)
	phase := readTables(t, "phase.txt", words)
	operation := readTables(t, "operation.txt", words)
	completion := readTables(t, "completion.txt", words)
	retry := readTables(t, "retry.txt", words)
	never := readTables(t, "impossible.txt", words)
	return &answers{
		volume:    conditions["volume_ready"].only(t, "volume", "home"),
		archive:   conditions["archive_ready"].only(t, "archive"),
		container: conditions["container_ready"].only(t, "container", "operation", "home"),
		healthy:   conditions["healthy"].only(t, "deleted", "home", "volume_ready", "archive_ready", "container_ready"),
		phase: phase["phase"].only(t, "deleted", "operation", "home", "error", "healthy",
			"volume_ready", "archive_ready", "container_ready"),
		workspace: operation["workspace"].only(t, "error", "healthy", "queued", "phase", "home", "seen",
			"volume_ready", "archive_ready", "archive", "container_ready", "desired"),
		deleted: operation["deleted"].only(t, "deleted", "error", "home", "seen", "volume_ready", "container_ready"),
		done:    completion["done"].only(t, "operation", "home", "volume", "container", "archive"),
		running: retry["running"].only(t, "operation", "home", "healthy", "done", "queued", "container_ready", "volume_ready",
			"cancel", "failure", "overdue", "seen", "executor", "node", "desired"),
		never: never["never"].only(t, "deleted", "error", "home", "operation", "queued", "container", "volume", "archive"),
		all:   []map[string]*table{conditions, phase, operation, completion, never},
	}
}

// facts are the reasons of the four conditions, as indexes, and the phase.
type facts struct{ volume, archive, container, healthy, phase uint8 }

// expect asks the tables for conditions and phase.
func (a *answers) expect(t testing.TB, c combination) facts {
	get := func(tb *table, column string, values ...uint8) uint8 {
		r := tb.find(values...)
		if r == nil {
			t.Fatalf("%s has no answer for %s", tb.name, c)
		}
		return words.index(t, column, r.answer[0])
	}
	f := facts{
		volume:    get(a.volume, "volume_ready", c.volume, c.home),
		archive:   get(a.archive, "archive_ready", c.archive),
		container: get(a.container, "container_ready", c.container, c.operation, c.home),
	}
	f.healthy = get(a.healthy, "healthy", c.deleted, c.home, f.volume, f.archive, f.container)
	f.phase = get(a.phase, "phase", c.deleted, c.operation, c.home, c.error, f.healthy, f.volume, f.archive, f.container)
	return f
}

func (f facts) check(t testing.TB, what string, c combination, got workspace.Conditions, phase workspace.Phase) {
	for _, w := range [...]struct {
		t      workspace.ConditionType
		reason string
	}{
		{workspace.VolumeReady, word("volume_ready", f.volume)},
		{workspace.ArchiveReady, word("archive_ready", f.archive)},
		{workspace.ContainerReady, word("container_ready", f.container)},
		{workspace.Healthy, word("healthy", f.healthy)},
	} {
		g := got.Get(w.t)
		if isTrue := w.reason == "Ready" || w.reason == "Healthy"; g.Reason != w.reason || g.True() != isTrue {
			t.Fatalf("%s: %s: %s is %s %s, want %s", c, what, w.t, g.Status, g.Reason, w.reason)
		}
	}
	if want := word("phase", f.phase); string(phase) != want {
		t.Fatalf("%s: %s: phase %s, want %s", c, what, phase, want)
	}
}

// TestEveryCombination puts every workspace that can occur before the judge
// and compares with the tables in testdata.
func TestEveryCombination(t *testing.T) {
	t.Parallel()
	a := readAnswers(t)
	t.Run("all", func(t *testing.T) {
		for op := range uint8(len(words["operation"])) {
			t.Run(word("operation", op), func(t *testing.T) {
				t.Parallel()
				columns := []string{"deleted", "error", "home", "volume", "archive", "container", "queued", "desired"}
				crossNth(columns, everyNth, func(v []uint8) {
					c := combination{operation: op, deleted: v[0], error: v[1], home: v[2], volume: v[3], archive: v[4], container: v[5], queued: v[6], desired: v[7]}
					if a.never.find(c.deleted, c.error, c.home, c.operation, c.queued, c.container, c.volume, c.archive) == nil {
						a.one(t, c)
					}
				})
			})
		}
	})
	if t.Failed() {
		return
	}
	for _, tables := range a.all {
		allUsed(t, tables)
	}
}

// one compares one look with the tables: conditions and phase, what is done,
// and what the row is afterwards.
func (a *answers) one(t testing.TB, c combination) {
	in := c.input()
	before := a.expect(t, c)
	if everyNth > 1 || c.desired == 0 && c.queued == 0 { // conditions know nothing of wishes
		conditions := lifecycle.Conditions(in)
		before.check(t, "seen", c, conditions, lifecycle.Phase(in.Row, conditions))
	}
	does, home := a.decision(t, c, before)
	r := lifecycle.Judge(in)
	want := a.outcome(in, c, before, does, home)
	want.check(t, c, r)
	a.expect(t, want.after).check(t, "after "+does, c, r.Row.Conditions, r.Row.Phase)
}

// decision asks the tables what is done, and for the home's state afterwards.
func (a *answers) decision(t testing.TB, c combination, f facts) (does, home string) {
	seen := uint8(0)
	if !strings.HasPrefix(word("volume", c.volume), "unknown:") {
		seen = 1
	}
	var r *rule
	switch {
	case word("operation", c.operation) != "NONE":
		done := a.done.find(c.operation, c.home, c.volume, c.container, c.archive)
		if done == nil {
			t.Fatalf("%s has no answer for %s", a.done.name, c)
		}
		if r = a.running.find(c.operation, c.home, f.healthy, words.index(t, "done", done.answer[0]), c.queued, f.container, f.volume, 0, 0, 0, seen, 0, 0, c.desired); r != nil {
			home = "="
			if r.answer[0] == "complete" {
				home = done.answer[1]
			}
			return r.answer[0], home
		}
	case word("deleted", c.deleted) != "no":
		r = a.deleted.find(c.deleted, c.error, c.home, seen, f.volume, f.container)
	default:
		r = a.workspace.find(c.error, f.healthy, c.queued, f.phase, c.home, seen, f.volume, f.archive, c.archive, f.container, c.desired)
	}
	if r == nil {
		t.Fatalf("nothing says what is done for %s", c)
	}
	return r.answer[0], r.answer[1]
}

// expected is what one look should come to.
type expected struct {
	does      string
	kind      lifecycle.Kind
	op        workspace.Operation
	reason    workspace.ErrorReason
	row       workspace.Workspace // as it should be, but for conditions, phase and message
	apply     bool
	lookAgain time.Time
	after     combination // the row afterwards, in words, with the same backends
}

// outcome spells a decision of the tables out.
func (a *answers) outcome(in lifecycle.Input, c combination, f facts, does, home string) expected {
	e := expected{does: does, row: in.Row, after: c}
	queued := in.Row.NextDesired != ""
	ends := func() { e.row.Operation, e.row.OpID, e.row.OpStartedAt = workspace.OpNone, "", nil }
	forget := func() { e.row.ErrorReason, e.row.ErrorMessage, e.row.ErrorCount, e.row.RetryAt = "", "", 0, nil }
	if home != "=" {
		e.row.Home.State = workspace.HomeState(home)
		if home == "absent" {
			e.row.Home = workspace.Home{State: workspace.HomeAbsent}
			if in.Row.Home.State == workspace.HomeDeleting {
				e.row.Home.Claim = in.Row.Home.Claim
			}
		}
	}
	switch does {
	case "rest":
	case "retry":
		e.lookAgain = *in.Row.RetryAt
	case "grace":
		e.lookAgain = in.Row.DeletedAt.Add(in.Policy.DeleteGrace)
	case "queue":
		e.apply = true
	case "forget":
		e.kind = lifecycle.Settle
		forget()
	case "settle":
		e.kind = lifecycle.Settle
	case "fail", "health":
		e.kind, e.op, e.reason = lifecycle.Fail, in.Row.Operation, workspace.ErrorReason(word("healthy", f.healthy))
		ends()
		e.row.ErrorReason, e.row.RetryAt = e.reason, nil
		e.row.ErrorCount++
	case "complete":
		e.kind, e.op, e.apply = lifecycle.Complete, in.Row.Operation, queued
		ends()
		forget()
		switch in.Row.Operation {
		case workspace.OpRestoring:
			e.row.Home.Marker = in.Row.ArchiveKey
		case workspace.OpStarting:
			e.row.StopReason = ""
		}
	case "cancel":
		e.kind, e.op, e.apply = lifecycle.Cancel, in.Row.Operation, queued
		ends()
		if in.Row.NextDesired == workspace.DesiredDeleted {
			forget()
		}
	case "run":
		e.kind, e.op = lifecycle.Run, in.Row.Operation
		e.lookAgain = deadlineOf(in)
	default: // an operation is claimed
		e.claims(in, f, workspace.Operation(does))
	}
	e.translate()
	return e
}

func (e *expected) claims(in lifecycle.Input, f facts, op workspace.Operation) {
	now := in.Now
	e.kind, e.op = lifecycle.Claim, op
	e.row.Operation, e.row.OpID, e.row.OpStartedAt = op, in.ClaimID, &now
	switch op {
	case workspace.OpProvisioning, workspace.OpRestoring:
		if in.Row.Home.State == workspace.HomeAbsent {
			e.row.Home.Claim = in.ClaimID
		}
		e.row.Home.FromImage = op == workspace.OpProvisioning
	case workspace.OpArchiving, workspace.OpCreateEmptyArchive:
		e.row.ArchiveOpID = in.ClaimID
	case workspace.OpStopping:
		e.row.StopReason = lifecycle.StopRequested
		if word("container_ready", f.container) == workspace.ReasonContainerExited {
			e.row.StopReason = lifecycle.StopExited
		}
	}
}

// translate puts the row afterwards into the words of the tables.
func (e *expected) translate() {
	set := func(column string, field *uint8, value string) {
		for i, v := range words[column] {
			if v == value {
				*field = uint8(i)
			}
		}
	}
	set("operation", &e.after.operation, string(e.row.Operation))
	set("home", &e.after.home, string(e.row.Home.State))
	switch {
	case e.row.ErrorReason == "":
		set("error", &e.after.error, "none")
	case e.row.ErrorReason.Final():
		set("error", &e.after.error, "final")
	}
	if e.row.Home.State == workspace.HomeAbsent && strings.HasSuffix(word("volume", e.after.volume), "seeded") {
		set("volume", &e.after.volume, "foreign")
	}
}

func deadlineOf(in lifecycle.Input) time.Time {
	bound := map[workspace.Operation]time.Duration{
		workspace.OpProvisioning: in.Policy.Starting,
		workspace.OpStarting:     in.Policy.Starting,
		workspace.OpStopping:     in.Policy.Stopping,
		workspace.OpDeleting:     in.Policy.Deleting,
	}[in.Row.Operation]
	if bound == 0 {
		bound = in.Policy.NoProgress
	}
	return in.Row.OpStartedAt.Add(bound)
}

func (e *expected) check(t testing.TB, c combination, r lifecycle.Result) {
	if r.Action.Kind != e.kind || r.Action.Op != e.op || r.Action.Reason != e.reason {
		t.Fatalf("%s: %d %q %q, want %s: %d %q %q", c, r.Action.Kind, r.Action.Op, r.Action.Reason, e.does, e.kind, e.op, e.reason)
	}
	if r.ApplyQueued != e.apply || !r.LookAgain.Equal(e.lookAgain) || r.ClearRecover || r.ClearCancel || r.ClearForceStop {
		t.Fatalf("%s: %s: queued applied %v, again at %v, want %v, %v", c, e.does, r.ApplyQueued, r.LookAgain, e.apply, e.lookAgain)
	}
	want := e.row
	want.Conditions, want.Phase = r.Row.Conditions, r.Row.Phase
	if e.kind == lifecycle.Fail {
		want.ErrorMessage = r.Row.ErrorMessage
		if r.Row.ErrorMessage == "" {
			t.Fatalf("%s: an error without a message", c)
		}
	}
	if !sameRow(&r.Row, &want) {
		t.Fatalf("%s: %s:\n got %s %+v\nwant %s %+v", c, e.does, describe(r.Row), r.Row, describe(want), want)
	}
}

// sameRow compares what the judge may change, and by identity all the rest.
func sameRow(a, b *workspace.Workspace) bool {
	same := func(x, y *time.Time) bool { return x == y || x != nil && y != nil && x.Equal(*y) }
	return a.Home.Equal(b.Home) && a.Operation == b.Operation && a.OpID == b.OpID && same(a.OpStartedAt, b.OpStartedAt) &&
		a.ArchiveOpID == b.ArchiveOpID && a.ArchiveKey == b.ArchiveKey && a.ErrorReason == b.ErrorReason &&
		a.ErrorMessage == b.ErrorMessage && a.ErrorCount == b.ErrorCount && same(a.RetryAt, b.RetryAt) &&
		a.StopReason == b.StopReason && a.DesiredState == b.DesiredState && a.NextDesired == b.NextDesired && a.DeletedAt == b.DeletedAt
}
