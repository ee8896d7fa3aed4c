package httpapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/archive"
	"codehub/internal/storage/store"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"

	"github.com/google/uuid"
)

// backedUp is an environment in which ann has a workspace with backups.
type backedUp struct {
	*env
	bucket *fakeBucket
	ws     workspace.Workspace
	path   string // of its backups
	former *archive.Manifest
}

func newBackedUp(t *testing.T, opts ...option) *backedUp {
	t.Helper()
	b := &backedUp{bucket: &fakeBucket{objects: map[string][]byte{}}}
	b.env = newEnv(t, append([]option{func(c *Config) { c.Archives = b.bucket }}, opts...)...)
	b.ws = b.workspace(b.ann, "web")
	b.Change(`UPDATE workspaces SET phase = 'STANDBY', desired_state = 'STANDBY' WHERE id = $1`, b.ws.ID)
	b.path = "/workspaces/" + string(b.ws.ID) + "/backups"
	return b
}

// backup records a backup of a home as it is, made at a time, and returns its id.
func (b *backedUp) backup(home, note string, at time.Time) string {
	b.t.Helper()
	id := uuid.NewString()
	name := archive.ManifestName(at, id)
	key := "inst/" + string(b.ws.ID) + "/backups/" + name
	put := func(_ context.Context, of string, content []byte) error {
		if of == name {
			of = key
		}
		b.bucket.set(func(f *fakeBucket) { f.objects[of] = slices.Clone(content) })
		return nil
	}
	m, err := archive.Backup(b.t.Context(), home, name, put, archive.BackupOptions{Former: b.former, Get: b.bucket.part})
	check(b.t, err)
	b.former = m
	sum := sha256.Sum256(b.bucket.objects[key])
	b.Exec(`INSERT INTO home_backups (id, workspace_id, state, cause, note, key, digest, size, created_at, begun_at, ended_at, entries)
		VALUES ($1, $2, 'done', 'request', $3, $4, $5, $6, $7, $7, $7, $8)`,
		id, b.ws.ID, note, key, hex.EncodeToString(sum[:]), len(b.bucket.objects[key]), at, m.Totals().Entries)
	return id
}

func TestBackups(t *testing.T) {
	t.Parallel()
	e := newBackedUp(t)
	made := read[api.Backup](t, e.want(202, "", "POST", e.path, `{"note":"before the upgrade"}`, as(e.ann)))
	if made.State != "waiting" || made.Cause != "request" || made.Note != "before the upgrade" || made.BegunAt != nil {
		t.Errorf("%+v", made)
	}
	if again := read[api.Backup](t, e.want(202, "", "POST", e.path, "", as(e.ann))); again.ID != made.ID || again.Note != made.Note {
		t.Errorf("%+v", again)
	}
	if got := read[api.Backup](t, e.want(200, "", "GET", e.path+"/"+made.ID, "", as(e.ann))); got != made {
		t.Errorf("%+v, not %+v", got, made)
	}
	for _, rest := range []string{"/files", "/file?path=x", "/changes"} {
		e.want(404, "not_found", "GET", e.path+"/"+made.ID+rest, "", as(e.ann)) // not complete
	}
	at := time.Now().Add(-time.Hour).Truncate(time.Second)
	home := t.TempDir()
	for i := range 3 {
		e.backup(home, fmt.Sprint("note ", i), at.Add(time.Duration(i)*time.Minute))
	}
	var notes []string
	for cursor, pages := "", 0; pages == 0 || cursor != ""; pages++ {
		list := read[api.BackupList](t, e.want(200, "", "GET", e.path+"?limit=2&cursor="+cursor, "", as(e.ann)))
		for _, b := range list.Backups {
			notes = append(notes, b.Note)
		}
		cursor = list.NextCursor
	}
	if want := []string{"before the upgrade", "note 2", "note 1", "note 0"}; !slices.Equal(notes, want) {
		t.Errorf("%q", notes)
	}
	c, _ := e.tokenClient(e.ann)
	if list, err := c.Backups(t.Context(), string(e.ws.ID)); err != nil || len(list) != 4 {
		t.Errorf("the client lists %d backups, %v", len(list), err)
	}

	e.want(400, "invalid_request", "POST", e.path, `{"note":"`+strings.Repeat("x", workspace.MaxBackupNote+1)+`"}`, as(e.ann))
	e.want(400, "invalid_request", "POST", e.path, `{"nothing":1}`, as(e.ann))
	e.want(400, "invalid_request", "GET", e.path+"?cursor=x", "", as(e.ann))
	for _, id := range []string{uuid.NewString(), "x", "..%2f..%2fsecret", "%27%3b--", strings.Repeat("9", 5000), "%00"} {
		for _, rest := range []string{"", "/files", "/file?path=x", "/changes"} {
			e.want(404, "not_found", "GET", e.path+"/"+id+rest, "", as(e.ann))
		}
	}
	e.Exec(`UPDATE home_backups SET state = 'running' WHERE id = $1`, made.ID)
	e.want(409, "operation_in_progress", "POST", e.path, "", as(e.ann))
}

func TestFilesAndChangesOfBackups(t *testing.T) {
	t.Parallel()
	e := newBackedUp(t)
	home := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		check(t, os.MkdirAll(filepath.Dir(filepath.Join(home, name)), 0o755))
		check(t, os.WriteFile(filepath.Join(home, name), []byte(content), 0o644))
	}
	write("README", "one")
	write("src/main.go", "package main")
	at := time.Now().Add(-time.Hour)
	first := e.backup(home, "", at)
	write("README", "two, changed")
	write("src/new.go", "new")
	check(t, os.Remove(filepath.Join(home, "src/main.go")))
	second := e.backup(home, "", at.Add(time.Minute))
	third := e.backup(home, "", at.Add(2*time.Minute))

	changes := func(backup, query string) string {
		t.Helper()
		c := read[api.BackupChanges](t, e.want(200, "", "GET", e.path+"/"+backup+"/changes"+query, "", as(e.ann)))
		out := fmt.Sprint(c.Added, " ", c.Modified, " ", c.Removed, " ", c.Bytes, " ", c.More)
		for _, f := range c.Files {
			out += fmt.Sprint("; ", f.Change, " ", f.Path, " ", f.Size)
		}
		return out
	}
	for _, c := range []struct{ backup, query, want string }{
		{first, "", "2 0 0 15 false; added README 3; added src/main.go 12"},
		{second, "", "1 1 1 15 false; modified README 12; removed src/main.go 12; added src/new.go 3"},
		{third, "", "0 0 0 0 false"},
		{third, "?since=" + first, "1 1 1 15 false; modified README 12; removed src/main.go 12; added src/new.go 3"},
		{first, "?since=" + second, "1 1 1 15 false; modified README 3; added src/main.go 12; removed src/new.go 3"},
	} {
		if got := changes(c.backup, c.query); got != c.want {
			t.Errorf("%s: %s\nwant %s", c.query, got, c.want)
		}
	}
	e.want(404, "not_found", "GET", e.path+"/"+first+"/changes?since="+uuid.NewString(), "", as(e.ann))

	for backup, want := range map[string]string{first: "src/main.go", third: "src/new.go"} {
		if list := read[api.ArchiveFiles](t, e.want(200, "", "GET", e.path+"/"+backup+"/files?path=src", "", as(e.ann))); len(list.Files) != 1 || list.Files[0].Path != want {
			t.Errorf("%+v", list)
		}
	}
	if a := e.want(200, "", "GET", e.path+"/"+first+"/file?path=README", "", as(e.ann)); a.body != "one" || a.header.Get("Content-Length") != "3" {
		t.Errorf("%q %v", a.body, a.header)
	}
	e.want(404, "not_found", "GET", e.path+"/"+second+"/file?path=src/main.go", "", as(e.ann))
	e.want(404, "not_found", "GET", e.path+"/"+second+"/files?path=none", "", as(e.ann))
	e.want(400, "invalid_request", "GET", e.path+"/"+second+"/file?path=src", "", as(e.ann))
	e.want(400, "invalid_request", "GET", e.path+"/"+second+"/files?cursor=!", "", as(e.ann))
	c, _ := e.tokenClient(e.ann)
	if list, err := c.BackupFiles(t.Context(), string(e.ws.ID), first, "."); err != nil || len(list) != 2 {
		t.Errorf("the client lists %+v, %v", list, err)
	}

	// The whole of a home that is in a backup is no archive that can be downloaded.
	e.Change(`UPDATE workspaces SET phase = 'ARCHIVED', desired_state = 'ARCHIVED', archive_key = (SELECT key FROM home_backups WHERE id = $1)`, first)
	e.want(404, "archive_not_found", "GET", "/workspaces/"+string(e.ws.ID)+"/archive", "", as(e.ann))
	if w := read[api.Workspace](t, e.want(200, "", "GET", "/workspaces/"+string(e.ws.ID), "", as(e.ann))); w.RestoredFrom == nil || *w.RestoredFrom != first {
		t.Errorf("restored from %v", w.RestoredFrom)
	}
	e.want(409, "not_running", "POST", e.path, "", as(e.ann))

	// A damaged or missing one, and a bucket that does not respond.
	e.bucket.set(func(f *fakeBucket) {
		for key, content := range f.objects {
			if strings.Contains(key, first) {
				f.objects[key] = content[:len(content)-1]
			}
			if strings.Contains(key, second) {
				delete(f.objects, key)
			}
		}
	})
	for _, rest := range []string{"/files", "/file?path=README", "/changes"} {
		e.want(409, "not_supported", "GET", e.path+"/"+first+rest, "", as(e.ann))
		e.want(404, "archive_not_found", "GET", e.path+"/"+second+rest, "", as(e.ann))
	}
	e.bucket.set(func(f *fakeBucket) { f.err = fmt.Errorf("%w: %w", store.ErrUnavailable, os.ErrNotExist) })
	for _, rest := range []string{"/files", "/file?path=README", "/changes"} {
		e.want(503, "unavailable", "GET", e.path+"/"+third+rest, "", as(e.ann))
	}
	e.bucket.closed(t)
}

func TestRestoreAndForkBackup(t *testing.T) {
	t.Parallel()
	e := newBackedUp(t)
	backup := e.backup(t.TempDir(), "", time.Now().Add(-time.Hour))
	at := "/workspaces/" + string(e.ws.ID)
	w := read[api.Workspace](t, e.want(202, "", "POST", at+"/restore", `{"backup":"`+backup+`"}`, as(e.ann)))
	if w.RestoreFrom == nil || *w.RestoreFrom != backup || w.RestoredFrom != nil {
		t.Errorf("%v %v", w.RestoreFrom, w.RestoredFrom)
	}
	e.want(400, "invalid_request", "POST", at+"/restore", `{}`, as(e.ann))
	e.want(404, "not_found", "POST", at+"/restore", `{"backup":"'; --"}`, as(e.ann))
	e.want(403, "forbidden", "POST", at+"/restore", `{"backup":"`+backup+`"}`, as(e.eve))
	e.want(403, "forbidden", "POST", "/admin"+at+"/restore", `{"backup":"`+backup+`"}`, as(e.ann))

	list := read[api.WorkspaceList](t, e.want(201, "", "POST", at+"/fork", `{"backup":"`+backup+`","count":2,"name":" try "}`, as(e.ann)))
	if len(list.Workspaces) != 2 || list.Workspaces[0].Name != "try" || list.Workspaces[0].RestoredFrom == nil || *list.Workspaces[0].RestoredFrom != backup {
		t.Errorf("%+v", list)
	}
	e.want(400, "invalid_request", "POST", at+"/fork", `{"backup":"`+backup+`","count":21}`, as(e.ann))
	e.want(400, "invalid_request", "POST", at+"/fork", `{"count":1}`, as(e.ann)) // the workspace is not archived
	e.want(404, "not_found", "POST", at+"/fork", `{"backup":"x"}`, as(e.ann))
	_, secret, err := e.Auth.CreateToken(t.Context(), auth.Identity{Caller: e.ann.Caller}, "x", nil, auth.TokenLimits{Scope: workspace.ScopeWorkspaces, Workspace: e.ws.ID})
	check(t, err)
	limited := header(api.TokenHeader, secret)
	e.want(200, "", "GET", e.path, "", limited)
	e.want(403, "forbidden", "POST", at+"/fork", `{"backup":"`+backup+`"}`, limited)

	// An administrator requests a backup and a restore, but reads nothing.
	e.Exec(`UPDATE users SET admin = true WHERE username = 'eve'`)
	e.Auth.InvalidateAll()
	e.want(202, "", "POST", "/admin"+at+"/backups", `{"note":"by eve"}`, as(e.eve))
	e.want(202, "", "POST", "/admin"+at+"/restore", `{"backup":"`+backup+`","start":true}`, as(e.eve))
	if list := read[api.BackupList](t, e.want(200, "", "GET", "/admin"+at+"/backups", "", as(e.eve))); len(list.Backups) != 2 {
		t.Errorf("%+v", list)
	}
	for _, rest := range []string{"", "/files", "/file?path=x", "/changes"} {
		e.want(403, "forbidden", "GET", e.path+"/"+backup+rest, "", as(e.eve))
	}
	if got := fixture.Query[string](e, `SELECT string_agg(action || ' ' || (details ->> 'owner'), ',' ORDER BY id) FROM audit_log WHERE username = 'eve' AND action LIKE 'workspace.%'`); got != "workspace.backup ann,workspace.restore ann" {
		t.Errorf("the audit log has %q", got)
	}
	if n := read[api.NoticeList](t, e.want(200, "", "GET", "/notices", "", as(e.ann))); len(n.Notices) != 1 || n.Notices[0].Kind != "recover" {
		t.Errorf("%+v", n)
	}
}

func TestVersionsOfFile(t *testing.T) {
	t.Parallel()
	e := newBackedUp(t)
	home := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		check(t, os.WriteFile(filepath.Join(home, name), []byte(content), 0o644))
	}
	at := time.Now().Add(-time.Hour).Truncate(time.Second)
	ids, names := []string{}, map[string]string{}
	backup := func() {
		t.Helper()
		id := e.backup(home, fmt.Sprint(len(ids)), at.Add(time.Duration(len(ids))*time.Minute))
		ids, names[id] = append(ids, id), fmt.Sprint(len(ids))
	}
	write("other", "x")
	backup() // 0: without the file
	write("a.txt", "one")
	check(t, os.Link(filepath.Join(home, "a.txt"), filepath.Join(home, "z.txt")))
	backup() // 1
	write("other", "y")
	backup() // 2: the file is the same
	write("a.txt", "second")
	backup() // 3
	check(t, os.Remove(filepath.Join(home, "a.txt")))
	check(t, os.Mkdir(filepath.Join(home, "a.txt"), 0o755))
	backup() // 4: a folder
	check(t, os.Remove(filepath.Join(home, "a.txt")))
	check(t, os.Symlink("other", filepath.Join(home, "a.txt")))
	backup() // 5
	c, _ := e.tokenClient(e.ann)
	versions := func(name string) string {
		t.Helper()
		list, err := c.FileVersions(t.Context(), string(e.ws.ID), name)
		check(t, err)
		var out []string
		for _, v := range list {
			out = append(out, fmt.Sprint(names[v.Backup], " ", v.Change, " ", v.Kind, " ", v.Size))
			if v.Note != names[v.Backup] || v.Cause != "request" || v.At.Sub(at) < 0 || time.Since(v.ModifiedAt) > time.Hour {
				t.Errorf("%+v", v)
			}
		}
		return strings.Join(out, "; ")
	}
	const all = "5 added link 0; 4 removed file 6; 3 modified file 6; 1 added file 3"
	for name, want := range map[string]string{"a.txt": all, "/a.txt": all, "z.txt": "3 modified file 6; 1 added file 3", "other": "2 modified file 1; 0 added file 1", "none": "", ".": "", "a.txt/x": ""} {
		if got := versions(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	path := e.path + "/versions?path=a.txt"
	e.want(400, "invalid_request", "GET", path+"&cursor="+uuid.NewString(), "", as(e.ann))
	e.want(403, "forbidden", "GET", path, "", as(e.eve))
	page := read[api.FileVersions](t, e.want(200, "", "GET", path+"&cursor="+ids[3], "", as(e.ann)))
	if len(page.Versions) != 2 || page.Versions[0].Backup != ids[3] {
		t.Errorf("from a cursor: %+v", page)
	}

	// A request reads a part of the backups.
	e.Exec(`UPDATE home_backups SET size = $1`, 64<<20)
	page = read[api.FileVersions](t, e.want(200, "", "GET", path, "", as(e.ann)))
	if len(page.Versions) != 2 || page.NextCursor != ids[3] {
		t.Errorf("the first page: %+v", page)
	}
	if got := versions("a.txt"); got != all {
		t.Errorf("in pages: %q, want %q", got, all)
	}

	// Backups that cannot be read are left out.
	e.bucket.set(func(f *fakeBucket) {
		for key, content := range f.objects {
			switch {
			case strings.Contains(key, ids[5]) && strings.HasSuffix(key, ".manifest.zst"):
				f.objects[key] = content[:len(content)-1]
			case strings.Contains(key, ids[1]) && strings.HasSuffix(key, ".manifest.zst"):
				delete(f.objects, key)
			}
		}
	})
	if got, want := versions("a.txt"), "4 removed file 6; 3 modified file 6; 2 added file 3"; got != want {
		t.Errorf("with damaged backups: %q, want %q", got, want)
	}
	e.bucket.set(func(f *fakeBucket) { f.err = store.ErrUnavailable })
	e.want(503, "unavailable", "GET", path, "", as(e.ann))
	e.bucket.closed(t)
}
