package lifecycle_test

import (
	"reflect"
	"testing"
	"time"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

const backupKey = "backups/b.manifest.zst"

func backup() *workspace.Archive {
	return &workspace.Archive{Key: backupKey, OpID: "b", Digest: "d", Size: 7, Entries: 3}
}

// A restore in place leads each workspace that can occur to its archive, as if that was desired. The
// backup replaces the archive only when both are present, and no volume of the home is left.
func TestRestoreArchivesFirst(t *testing.T) {
	t.Parallel()
	a := readAnswers(t)
	replaced, dropped := 0, 0
	crossNth([]string{"operation", "error", "home", "volume", "archive", "container", "earlier"}, everyNth, func(v []uint8) {
		c := combination{operation: v[0], error: v[1], home: v[2], volume: v[3], archive: v[4], container: v[5]}
		if a.never.find(c.deleted, c.error, c.home, c.operation, c.queued, c.container, c.volume, c.archive) != nil {
			return
		}
		archiving := lifecycle.Judge(c.input())
		in := c.input()
		in.Row.RestoreFrom, in.Row.DesiredState = backup(), workspace.DesiredRunning
		in.Obs.Earlier = lifecycle.Archive(v[6])
		r := lifecycle.Judge(in)
		if !r.ClearRestore {
			r.Row.RestoreFrom, r.Row.DesiredState = nil, workspace.DesiredArchived
			if !reflect.DeepEqual(r, archiving) {
				t.Fatalf("%s: %+v, to archive: %+v", c, r, archiving)
			}
			return
		}
		switch {
		case r.Action.Kind != lifecycle.Settle || r.Audit == nil || in.Row.Operation != workspace.OpNone || in.Obs.Archive != lifecycle.ArchivePresent:
			t.Fatalf("%s: ended by %+v", c, r)
		case in.Obs.Volume != nil && in.Obs.Volume.Claim == in.Row.Home.Claim && in.Row.Home.State != workspace.HomeAbsent:
			t.Fatalf("%s: the home still has a volume", c)
		case in.Obs.Earlier == lifecycle.ArchivePresent:
			replaced++
			if r.Row.ArchiveKey != backupKey || r.Row.ArchiveDigest != "d" || r.Row.ArchiveSize != 7 || r.Row.Phase != workspace.PhaseArchived || r.Audit.Action != lifecycle.AuditRestoreDone {
				t.Fatalf("%s: replaced: %s, %+v", c, describe(r.Row), r.Audit)
			}
		case in.Obs.Earlier == lifecycle.ArchiveUnknown || r.Row.ArchiveKey != in.Row.ArchiveKey || r.Audit.Action != lifecycle.AuditRestoreDropped || r.Audit.Details["error"] == "":
			t.Fatalf("%s: dropped: %s, %+v", c, describe(r.Row), r.Audit)
		default:
			dropped++
		}
	})
	if replaced == 0 || dropped == 0 {
		t.Errorf("%d replaced, %d dropped", replaced, dropped)
	}
}

// restoring is a workspace with a restore requested, judged until it rests, and what it has done.
func (g *given) restoring(t *testing.T, start bool) (ops []workspace.Operation, audits []string) {
	t.Helper()
	out, err := lifecycle.RequestRestore(g.Row, g.Now, backup(), start)
	if err != nil {
		t.Fatal(err)
	}
	g.Row = out.Workspace
	for range 20 {
		if g.Row.ArchiveKey == backupKey {
			g.Obs.Archive = lifecycle.ArchivePresent
		}
		r := g.judged()
		if r.Audit != nil {
			audits = append(audits, r.Audit.Action)
		}
		if r.ClearRestore {
			r.Row.RestoreFrom = nil
		}
		g.next(r)
		if r.Action.Kind == lifecycle.Claim {
			ops = append(ops, r.Action.Op)
			g.carriedOut()
		}
	}
	return ops, audits
}

func TestRestoreInPlace(t *testing.T) {
	t.Parallel()
	stop, pack, fill, start := workspace.OpStopping, workspace.OpArchiving, workspace.OpRestoring, workspace.OpStarting
	for _, c := range []struct {
		name    string
		given   *given
		start   bool
		earlier lifecycle.Archive
		ops     []workspace.Operation
		phase   workspace.Phase
		audit   string
	}{
		{"running", look(workspace.PhaseRunning), false, lifecycle.ArchivePresent, []workspace.Operation{stop, pack, fill, start}, workspace.PhaseRunning, lifecycle.AuditRestoreDone},
		{"stopped", look(workspace.PhaseStandby), false, lifecycle.ArchivePresent, []workspace.Operation{pack, fill}, workspace.PhaseStandby, lifecycle.AuditRestoreDone},
		{"stopped, with a start", look(workspace.PhaseStandby), true, lifecycle.ArchivePresent, []workspace.Operation{pack, fill, start}, workspace.PhaseRunning, lifecycle.AuditRestoreDone},
		{"archived", look(workspace.PhaseArchived), false, lifecycle.ArchivePresent, []workspace.Operation{fill}, workspace.PhaseStandby, lifecycle.AuditRestoreDone},
		{"never started", look(workspace.PhasePending), false, lifecycle.ArchivePresent, []workspace.Operation{workspace.OpCreateEmptyArchive, fill}, workspace.PhaseStandby, lifecycle.AuditRestoreDone},
		{"missing", look(workspace.PhaseRunning), false, lifecycle.ArchiveMissing, []workspace.Operation{stop, pack, fill, start}, workspace.PhaseRunning, lifecycle.AuditRestoreDropped},
		{"damaged", look(workspace.PhaseStandby), false, lifecycle.ArchiveCorrupted, []workspace.Operation{pack, fill}, workspace.PhaseStandby, lifecycle.AuditRestoreDropped},
	} {
		c.given.Obs.Earlier = c.earlier
		ops, audits := c.given.restoring(t, c.start)
		if !reflect.DeepEqual(ops, c.ops) || c.given.Row.Phase != c.phase || !reflect.DeepEqual(audits, []string{c.audit}) {
			t.Errorf("%s: %v, %v; %s", c.name, ops, audits, describe(c.given.Row))
		}
		if restored := c.given.Row.ArchiveKey == backupKey; restored != (c.earlier == lifecycle.ArchivePresent) || restored && c.given.Row.Home.Marker != backupKey {
			t.Errorf("%s: the home is of %q", c.name, c.given.Row.ArchiveKey)
		}
	}
}

// A home that cannot be archived stays, and the restore is given up.
func TestRestoreOfUnrestorableHome(t *testing.T) {
	t.Parallel()
	g := look(workspace.PhaseStandby)
	g.Row.RestoreFrom = backup()
	g.Row.ErrorReason, g.Row.ErrorMessage = workspace.ErrUnrestorable, "two names for one file"
	r := g.judged()
	if !r.ClearRestore || r.Audit == nil || r.Audit.Details["error"] != "two names for one file" || r.Row.Home.State != workspace.HomeLive {
		t.Errorf("%+v", r)
	}
}

// Every request for a state drops a restore that has not replaced the home. A visit does not: the
// workspace starts afterwards.
func TestRestoreIsDropped(t *testing.T) {
	t.Parallel()
	now := epoch.Add(time.Hour)
	want := func(d workspace.DesiredState) func(workspace.Workspace) (lifecycle.Intent, error) {
		return func(w workspace.Workspace) (lifecycle.Intent, error) { return lifecycle.Desire(w, now, d, true) }
	}
	at := func(f func(workspace.Workspace, time.Time) (lifecycle.Intent, error)) func(workspace.Workspace) (lifecycle.Intent, error) {
		return func(w workspace.Workspace) (lifecycle.Intent, error) { return f(w, now) }
	}
	type request struct {
		name string
		f    func(workspace.Workspace) (lifecycle.Intent, error)
	}
	requests := []request{
		{"run", want(workspace.DesiredRunning)}, {"stand by", want(workspace.DesiredStandby)}, {"archive", want(workspace.DesiredArchived)},
		{"stop", at(lifecycle.Stop)}, {"force stop", at(lifecycle.RequestForceStop)}, {"restart", at(lifecycle.Restart)}, {"cancel", at(lifecycle.RequestCancel)},
		{"delete", func(w workspace.Workspace) (lifecycle.Intent, error) { return lifecycle.Delete(w, now, true) }},
	}
	for _, phase := range []workspace.Phase{workspace.PhaseRunning, workspace.PhaseStandby, workspace.PhaseArchived} {
		for _, op := range []workspace.Operation{workspace.OpNone, workspace.OpArchiving} {
			g := look(phase)
			if op != workspace.OpNone && phase == workspace.PhaseStandby {
				g.during(op)
			}
			asked, err := lifecycle.RequestRestore(g.Row, now, backup(), false)
			if err != nil || asked.Workspace.RestoreFrom == nil || asked.Workspace.PendingRequest() != "restore" {
				t.Fatalf("%s: %+v, %v", phase, asked, err)
			}
			for _, r := range requests {
				out, err := r.f(asked.Workspace)
				if code := workspace.CodeOf(err); code == workspace.CodeNotRunning || code == workspace.CodeNotCancellable {
					continue
				}
				if err != nil || !out.Changed || out.Workspace.RestoreFrom != nil {
					t.Errorf("%s, %s, %s: %+v, %v", phase, op, r.name, out, err)
				}
			}
			visited, err := lifecycle.Wake(asked.Workspace, now)
			if w := visited.Workspace; err != nil || w.RestoreFrom == nil || w.DesiredState != workspace.DesiredRunning || w.NextDesired != "" {
				t.Errorf("%s: a visit: %+v, %v", phase, visited, err)
			}
			if d := lifecycle.TimeoutTo(asked.Workspace); d != "" {
				t.Errorf("%s: times out to %s", phase, d)
			}
		}
	}
	g := look(workspace.PhaseStandby)
	g.Row.Phase, g.Row.ErrorReason, g.Row.RestoreFrom = workspace.PhaseError, workspace.ErrTimeout, backup()
	if _, err := lifecycle.RequestRestore(g.Row, now, backup(), false); workspace.CodeOf(err) != workspace.CodeRecoveryRequired {
		t.Errorf("in ERROR: %v", err)
	}
	if out, err := lifecycle.RequestRecover(g.Row, now, workspace.RecoverAfresh); err != nil || out.Workspace.RestoreFrom != nil {
		t.Errorf("recovered: %+v, %v", out, err)
	}
}
