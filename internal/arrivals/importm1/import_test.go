package importm1

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"codehub/internal/arrivals"
	"codehub/internal/testing/archivetest"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

// A first version with workspaces in every status is imported, and imported again.
func TestImport(t *testing.T) {
	t.Parallel()
	w := peopledWorld(t)
	w.allHomes()
	corpus := w.home(w.id("wR0"), func(dir string) {
		ok(t, os.RemoveAll(dir))
		ok(t, os.Mkdir(dir, 0o755))
		archivetest.Corpus(t, dir)
	})
	w.run(w.id("wR0"), true)
	w.run(w.id("wP0"), true)
	w.run(w.id("wT0"), false)
	w.run(w.id("wX0"), false)
	homes := archivetest.WithoutAtimes(archivetest.Snapshot(t, w.homes))
	rows := w.dump()

	report := w.bring()
	if report.Left != 0 {
		t.Errorf("left: %+v", report)
	}
	equal(t, "results", map[string]string{
		w.id("wC0"): arrivals.Added, w.id("wP0"): arrivals.Added, w.id("wR0"): arrivals.Added, w.id("wG0"): arrivals.Added, w.id("wT0"): arrivals.Added,
		w.id("wD0"): arrivals.Added, w.id("wE0"): arrivals.Added, w.id("wX0"): arrivals.Deleted, w.id("wT1"): arrivals.Added,
	}, results(report))
	names := map[string]string{}
	desired := map[string]workspace.DesiredState{}
	kim, lee := report.user(t, "kim").ID, report.user(t, "lee").ID
	for _, r := range report.Workspaces {
		if r.Result != arrivals.Added {
			continue
		}
		ws := w.row(r.ID)
		names[r.OldID], desired[r.OldID] = ws.Name, ws.DesiredState
		wantOwner := kim
		if r.OldID == w.id("wT1") {
			wantOwner = lee
		}
		if ws.OwnerID != wantOwner || ws.Home.State != workspace.HomeAbsent || ws.Phase != workspace.PhasePending || ws.Operation != workspace.OpNone ||
			ws.StorageBackend != workspace.StorageDockerVolume ||
			ws.ImageRef != "cagojeiger/code-server:4.107.0" {
			t.Errorf("%s: %+v", r.OldID, ws)
		}
		if r.OldID == w.id("wC0") {
			if ws.ArchiveKey != "" || r.Home != nil {
				t.Errorf("a workspace without a home has %q, %+v", ws.ArchiveKey, r.Home)
			}
			continue
		}
		w.holds(ws, homeOf(w, r.OldID))
		if n := fixture.Query[int](w, `SELECT count(*) FROM archives WHERE key = $1 AND workspace_id = $2 AND digest = $3 AND verified_at IS NOT NULL AND origin = 'made' AND created_at > now() - interval '1 hour'`,
			ws.ArchiveKey, string(ws.ID), ws.ArchiveDigest); n != 1 {
			t.Errorf("%s: %d generations", r.OldID, n)
		}
	}
	equal(t, "names", map[string]string{
		w.id("wC0"): "never started", w.id("wP0"): "starting", w.id("wR0"): "project", w.id("wG0"): "stopping",
		w.id("wT0"): "project (2)", w.id("wD0"): "half deleted", w.id("wE0"): "failed", w.id("wT1"): "project",
	}, names)
	const running, standby = workspace.DesiredRunning, workspace.DesiredStandby
	equal(t, "desired states", map[string]workspace.DesiredState{
		w.id("wC0"): standby, w.id("wP0"): running, w.id("wR0"): running, w.id("wG0"): standby,
		w.id("wT0"): standby, w.id("wD0"): standby, w.id("wE0"): standby, w.id("wT1"): standby,
	}, desired)

	project := w.row(report.of(t, w.id("wR0")).ID)
	if project.Description != "실행 중" || project.Memo != "several\nlines" || !project.CreatedAt.Equal(time.Date(2026, 1, 3, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("it was imported as %+v", project)
	}
	if skipped := report.of(t, w.id("wR0")).Home.Skipped; skipped != archivetest.Skipped {
		t.Errorf("%d entries skipped, want %d", skipped, archivetest.Skipped)
	}
	w.holds(project, corpus)
	meta, err := w.bucket.Meta(t.Context(), project.ArchiveKey)
	ok(t, err)
	if meta.Owner != "kim" || meta.WorkspaceName != "project" || meta.WorkspaceID != string(project.ID) {
		t.Errorf("the .meta is %+v", meta)
	}

	equal(t, "old containers", map[string]string{}, w.containers())
	for short, did := range map[string]string{"wR0": removed, "wT0": removed, "wX0": removed, "wG0": ""} {
		if got := report.of(t, w.id(short)).Source; got != did {
			t.Errorf("the old container of %s: %q, want %q", short, got, did)
		}
	}
	moved, err := w.DB.Moved(t.Context())
	ok(t, err)
	if len(moved) != 8 || moved[w.id("wR0")] != project.ID {
		t.Errorf("moved: %v", moved)
	}
	w.checkUsers(report)

	// The first version's data is unchanged.
	if d := archivetest.Diff(homes, archivetest.WithoutAtimes(archivetest.Snapshot(t, w.homes))); d != "" {
		t.Errorf("the old homes have changed:\n%s", d)
	}
	if got := w.dump(); got != rows {
		t.Errorf("the old database has changed from\n%s\nto\n%s", rows, got)
	}
	w.checkSecondRun(report)
}

func homeOf(w *world, id string) string {
	return filepath.Join(w.homes, query[string](w, `SELECT home_store_key FROM workspaces WHERE id = $1`, id))
}

// checkUsers checks that all users can log in with their passwords.
func (w *world) checkUsers(report Report) {
	w.Helper()
	for name, password := range map[string]string{"kim": "testpassword", "lee": "testpassword", "admin": "admin"} {
		u, err := w.DB.UserByName(w.Context(), name)
		ok(w, err)
		if matches, readable := auth.Matches(u.PasswordHash, password); !matches || !readable {
			w.Errorf("%s: %q does not match %s", name, password, u.PasswordHash)
		}
		if u.Admin || u.Disabled || u.FailedLogins != 0 || u.LockedUntil != nil || u.ID != report.user(w, name).ID {
			w.Errorf("%s was imported as %+v", name, u)
		}
	}
	if u := report.user(w, "admin"); len(u.Notes) != 1 || !strings.Contains(u.Notes[0], "change it") {
		w.Errorf("the note on the default password is %q", u.Notes)
	}
	if n := fixture.Query[int](w, `SELECT count(*) FROM sessions`); n != 0 {
		w.Errorf("%d sessions were imported", n)
	}
}

// checkSecondRun checks that a second run keeps what was imported, after changes to the first version
// and to this one.
func (w *world) checkSecondRun(first Report) {
	w.Helper()
	id := first.of(w, w.id("wR0")).ID
	w.Exec(`UPDATE workspaces SET name = 'mine', desired_state = 'STANDBY', home_ctx = '{"state": "live", "claim": "c"}', phase = 'STANDBY' WHERE id = $1`, id)
	w.Exec(`UPDATE workspaces SET deleted_at = now() WHERE id = $1`, first.of(w, w.id("wE0")).ID)
	w.Exec(`UPDATE users SET password_hash = '!' WHERE username = 'kim'`)
	w.file(filepath.Join(homeOf(w, w.id("wT0")), "later"), "later")
	tables := []string{"users", "workspaces", "archives", "arrivals", "audit_log"}
	before, objects := w.Rows(tables...), archivetest.Snapshot(w, w.bucket.Folder)

	report := w.bring()
	if report.Left != 1 {
		w.Errorf("the second time, not imported: %+v", report)
	}
	for _, r := range report.Workspaces {
		if r.OldID == w.id("wE0") {
			if r.Result != arrivals.Left || !strings.Contains(r.Reason, "deleted here since") {
				w.Errorf("%+v", r)
			}
			continue
		}
		if want := first.of(w, r.OldID); r.ID != want.ID || (r.Result != arrivals.Already && r.Result != arrivals.Deleted) {
			w.Errorf("the second time: %+v", r)
		}
	}
	for _, u := range report.Users {
		if u.Result != arrivals.Already || u.ID != first.user(w, u.OldName).ID {
			w.Errorf("the second time: %+v", u)
		}
	}
	if after := w.Rows(tables...); after != before {
		w.Errorf("the second time has changed the database from\n%s\nto\n%s", before, after)
	}
	if d := archivetest.Diff(archivetest.WithoutAtimes(objects), archivetest.WithoutAtimes(archivetest.Snapshot(w, w.bucket.Folder))); d != "" {
		w.Errorf("the second time has changed the bucket:\n%s", d)
	}
}

// Early databases of the first version had times without a time zone.
func TestNaiveTimes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sql(testdata(t, "m1_schema_naive.sql"))
	w.sql(`ALTER DATABASE ` + w.database() + ` SET timezone = 'Asia/Seoul'`)
	w.allHomes()
	report := w.bring()
	if at := w.row(report.of(t, w.id("wR0")).ID).CreatedAt; report.Left != 0 || !at.Equal(time.Date(2026, 1, 3, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("created at %s; %+v", at, report)
	}
}

func (w *world) database() string { return query[string](w, `SELECT current_database()`) }

// The database's address in the first version's format.
func TestAddressWithDriver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, rest, _ := strings.Cut(w.from, "://")
	d, err := ReadSource(t.Context(), "postgresql+asyncpg://"+rest)
	if err != nil || len(d.Users) != 3 || len(d.Workspaces) != 9 {
		t.Errorf("%d users, %d workspaces, %v", len(d.Users), len(d.Workspaces), err)
	}
}

// A dry run reports what a run would do, and changes nothing.
func TestDryRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.allHomes()
	w.run(w.id("wR0"), true)
	w.run(w.id("wX0"), false)
	tables := []string{"users", "workspaces", "archives", "arrivals", "audit_log"}
	before, containers := w.Rows(tables...), w.containers()
	planned := w.bring(func(c *config) { c.DryRun = true })
	if after := w.Rows(tables...); after != before || len(w.objects()) != 0 {
		t.Errorf("a dry run has changed\n%s\nto\n%s\nand the bucket holds %v", before, after, w.objects())
	}
	equal(t, "containers after a dry run", containers, w.containers())

	done := w.bring()
	if !planned.DryRun || done.DryRun {
		t.Error("the reports do not differ in dry_run")
	}
	equal(t, "the dry run and the import", planned.plain(), done.plain())
}
