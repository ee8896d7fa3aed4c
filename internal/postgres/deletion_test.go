package postgres_test

import (
	"testing"
	"time"

	"codehub/internal/lifecycle"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
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
