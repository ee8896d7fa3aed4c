package lifecycle_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// TestForcedStopTable: a forced stop, in whatever state.
func TestForcedStopTable(t *testing.T) {
	t.Parallel()
	a := readAnswers(t)
	tb := readTables(t, "requests.txt", words)["force stop"].only(t, "operation", "container", "late")
	crossNth([]string{"operation", "container", "late", "home", "volume", "error", "desired"}, everyNth, func(v []uint8) {
		c := combination{operation: v[0], container: v[1], home: v[3], volume: v[4], error: v[5], desired: v[6]}
		if a.never.find(c.deleted, c.error, c.home, c.operation, c.queued, c.container, c.volume, c.archive) != nil {
			return
		}
		in := c.input()
		asked := in.Now.Add(-time.Second)
		if yes(v[2]) {
			asked = in.Now.Add(-in.Policy.Deleting)
		}
		without := lifecycle.Judge(in)
		in.Row.ForceStopRequestedAt = &asked
		r := lifecycle.Judge(in)
		rule := tb.find(v[0], v[1], v[2])
		if rule == nil {
			t.Fatalf("nothing is said of %s", c)
		}
		if r.ClearForceStop != (rule.answer[1] == "yes") {
			t.Fatalf("%s: answered %v", c, r.ClearForceStop)
		}
		switch rule.answer[0] {
		case "ordinary":
			r.Row.ForceStopRequestedAt, r.ClearForceStop = nil, false
			if !reflect.DeepEqual(r, without) {
				t.Fatalf("%s: %+v, want %+v", c, r, without)
			}
		case "rest":
			wantAction(t, r, lifecycle.None, "")
		case "cancel":
			wantAction(t, r, lifecycle.Cancel, in.Row.Operation)
		case "remove":
			wantAction(t, r, lifecycle.RemoveContainer, "")
			if r.Row.StopReason != lifecycle.StopForced || !r.LookAgain.Equal(asked.Add(in.Policy.Deleting)) {
				t.Fatalf("%s: reason %q, again at %v", c, r.Row.StopReason, r.LookAgain)
			}
		}
	})
	allUsed(t, map[string]*table{"": tb})
}

// TestRecoverTable: a recovery, from every error there is.
func TestRecoverTable(t *testing.T) {
	t.Parallel()
	a := readAnswers(t)
	tb := readTables(t, "requests.txt", words)["recover"].only(t,
		"deleted", "action", "fresh", "healthy", "recorded", "home", "volume", "archive", "container", "late", "earlier")
	crossNth([]string{"deleted", "action", "recorded", "home", "container", "volume", "archive", "late", "earlier"}, everyNth, func(v []uint8) {
		if withArchive := word("action", v[1]) == workspace.RecoverArchive; !withArchive && v[8] != 0 {
			return // it is looked at for nothing else
		}
		c := combination{deleted: v[0], home: v[3], container: v[4], volume: v[5], archive: v[6], desired: 1}
		if a.never.find(c.deleted, c.error, c.home, c.operation, c.queued, c.container, c.volume, c.archive) != nil {
			return
		}
		f := a.expect(t, c)
		in := c.input()
		in.Row.ErrorReason, in.Row.ErrorMessage, in.Row.ErrorCount = workspace.ErrorReason(word("recorded", v[2])), "earlier", 1
		asked := in.Now.Add(-time.Second)
		if yes(v[7]) {
			asked = in.Now.Add(-in.Policy.Deleting)
		}
		in.Row.RecoverRequestedAt, in.Row.RecoverAction = &asked, word("action", v[1])
		if in.Row.RecoverAction == workspace.RecoverArchive {
			in.Row.RecoverFrom = &workspace.Archive{Key: earlierKey, Digest: "d", Size: 7, Entries: 3}
			in.Obs.Earlier = lifecycle.Archive(v[8])
		}
		fresh := uint8(1)
		unseen := func(column string, i uint8) bool { return strings.HasPrefix(word(column, i), "unknown:") }
		if unseen("container", c.container) || unseen("volume", c.volume) ||
			unseen("archive", c.archive) && in.Row.Home.State != workspace.HomeLive ||
			lifecycle.AsksEarlier(in.Row) && in.Obs.Earlier == lifecycle.ArchiveUnknown {
			fresh = 0
		}
		rule := tb.find(v[0], v[1], fresh, f.healthy, v[2], v[3], v[5], v[6], v[4], v[7], v[8])
		if rule == nil {
			t.Fatalf("nothing is said of %s", c)
		}
		checkRecover(t, c, in, rule.answer, lifecycle.Judge(in))
	})
	allUsed(t, map[string]*table{"": tb})
}

func checkRecover(t *testing.T, c combination, in lifecycle.Input, answer []string, r lifecycle.Result) {
	kind := map[string]lifecycle.Kind{"rest": lifecycle.None, "remove": lifecycle.RemoveContainer, "recover": lifecycle.Recover}[answer[0]]
	home := in.Row.Home
	switch answer[2] {
	case "=":
	case "absent":
		home = workspace.Home{State: workspace.HomeAbsent}
		if in.Row.Home.State == workspace.HomeDeleting {
			home.Claim = in.Row.Home.Claim
		}
	default:
		if home.State = workspace.HomeState(answer[2]); in.Row.Home.State == workspace.HomeFilling {
			home.Marker = in.Row.ArchiveKey
		}
	}
	key := in.Row.ArchiveKey
	switch answer[3] {
	case "dropped":
		key = ""
	case "earlier":
		key = earlierKey
		if r.Row.ArchiveDigest != "d" || r.Row.ArchiveSize != 7 {
			t.Fatalf("%s: what is known of the archive is not taken over: %+v", c, r.Row)
		}
	}
	if r.Action.Kind != kind || r.ClearRecover != (answer[1] == "yes") || !r.Row.Home.Equal(home) || r.Row.ArchiveKey != key {
		t.Fatalf("%s, %s of %s: %d answered %v %s, want %v", c, in.Row.RecoverAction, in.Row.ErrorReason, r.Action.Kind, r.ClearRecover, describe(r.Row), answer)
	}
	was := in.Row
	is := [4]any{r.Row.ErrorReason, r.Row.ErrorCount, r.Row.ErrorMessage == "", r.Row.RetryAt == nil}
	want := map[string][4]any{
		"kept":  {was.ErrorReason, was.ErrorCount, was.ErrorMessage == "", true},
		"none":  {workspace.ErrorReason(""), 0, true, true},
		"still": {workspace.ErrorReason(lifecycle.Conditions(in).Get(workspace.Healthy).Reason), 1, false, true},
	}[answer[4]]
	if is != want {
		t.Fatalf("%s, %s of %s: error %v, want %v", c, was.RecoverAction, was.ErrorReason, is, want)
	}
	// The workspace does not count as healthy in between: the next tick has the same result.
	if kind == lifecycle.Recover && (answer[4] == "none") != r.Row.Conditions.Is(workspace.Healthy) {
		t.Fatalf("%s, %s: error %v, healthy %v", c, was.RecoverAction, is, r.Row.Conditions.Get(workspace.Healthy))
	}
}
