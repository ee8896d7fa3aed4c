package lifecycle_test

import (
	"testing"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// TestAsksBucket: whose archive is asked for.
func TestAsksBucket(t *testing.T) {
	t.Parallel()
	tb := readTables(t, "bucket.txt", words)["asks"].only(t, "deleted", "archive", "operation", "home", "desired", "recover", "volume_ready")
	cross(tb.columns, func(v []uint8) {
		c := combination{deleted: v[0], archive: v[1], operation: v[2], home: v[3], desired: v[4]}
		in := c.input()
		// What was seen before is what the row says; a fact of this look is not there yet.
		before(&in.Row, workspace.ArchiveReady, map[string]string{
			"present": workspace.ReasonArchiveReady, "missing": workspace.ReasonArchiveMissing, "corrupted": workspace.ReasonArchiveCorrupted,
		}[word("archive", v[1])], tableKey)
		if word("archive", v[1])[:3] == "unk" || word("archive", v[1]) == "nokey" {
			in = c.input()
		}
		before(&in.Row, workspace.VolumeReady, word("volume_ready", v[6]), "")
		if yes(v[5]) {
			in.Row.RecoverRequestedAt = &retryPast
		}
		rule := tb.find(v...)
		if rule == nil {
			t.Fatalf("nothing is said of %s", c)
		}
		if got := lifecycle.AsksBucket(in.Row); got != (rule.answer[0] == "yes") {
			t.Errorf("%s, recover %v: asks %v", c, yes(v[5]), got)
		}
	})
	allUsed(t, map[string]*table{"": tb})
}

// TestAsksEarlier: an archive to go on with is looked at for a recovery alone.
func TestAsksEarlier(t *testing.T) {
	t.Parallel()
	g := look(workspace.PhaseArchived).recovers(workspace.RecoverArchive)
	if lifecycle.AsksEarlier(g.Row) {
		t.Error("asked for an archive that nothing names")
	}
	g.Row.RecoverFrom = &workspace.Archive{Key: earlierKey}
	if !lifecycle.AsksEarlier(g.Row) {
		t.Error("not asked for what the recovery rests on")
	}
	g.Row.RecoverAction = workspace.RecoverEmpty
	if lifecycle.AsksEarlier(g.Row) {
		t.Error("asked for a recovery that needs none")
	}
	g.Row.RecoverAction, g.Row.RecoverRequestedAt = workspace.RecoverArchive, nil
	if lifecycle.AsksEarlier(g.Row) {
		t.Error("asked without a request")
	}
}
