package lifecycle_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// combination is one workspace in one look, in the words of the tables: an
// index into the domain for each column.
type combination struct {
	deleted, error, home, operation, desired, queued, container, volume, archive uint8
}

var words = domains{
	"deleted":   {"no", "grace", "past"},
	"error":     {"none", "waiting", "due", "final", "lost"},
	"home":      {"absent", "filling", "live", "archived", "discarding", "deleting"},
	"operation": {"NONE", "PROVISIONING", "CREATE_EMPTY_ARCHIVE", "RESTORING", "STARTING", "STOPPING", "ARCHIVING", "DELETING"},
	"desired":   {"ARCHIVED", "STANDBY", "RUNNING"},
	"queued":    {"none", "DELETED", "ARCHIVED", "STANDBY", "RUNNING"},
	"container": {"none", "created", "running", "running:Ready", "answers", "exited",
		"unknown:NotObserved", "unknown:NoContainer", "unknown:Exited", "unknown:Starting", "unknown:Ready"},
	"volume": {"none", "unseeded", "seeded", "restored", "earlier", "foreign",
		"unknown:NotObserved", "unknown:NoVolume", "unknown:Ready", "unknown:Filling", "unknown:Discarding", "unknown:Removing",
		"unknown:ForeignVolume", "unknown:Unowned"},
	"archive": {"nokey", "present", "missing", "corrupted",
		"unknown:NotObserved", "unknown:Ready", "unknown:ArchiveMissing", "unknown:ArchiveCorrupted", "unknown:another"},

	"volume_ready":    {"NotObserved", "NoVolume", "Ready", "Filling", "Discarding", "Removing", "ForeignVolume", "Unowned"},
	"archive_ready":   {"NotObserved", "NoArchive", "Ready", "ArchiveMissing", "ArchiveCorrupted"},
	"container_ready": {"NotObserved", "NoContainer", "Exited", "Starting", "Ready"},
	"healthy":         {"Healthy", "ContainerWithoutVolume", "DataLost", "ArchiveCorrupted"},
	"phase":           {"DELETED", "DELETING", "ERROR", "RUNNING", "STANDBY", "ARCHIVED", "PENDING"},

	"seen":     {"no", "yes"},
	"done":     {"no", "yes"},
	"cancel":   {"no", "yes"},
	"overdue":  {"no", "yes"},
	"executor": {"no", "yes"},
	"node":     {"responds", "lost"},
	"late":     {"no", "yes"},
	"recover":  {"no", "yes"},
	"fresh":    {"no", "yes"},
	"recorded": {"Timeout", "DataLost", "ArchiveCorrupted"},
	"action":   {workspace.RecoverAfresh, workspace.RecoverEmpty, workspace.RecoverArchive},
	"earlier":  {"unknown", "present", "missing", "corrupted"},
	"failure":  {"none", "Outage", "ActionFailed", "ImagePullFailed", "ArchiveCorrupted", "Passing", "InUse"},
	"reason":   {"Timeout", "RetryExceeded", "ActionFailed", "DataLost", "ImagePullFailed", "ImagePullTooSlow", "ImageNotAllowed", "ContainerWithoutVolume", "ArchiveCorrupted", "Unrestorable"},
	"attempts": {"0", "1", "2"},
	"attempt":  {"1", "2"},
	"base":     {"2", "50"},
	"jitter":   {"least", "most"},
	"up":       {"before", "bucket", "after"},
	"work":     {"none", "pulling", "pulled", "moving"},
}

func word(column string, i uint8) string { return words[column][i] }

func (c combination) String() string {
	return fmt.Sprintf("deleted %s, error %s, home %s, operation %s, desired %s, queued %s, container %s, volume %s, archive %s",
		word("deleted", c.deleted), word("error", c.error), word("home", c.home), word("operation", c.operation), word("desired", c.desired),
		word("queued", c.queued), word("container", c.container), word("volume", c.volume), word("archive", c.archive))
}

var (
	tableNow   = epoch.Add(24 * time.Hour)
	retryAhead = tableNow.Add(20 * time.Second)
	retryPast  = tableNow.Add(-20 * time.Second)
	inGrace    = tableNow.Add(-time.Hour)
	pastGrace  = tableNow.Add(-3 * time.Hour)
	opStarted  = tableNow.Add(-10 * time.Second)
)

const (
	tableKey   = "archives/key"
	earlierKey = "archives/earlier"
	tableClaim = "home-claim"
)

// input makes a look at such a workspace.
func (c combination) input() lifecycle.Input {
	in := lifecycle.Input{
		Now: tableNow, UpSince: epoch, ClaimID: "new-claim", Policy: lifecycle.DefaultPolicy(),
		Row: workspace.Workspace{
			ID: "019a0000-0000-7000-8000-000000000001", Conditions: workspace.Conditions{},
			Home:         workspace.Home{State: workspace.HomeState(word("home", c.home))},
			Operation:    workspace.Operation(word("operation", c.operation)),
			DesiredState: workspace.DesiredState(word("desired", c.desired)),
		},
	}
	r := &in.Row
	if r.Home.State != workspace.HomeAbsent {
		r.Home.Claim = tableClaim
	}
	if r.Operation != workspace.OpNone {
		r.OpID, r.OpStartedAt = "claim", &opStarted
	}
	if q := word("queued", c.queued); q != "none" {
		r.NextDesired = workspace.DesiredState(q)
	}
	switch word("deleted", c.deleted) {
	case "grace":
		r.DeletedAt = &inGrace
	case "past":
		r.DeletedAt = &pastGrace
	}
	c.setError(r)
	c.setContainer(&in)
	c.setVolume(&in)
	c.setArchive(&in)
	return in
}

func (c combination) setError(r *workspace.Workspace) {
	reason := map[string]workspace.ErrorReason{
		"waiting": workspace.ErrActionFailed, "due": workspace.ErrActionFailed, "final": workspace.ErrTimeout,
		"lost": workspace.ErrDataLost,
	}[word("error", c.error)]
	if reason == "" {
		return
	}
	r.ErrorReason, r.ErrorMessage, r.ErrorCount = reason, "earlier", 1
	switch word("error", c.error) {
	case "waiting":
		r.RetryAt = &retryAhead
	case "due":
		r.RetryAt = &retryPast
	}
}

func before(r *workspace.Workspace, t workspace.ConditionType, reason, message string) {
	if reason == workspace.ReasonNotObserved {
		return
	}
	status := "False"
	if reason == workspace.ReasonVolumeReady {
		status = "True"
	}
	r.Conditions[t] = workspace.Condition{Status: status, Reason: reason, Message: message, LastTransitionTime: epoch}
}

func (c combination) setContainer(in *lifecycle.Input) {
	fact := word("container", c.container)
	if was, ok := strings.CutPrefix(fact, "unknown:"); ok {
		before(&in.Row, workspace.ContainerReady, was, "")
		return
	}
	in.Obs.ContainerKnown = true
	switch fact {
	case "created":
		in.Obs.Container = &lifecycle.Container{ID: "c", State: lifecycle.Created}
	case "exited":
		in.Obs.Container = &lifecycle.Container{ID: "c", State: lifecycle.Exited}
	case "running", "answers":
		in.Obs.Container = &lifecycle.Container{ID: "c", State: lifecycle.Running, Answers: fact == "answers"}
	case "running:Ready":
		before(&in.Row, workspace.ContainerReady, workspace.ReasonContainerReady, "")
		in.Obs.Container = &lifecycle.Container{ID: "c", State: lifecycle.Running}
	}
}

func (c combination) setVolume(in *lifecycle.Input) {
	fact := word("volume", c.volume)
	if was, ok := strings.CutPrefix(fact, "unknown:"); ok {
		before(&in.Row, workspace.VolumeReady, was, "")
		return
	}
	in.Obs.VolumeKnown = true
	switch fact {
	case "foreign":
		in.Obs.Volume = &lifecycle.Volume{Claim: "another", Seeded: true, Marker: tableKey}
	case "unseeded", "seeded", "restored", "earlier":
		in.Obs.Volume = &lifecycle.Volume{Claim: tableClaim, Seeded: fact == "seeded"}
		in.Obs.Volume.Marker = map[string]string{"restored": tableKey, "earlier": earlierKey}[fact]
	}
}

func (c combination) setArchive(in *lifecycle.Input) {
	fact := word("archive", c.archive)
	if fact == "nokey" {
		return
	}
	in.Row.ArchiveKey = tableKey
	switch was, unknown := strings.CutPrefix(fact, "unknown:"); {
	case !unknown:
		in.Obs.Archive = map[string]lifecycle.Archive{
			"present": lifecycle.ArchivePresent, "missing": lifecycle.ArchiveMissing, "corrupted": lifecycle.ArchiveCorrupted,
		}[fact]
	case was == "another":
		before(&in.Row, workspace.ArchiveReady, workspace.ReasonArchiveMissing, "archives/another")
	default:
		before(&in.Row, workspace.ArchiveReady, was, tableKey)
	}
}

// TestTablesKnowEveryWord: the words of the tables are those of the
// domain: a new phase or operation has to be given its answers.
func TestTablesKnowEveryWord(t *testing.T) {
	t.Parallel()
	equal := func(column string, want []string) {
		t.Helper()
		if got := words[column]; strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("%s: %v, want %v", column, got, want)
		}
	}
	equal("phase", spelled(workspace.Phases()))
	equal("operation", spelled(workspace.Operations()))
	equal("home", spelled(workspace.HomeStates()))
	equal("reason", spelled(workspace.ErrorReasons()))
}

func spelled[S ~string](list []S) []string {
	var out []string
	for _, s := range list {
		out = append(out, string(s))
	}
	return out
}
