package dashboard

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/archive"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/workspace"

	"github.com/google/uuid"
)

// backedUp is a complete backup of a workspace's home, as the leader leaves it.
type backedUp struct {
	id       string
	key      string
	manifest *archive.Manifest
}

// backUp makes a real backup of a home, with the last one as its former.
func (w *world) backUp(id workspace.ID, home, note string, at time.Time, former *backedUp) *backedUp {
	w.t.Helper()
	b := &backedUp{id: uuid.Must(uuid.NewV7()).String()}
	prefix := "inst/" + string(id) + "/backups/"
	opts := archive.BackupOptions{Get: w.bucket.pack}
	if former != nil {
		opts.Former = former.manifest
	}
	name := archive.ManifestName(at, b.id)
	made, err := archive.Backup(w.t.Context(), home, name, func(_ context.Context, object string, content []byte) error {
		w.bucket.mu.Lock()
		defer w.bucket.mu.Unlock()
		if _, is := archive.IsManifest(object); is {
			object = prefix + object
		}
		w.bucket.have[object], w.bucket.content[object] = int64(len(content)), bytes.Clone(content)
		return nil
	}, opts)
	if err != nil {
		w.t.Fatal(err)
	}
	changes, err := made.Compare(opts.Former)
	if err != nil {
		w.t.Fatal(err)
	}
	b.key, b.manifest = prefix+name, made
	content := w.bucket.content[b.key]
	sum := sha256.Sum256(content)
	totals := made.Totals()
	w.Exec(`INSERT INTO home_backups (id, workspace_id, state, cause, note, key, digest, size, entries, files, bytes, stored, added, modified, removed, created_at, begun_at, ended_at)
		VALUES ($1, $2, 'done', $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $15, $15)`,
		b.id, string(id), cause(note), note, b.key, hex.EncodeToString(sum[:]), len(content), totals.Entries, totals.Files, totals.Bytes, totals.Stored, changes.Added, changes.Changed, changes.Removed, at)
	return b
}

func cause(note string) string {
	if note != "" {
		return workspace.BackupRequested
	}
	return workspace.BackupScheduled
}

// backedUpMuch makes backups of each kind that the page shows, and returns two that can be compared.
func (w *world) backedUpMuch(id workspace.ID) (older, newer *backedUp) {
	w.t.Helper()
	home := w.t.TempDir()
	write(w.t, home, map[string]string{"shop/src/main.go": "package main\n", "shop/README.md": "# Shop\n", "shop/old.txt": "x", ".bashrc": "alias ll='ls -l'\n"})
	at := time.Date(2026, 3, 1, 9, 0, 0, 0, time.UTC)
	first := w.backUp(id, home, "", at, nil)
	older = w.backUp(id, home, "", at.Add(time.Hour), first)
	write(w.t, home, map[string]string{"shop/src/main.go": "package main\n\nfunc main() {}\n", "shop/" + strings.Repeat("a-very-long-name-", 10): strings.Repeat("x", 70_000)})
	if err := os.Remove(filepath.Join(home, "shop/old.txt")); err != nil {
		w.t.Fatal(err)
	}
	newer = w.backUp(id, home, "before the upgrade of the framework, with all packages", at.Add(27*time.Hour), older)
	w.Exec(`UPDATE home_backups SET changed = 2, problems = 1, verified_at = $2 WHERE id = $1`, older.id, at.Add(2*time.Hour))
	w.Exec(`UPDATE home_backups SET damage = 'The pack 00001 is missing.' WHERE id = $1`, first.id)
	w.Exec(`UPDATE home_backups SET unchanged_at = $2 WHERE id = $1`, newer.id, at.Add(28*time.Hour))
	w.Exec(`INSERT INTO home_backups (id, workspace_id, state, cause, error, created_at) VALUES ($1, $2, 'failed', 'schedule', 'The bucket is not responding.', $3)`, uuid.NewString(), string(id), at.Add(29*time.Hour))
	w.Exec(`INSERT INTO home_backups (id, workspace_id, state, cause, note, begun_at) VALUES ($1, $2, 'running', 'request', 'before lunch', now())`, uuid.NewString(), string(id))
	return older, newer
}

// The page lists backups by day, with what they have and what is wrong with them.
func TestBackupsOfHome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", standby)
	page := "/workspaces/" + string(id)
	contains(t, "no backups", b.get(page+"/backups").body, "There are no backups yet.", `id="back-up"`)
	contains(t, "no backups", b.get(page).body, "There are no backups yet.", `id="back-up"`, `href="`+page+`/backups"`)

	home := t.TempDir()
	write(t, home, map[string]string{"a": "a", "b": "b", "c": "c"})
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	first := w.backUp(id, home, "", noon, nil)
	write(t, home, map[string]string{"a": "other", "d": "d"})
	if err := os.Remove(filepath.Join(home, "c")); err != nil {
		t.Fatal(err)
	}
	second := w.backUp(id, home, "<b>before</b> the upgrade", noon.Add(time.Hour), first)
	third := w.backUp(id, home, "", noon.Add(24*time.Hour), second)
	w.Exec(`UPDATE home_backups SET changed = 2, problems = 1, verified_at = $2 WHERE id = $1`, second.id, noon.Add(2*time.Hour))
	w.Exec(`UPDATE home_backups SET damage = 'The pack x is missing.' WHERE id = $1`, first.id)
	w.Exec(`UPDATE home_backups SET unchanged_at = $2 WHERE id = $1`, third.id, noon.Add(25*time.Hour))
	w.Exec(`INSERT INTO home_backups (id, workspace_id, state, cause, error, created_at) VALUES ($1, $2, 'failed', 'archive', 'The disk is full.', $3)`,
		uuid.NewString(), string(id), noon.Add(26*time.Hour))
	a := b.get(page + "/backups")
	contains(t, "backups", a.body, "3 files", "1 added", "1 changed", "1 removed", "No changes", "Scheduled", "&lt;b&gt;before&lt;/b&gt; the upgrade",
		"2 files changed while they were read", "1 file could not be read", "Compared on", "This backup is damaged. The pack x is missing.", "Unchanged until",
		"Backup failed: The disk is full.", `id="restore-`+second.id, `id="fork-`+third.id, page+"/backups/"+second.id+"/changes", "backups/newest/changes?since="+first.id, "2026-03-02", "2026-03-01")
	lacks(t, "backups", a.body, `id="restore-`+first.id, "<b>before", "since="+third.id, page+"/backups/"+first.id+"/changes")
	if n := strings.Count(a.body, `class="backup-day"`); n != 2 {
		t.Errorf("%d days", n)
	}
	contains(t, "the workspace's page", b.get(page).body, "Last backup:", "No changes", `id="backup-failed"`)
	contains(t, "in Korean", b.get(page+"/backups", "Accept-Language", "ko").body, "타임머신", "예약 백업", "이 시점으로 되돌리기", "추가 1")
	w.want(id, "time_zone", "Asia/Seoul")
	w.Exec(`UPDATE home_backups SET begun_at = $2 WHERE id = $1`, second.id, noon.Add(6*time.Hour))
	if n := strings.Count(b.get(page+"/backups").body, `class="backup-day"`); n != 2 {
		t.Errorf("%d days in Seoul", n)
	}

	// Someone else, and unknown backups.
	ann := w.person("ann")
	for _, at := range []string{"/backups", "/backups/" + first.id + "/restore", "/backups/" + first.id + "/fork", "/backup"} {
		if a := ann.get(page + at); a.status != http.StatusForbidden || strings.Contains(a.body, "upgrade") {
			t.Errorf("%s for another user: %d", at, a.status)
		}
	}
	other := w.add("other", standby)
	for _, at := range []string{page + "/backups/x/", page + "/backups/" + uuid.NewString() + "/", "/workspaces/" + string(other) + "/backups/" + second.id + "/"} {
		for _, dialog := range []string{"restore", "fork"} {
			if a := b.get(at + dialog); a.status != http.StatusNotFound {
				t.Errorf("%s%s: %d", at, dialog, a.status)
			}
		}
	}
}

// Many backups have pages.
func TestBackupsHavePages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", standby)
	for i := range backupsShown + 5 {
		w.Exec(`INSERT INTO home_backups (id, workspace_id, state, cause, key, digest, created_at, begun_at, ended_at) VALUES ($1, $2, 'done', 'schedule', $3, 'd', $4, $4, $4)`,
			uuid.NewString(), string(id), uuid.NewString(), time.Now().Add(-time.Duration(i)*time.Hour))
	}
	page := "/workspaces/" + string(id) + "/backups"
	next := to(b.get(page).body, page+"?cursor=")
	if len(next) != 1 {
		t.Fatalf("the pages are %q", next)
	}
	a := b.get(next[0])
	if n := strings.Count(a.body, `class="backup`); n < 5 || len(to(a.body, page+"/")) < 5 {
		t.Errorf("the second page has %d backups", n)
	}
	if a := b.get(page + "?cursor=!"); a.status != http.StatusBadRequest {
		t.Errorf("a wrong cursor: %d", a.status)
	}
}

// A user requests a backup with a note, and the page shows its state.
func TestBackUpNow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", running)
	page := "/workspaces/" + string(id)
	contains(t, "the dialog", b.get(page+"/backup?from=backups", "HX-Request", "true").body, "Back up project now?", `name="note"`)
	if a := b.htmx(page+"/backup", url.Values{"note": {strings.Repeat("가", maxNote+1)}, "from": {"backups"}}); a.status != http.StatusUnprocessableEntity || !strings.Contains(a.body, "125") {
		t.Errorf("a long note: %d", a.status)
	}
	a := b.htmx(page+"/backup", url.Values{"note": {strings.Repeat("\U0001f600", maxNote)}, "from": {"backups"}})
	contains(t, "requested", a.body, `id="backups-list"`, "A backup will start soon.", "A backup of “project” starts.")
	w.Exec(`UPDATE home_backups SET note = ''`)
	if a := b.post(page+"/backup", url.Values{"note": {"again"}, "from": {"detail"}}); a.status != http.StatusSeeOther || !strings.HasPrefix(a.header.Get("Location"), page+"?") || !strings.Contains(a.header.Get("Location"), "note=backup") {
		t.Errorf("without scripts: %d to %s", a.status, a.header.Get("Location"))
	}
	contains(t, "the workspace's page", b.get(page).body, "A backup will start soon. <bdi>again</bdi>")
	w.Exec(`UPDATE home_backups SET state = 'running', begun_at = now()`)
	for _, at := range []string{page, page + "/backups"} {
		body := b.get(at).body
		contains(t, at, body, "A backup is being made.")
		lacks(t, at, body, `id="back-up"`)
	}
	contains(t, "while one is made", b.htmx(page+"/backup", url.Values{"from": {"detail"}}).body, "A backup of this workspace is being made")
	w.Exec(`DELETE FROM home_backups`)
	w.observe(id, archived("k", 1))
	w.want(id, "desired_state", "ARCHIVED")
	lacks(t, "an archived workspace", b.get(page).body, `id="back-up"`)
}

// A restore is confirmed and can be cancelled while it waits. Workspaces are created from a backup.
func TestRestoreAndForkOfBackup(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", running)
	w.want(id, "desired_state", "RUNNING")
	home := t.TempDir()
	write(t, home, map[string]string{"a": "a"})
	made := w.backUp(id, home, "<i>good</i>", time.Now().Add(-time.Hour), nil)
	page := "/workspaces/" + string(id)
	at := page + "/backups/" + made.id
	a := b.get(at + "/restore")
	contains(t, "the confirmation", a.body, "The workspace stops.", "archived first", "&lt;i&gt;good&lt;/i&gt;", `name="start" checked`)
	contains(t, "the confirmation in Korean", b.get(at+"/restore", "Accept-Language", "ko").body, "이전 시점으로 되돌릴까요?", "먼저 백업하고 보관합니다")
	if a := b.post(at+"/restore", url.Values{"start": {"on"}}); a.status != http.StatusSeeOther || !strings.Contains(a.header.Get("Location"), "note=restore_backup") {
		t.Errorf("restore: %d to %s", a.status, a.header.Get("Location"))
	}
	if ws := w.row(id); ws.RestoreFrom == nil || ws.RestoreFrom.OpID != made.id || ws.DesiredState != workspace.DesiredRunning {
		t.Fatalf("the row is %+v", ws)
	}
	for _, at := range []string{page, page + "/backups"} {
		contains(t, at, b.get(at).body, `id="backup-restoring"`, `id="cancel-restore"`)
	}
	contains(t, "cancelled", b.htmx(page+"/cancel-restore", url.Values{"from": {"backups"}}).body, "The restore of “project” was cancelled.", `id="backups-list"`)
	if ws := w.row(id); ws.RestoreFrom != nil || ws.DesiredState != workspace.DesiredRunning {
		t.Errorf("the row is %+v", ws)
	}
	w.Exec(`UPDATE home_backups SET damage = 'x'`)
	if a := b.post(at+"/restore", nil); a.status != http.StatusConflict || w.row(id).RestoreFrom != nil {
		t.Errorf("a damaged backup: %d", a.status)
	}
	w.Exec(`UPDATE home_backups SET damage = ''`)

	contains(t, "the form", b.get(at+"/fork", "HX-Request", "true").body, `name="count"`, "New workspace from a backup of project")
	for _, count := range []string{"", "0", "21", "x", "-1"} {
		if a := b.htmx(at+"/fork", url.Values{"count": {count}}); a.status != http.StatusUnprocessableEntity || !strings.Contains(a.body, "from 1 to 20") {
			t.Errorf("%q workspaces: %d", count, a.status)
		}
	}
	contains(t, "a name that is taken", b.htmx(at+"/fork", url.Values{"count": {"1"}, "fork_name": {"project"}}).body, `id="e-fork_name"`)
	a = b.post(at+"/fork", url.Values{"count": {"1"}, "fork_name": {"second"}})
	if to := a.header.Get("Location"); a.status != http.StatusSeeOther || !strings.HasPrefix(to, "/workspaces/") || to == page {
		t.Errorf("one workspace: %d to %s", a.status, to)
	} else {
		contains(t, "the new workspace", b.get(to).body, "second", "Created “second” from the backup.")
	}
	if a := b.htmx(at+"/fork", url.Values{"count": {"2"}}); a.header.Get("HX-Redirect") != "/?note=fork" {
		t.Errorf("two workspaces: %d to %s", a.status, a.header.Get("HX-Redirect"))
	}
	contains(t, "the list", b.get("/").body, "project 2", "project 3")
}

// Open pages show that a backup is requested, made, and complete.
func TestBackupsStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", standby)
	list, detail := b.listen("?backups=1&workspace="+string(id)), b.listen("?workspace="+string(id))
	list.until(`id="backups-list"`, "There are no backups yet.")
	detail.until(`id="backups"`, "There are no backups yet.")
	if _, err := w.DB.RequestHomeBackup(t.Context(), w.caller("admin"), id, "noon"); err != nil {
		t.Fatal(err)
	}
	list.until(`id="backups-list"`, "A backup will start soon. <bdi>noon</bdi>")
	detail.until(`id="backups"`, "A backup will start soon. <bdi>noon</bdi>")
	w.Exec(`UPDATE home_backups SET state = 'done', key = 'k', digest = 'd', begun_at = now(), ended_at = now()`)
	list.until(`id="backups-list"`, `id="backup-`, "<bdi>noon</bdi>", "No changes")
	detail.until(`id="backups"`, "Last backup:")
}

// Administrators see how many homes have a backup that was compared, and what was found.
func TestComparedBackupsForAdministrators(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	contains(t, "no backups", b.get("/admin").body, `id="admin-backups"`, `id="admin-drill"`)
	home := t.TempDir()
	write(t, home, map[string]string{"a": "a"})
	first := w.backUp(w.add("project", standby), home, "", time.Now().Add(-time.Hour), nil)
	contains(t, "none compared", b.get("/admin").body, "0 of 1 home compared")
	w.Exec(`UPDATE home_backups SET verified_at = now() - interval '3 hours'`)
	contains(t, "compared", b.get("/admin").body, "1 home compared, 0 differences, last <time", "3 h ago")
	w.Exec(`UPDATE home_backups SET damage = 'x', stored = 5 << 20 WHERE id = $1`, first.id)
	contains(t, "damaged", b.get("/admin").body, "1 home compared, 1 difference, last", "5 MiB, no limit")
	contains(t, "in Korean", b.get("/admin", "Accept-Language", "ko").body, "홈 1개 검증, 차이 1건, 마지막 검증")
	if _, err := w.DB.RequestHomeBackup(t.Context(), w.caller("admin"), w.add("other", running), ""); err != nil {
		t.Fatal(err)
	}
	w.Exec(`INSERT INTO replicas (id, hostname, version, started_at, seen_at, flushed_at, health) VALUES
		('01900000-0000-7000-8000-0000000000a1', 'alpha.example', '1.2.0', now(), now(), now(),
			'{"backends": {}, "conditions": [], "late_backups": 4, "over_backup_limit": 3, "database_backed_up": "2026-03-01T10:00:00Z"}')`)
	contains(t, "jobs, and what the leader sees", b.get("/admin").body, "0 running, 1 queued", `<dd class="num warn">4</dd>`, `<dd class="num warn">3</dd>`, "2026-03-01T10:00:00Z")
}

// Administrators list, make and restore the backups of other users, and cannot read their files.
func TestBackupsOfOtherUsers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	ann := w.person("ann")
	id := w.AddWorkspace(w.caller("ann"), "project").ID
	w.observe(id, standby)
	page := "/admin/workspaces/" + string(id)
	contains(t, "no backups", b.get(page).body, `id="any-backups"`, "There are no backups yet.", page+"/backup")
	home := t.TempDir()
	write(t, home, map[string]string{"secret.txt": "a"})
	first := w.backUp(id, home, "noon", time.Now().Add(-time.Hour), nil)
	w.Exec(`INSERT INTO home_backups (id, workspace_id, state, cause, error, begun_at, ended_at) VALUES
		(gen_random_uuid(), $1, 'failed', 'schedule', 'The backup took too long.', now() - interval '2 hours', now() - interval '2 hours')`, id)
	body := b.get(page).body
	contains(t, "the list", body, "<bdi>noon</bdi>", "1 file", "Backup failed: The backup took too long.", page+"/restore?backup="+first.id)
	lacks(t, "the list", body, "secret.txt", "/files", "/fork", "/changes")
	contains(t, "in Korean", b.get(page, "Accept-Language", "ko").body, "백업 실패: 백업에 너무 오래 걸렸습니다.", "이 시점으로 되돌리기")
	for _, path := range []string{"/files?path=.", "/restore", "/changes"} {
		if a := b.get("/workspaces/" + string(id) + "/backups/" + first.id + path); a.status != http.StatusForbidden {
			t.Errorf("%s: %d", path, a.status)
		}
	}

	contains(t, "the form", b.get(page+"/backup", "HX-Request", "true").body, "Back up project now?", "Only ann, the owner, can read the backup.")
	contains(t, "backed up", b.htmx(page+"/backup", url.Values{"note": {"by us"}}).body, "A backup of “project” starts.")
	contains(t, "it waits", b.get(page).body, "<bdi>by us</bdi>", "A backup will start soon.")
	w.Exec(`UPDATE home_backups SET state = 'running' WHERE state = 'waiting'`)
	contains(t, "a second one", b.htmx(page+"/backup", nil).body, "A backup of this workspace is being made.")

	if a := b.get(page + "/restore?backup=019a0000-0000-7000-8000-000000000001"); a.status != http.StatusNotFound {
		t.Errorf("an unknown backup: %d", a.status)
	}
	contains(t, "the form", b.get(page+"/restore?backup="+first.id, "HX-Request", "true").body, "Restore an earlier state of project?", "<bdi>noon</bdi>", "Start afterwards", `name="backup" value="`+first.id)
	contains(t, "restored", b.htmx(page+"/restore", url.Values{"backup": {first.id}, "message": {"as you asked"}}).body, "“project” of ann returns to the backup.")
	if from := fixture.Query[string](w, `SELECT restore_from ->> 'key' FROM workspaces WHERE id = $1`, id); from != first.key {
		t.Errorf("restores %q", from)
	}
	log := b.get("/admin/audit?target=" + string(id)).body
	contains(t, "the audit log", log, "Requested a backup", "Requested the restore of a backup")
	contains(t, "the owner's notices", ann.get("/notices").body, "as you asked")
}

// Administrators see the result of the last drill of the database.
func TestDatabaseDrillForAdministrators(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	contains(t, "none", b.get("/admin").body, `id="admin-drill"><dt>Database backup restored</dt><dd>never`)
	save := func(d api.DatabaseDrill) {
		t.Helper()
		if err := w.DB.SaveDatabaseDrill(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	save(api.DatabaseDrill{Comparison: api.DrillComparison{Workspaces: 4, Unchanged: 3}})
	contains(t, "no problem", b.get("/admin").body, "no problems", "3 of 4 workspaces unchanged")
	contains(t, "in Korean", b.get("/admin", "Accept-Language", "ko").body, "데이터베이스 백업 복원 점검", "워크스페이스 4개 중 3개 변경 없음")
	save(api.DatabaseDrill{Problem: "the backup is <damaged>"})
	contains(t, "a problem", b.get("/admin").body, `<span class="warn">problem</span>`, "the backup is &lt;damaged&gt;")
}
