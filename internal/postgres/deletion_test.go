package postgres_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// For every state of a home: a deletion can be undone exactly as long as one complete copy
// exists and its removal is not claimed, and the list of deleted workspaces has exactly those.
func TestRestorableMatchesUndelete(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	homes := map[string]string{"removed": `{"state": "absent", "claim": "c"}`}
	for _, s := range workspace.HomeStates() {
		homes[string(s)] = `{"state": "` + string(s) + `", "claim": "c"}`
	}
	homes["absent"] = `{"state": "absent"}`
	for home, ctx := range homes {
		for _, volume := range []string{noContainer, nothing} {
			for _, kept := range []string{"no archive", "archived", "being collected"} {
				for _, ago := range []time.Duration{0, 100 * time.Hour} {
					who := e.user(home + kept + ago.String() + volume[len(volume)-9:])
					w := e.workspace(who, state{"phase": "DELETING", "conditions": volume, "home_ctx": ctx, "deleted_at": time.Now().Add(-ago), "desired_state": "RUNNING"})
					if kept != "no archive" {
						key, _ := e.archive(w.ID, state{"verified_at": time.Now()})
						e.set(w.ID, state{"archive_key": key})
						if kept == "being collected" {
							e.exec(`UPDATE archives SET deleting_at = now() WHERE key = $1`, key)
						}
					}
					inVolume := volume == noContainer && (home == "live" || home == "archived")
					want := (inVolume || kept == "archived") && home != "deleting" && home != "removed"
					if kept == "being collected" && inVolume {
						continue // an archive is collected only once the home is absent
					}
					list, _, err := e.ListWorkspaces(t.Context(), who, postgres.Filter{Deleted: true})
					if err != nil || (len(list) == 1) != want {
						t.Errorf("%s, %s, deleted %s ago, %s: listed %d, %v", home, kept, ago, volume, len(list), err)
					}
					got, err := e.UndeleteWorkspace(t.Context(), who, w.ID)
					switch {
					case !want && workspace.CodeOf(err) != workspace.CodeGone, want && err != nil:
						t.Errorf("%s, %s, deleted %s ago, %s: %v", home, kept, ago, volume, err)
					case want && (got.DesiredState == workspace.DesiredStandby) != (inVolume && home == "live"):
						t.Errorf("%s, %s, deleted %s ago, %s: desired %s", home, kept, ago, volume, got.DesiredState)
					}
				}
			}
		}
	}
}

// A deletion that failed is listed for its owner and for administrators, by the rule
// of lifecycle, and counted like the others in the list.
func TestFailedDeletionsAreListed(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ann := e.user("ann")
	var listed, failing []string
	for _, phase := range []workspace.Phase{workspace.PhaseDeleting, workspace.PhaseDeleted} {
		for _, home := range []workspace.HomeState{workspace.HomeLive, workspace.HomeAbsent, workspace.HomeDeleting} {
			for _, reason := range append(workspace.ErrorReasons(), "") {
				s := state{"phase": string(phase), "deleted_at": time.Now(), "conditions": noContainer, "home_ctx": `{"state": "` + string(home) + `"}`, "error_message": "in use"}
				if reason != "" {
					s["error_reason"] = string(reason)
				}
				w := e.workspace(ann, s)
				w.Phase, w.Home.State, w.ErrorReason, w.DeletedAt = phase, home, reason, new(time.Now())
				fails := lifecycle.DeletionFailing(w)
				if want := phase == workspace.PhaseDeleting && (reason.Final() || home == workspace.HomeDeleting && reason == workspace.ErrActionFailed); fails != want {
					t.Errorf("%s, home %s, error %q: failing %v", phase, home, reason, fails)
				}
				if fails {
					failing = append(failing, w.Name)
				}
				if fails || lifecycle.Restorable(w, false) {
					listed = append(listed, w.Name)
				}
			}
		}
	}
	alive := e.workspace(ann, state{"phase": "ERROR", "error_reason": "Timeout"})
	slices.Sort(listed)
	slices.Sort(failing)
	got := names(must3(e.ListWorkspaces(t.Context(), ann, postgres.Filter{Deleted: true, Limit: 200}))(t))
	slices.Sort(got)
	if d := cmp.Diff(listed, got); d != "" || len(listed) == 0 || slices.Contains(got, alive.Name) {
		t.Errorf("the list of deleted workspaces: %s", d)
	}
	o := must(e.Overview(t.Context(), workspace.System))(t)
	if n := o.Phases["DELETING"]; n != len(listed) {
		t.Errorf("%d deleted workspaces are counted, %d are in the list", n, len(listed))
	}
	got = nil
	for _, f := range o.FailedDeletions {
		got = append(got, f.Name)
		if f.Owner != "ann" || f.Reason == "" || f.Message != "in use" || f.DeletedAt.IsZero() {
			t.Errorf("%+v", f)
		}
	}
	slices.Sort(got)
	if d := cmp.Diff(failing, got); d != "" {
		t.Errorf("the failed deletions: %s", d)
	}
}

// A lost home is in exactly one of the administrators' lists.
func TestLostVolumesAreListed(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ann := e.user("ann")
	conditions := func(volume, archive, health string) string {
		return `{"storage.volume_ready": {"status": "False", "reason": "` + volume + `"}, "storage.archive_ready": {"status": "` + map[bool]string{true: "True", false: "False"}[archive == "ArchiveReady"] + `", "reason": "` + archive + `", "last_transition_time": "2026-01-02T03:04:05Z"},
			"policy.healthy": {"status": "False", "reason": "` + health + `", "last_transition_time": "2026-01-02T03:04:05Z"}}`
	}
	var want []string
	for _, c := range []struct {
		home, key, reason, volume, archive string
		lost                               bool
	}{
		{"live", "", "DataLost", "NoVolume", "NoArchive", true},
		{"live", "k", "DataLost", "ForeignVolume", "NotObserved", true},
		{"live", "k2", "", "Removing", "NotObserved", true}, // observed and not recorded yet
		{"live", "", "Timeout", "Ready", "NoArchive", false},
		{"absent", "k3", "DataLost", "NoVolume", "ArchiveMissing", false},
		{"filling", "k4", "ArchiveCorrupted", "Filling", "ArchiveReady", false}, // a restore found it damaged
	} {
		s := state{"phase": "ERROR", "home_ctx": `{"state": "` + c.home + `"}`, "conditions": conditions(c.volume, c.archive, "DataLost")}
		if c.reason != "" {
			s["error_reason"] = c.reason
		}
		if c.key != "" {
			s["archive_key"] = c.key
		}
		w := e.workspace(ann, s)
		if c.lost {
			want = append(want, w.Name+" "+c.volume)
		}
	}
	e.workspace(ann, state{"phase": "DELETING", "deleted_at": time.Now(), "home_ctx": `{"state": "live"}`, "conditions": conditions("NoVolume", "NoArchive", "DataLost"), "error_reason": "DataLost"})
	o := must(e.Overview(t.Context(), workspace.System))(t)
	var got []string
	for _, l := range o.LostVolumes {
		got = append(got, l.Name+" "+l.Reason)
		if l.Owner != "ann" || !l.Since.Equal(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)) {
			t.Errorf("%+v", l)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("the lost volumes: %s", d)
	}
	got = nil
	for _, l := range o.LostArchives {
		got = append(got, l.ArchiveKey+" "+l.Reason)
	}
	slices.Sort(got)
	if d := cmp.Diff([]string{"k3 ArchiveMissing", "k4 ArchiveCorrupted"}, got); d != "" {
		t.Errorf("the lost archives: %s", d)
	}
}

// After a restart of all waits, a deletion can be undone for its whole grace, which its owner
// sees.
func TestGraceBeginsAgainWhenWaitsRestart(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	who := e.user("ann")
	deleted := e.workspace(who, state{"phase": "DELETING", "deleted_at": time.Now().Add(-time.Hour)})
	kept := e.workspace(who, state{"phase": "STANDBY"})
	purge := func(id workspace.ID) (time.Time, bool) {
		w, err := e.Workspace(t.Context(), who, id)
		if err != nil {
			t.Fatal(err)
		}
		return lifecycle.PurgeAt(w, 2*time.Hour)
	}
	before, _ := purge(deleted.ID)
	e.exec(`UPDATE gc_state SET restored_at = clock_timestamp()`)
	after, _ := purge(deleted.ID)
	if ahead := after.Sub(before); ahead < time.Hour || ahead > 2*time.Hour {
		t.Errorf("purged %s later, want about an hour", ahead)
	}
	if _, ok := purge(kept.ID); ok {
		t.Error("a workspace that is not deleted has a purge time")
	}
}
