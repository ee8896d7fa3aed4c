package importm1

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/arrivals"
	"codehub/internal/postgres"
	"codehub/internal/testing/archivetest"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/pgtest"
	"codehub/internal/workspace"
)

// add adds a workspace of kim to the old database.
func (w *world) add(id, name, status string, set ...string) string {
	w.Helper()
	owner := w.id("uK0")
	w.sql(`
		INSERT INTO workspaces (id, owner_user_id, name, status, image_ref, instance_backend, storage_backend, home_store_key, created_at, updated_at)
		VALUES ($1, $2, $3, $4, 'cagojeiger/code-server:4.107.0', 'local-docker', 'local-dir', $5, now(), now())`,
		id, owner, name, status, homeKey(owner, id))
	for i := 0; i < len(set); i += 2 {
		w.sql(`UPDATE workspaces SET `+set[i]+` = $2 WHERE id = $1`, id, set[i+1])
	}
	return id
}

// justUsers is a world without workspaces.
func justUsers(t testing.TB) *world {
	w := newWorld(t)
	w.sql(`DELETE FROM workspaces`)
	return w
}

// Workspaces that cannot be imported safely are left, with the reason; all others are imported.
func TestImportLeavesUnsafeWorkspaces(t *testing.T) {
	t.Parallel()
	w := justUsers(t)
	want := map[string]string{}
	left := func(n, reason string, set ...string) string {
		id := w.add("01JFC0000000000000"+n+w.tag, "of "+n, "STOPPED", set...)
		want[id] = reason
		return id
	}
	home := func(id string) string {
		dir := filepath.Join(w.homes, homeKey(w.id("uK0"), id))
		ok(t, os.MkdirAll(dir, 0o755))
		return dir
	}
	outside := t.TempDir()
	w.file(filepath.Join(outside, "secret"), "secret")

	left("N0", "its home is not at")
	left("N1", "its home is not at", "status", "RUNNING")
	left("N2", "its home is not at", "status", "ERROR", "home_ctx", "/srv/homes/x")
	left("K0", "home_store_key", "home_store_key", "../../../etc")
	left("K1", "home_store_key", "home_store_key", outside)
	left("K2", "home_store_key", "home_store_key", homeKey(w.id("uM0"), w.id("wT1")))
	left("K3", "home_store_key", "home_store_key", "users")
	left("K4", "home_store_key", "home_store_key", "")
	left("S0", "storage_backend", "storage_backend", "docker-volume")
	left("S1", "instance_backend", "instance_backend", "k8s")
	dir := home(left("Y0", "links are not followed"))
	ok(t, os.Remove(dir))
	ok(t, os.Symlink(outside, dir))
	dir = home(left("Y1", "links are not followed"))
	ok(t, os.Remove(dir))
	w.file(dir, "a file")
	dir = filepath.Dir(home(left("Y2", "links are not followed")))
	ok(t, os.RemoveAll(dir))
	ok(t, os.MkdirAll(filepath.Join(outside, "home"), 0o755))
	ok(t, os.Symlink(outside, dir))

	// A container with that name that is not the first version's, or has another home, is not
	// touched, nor is the home.
	labelled := left("V0", "not the first version's: it has the label")
	home(labelled)
	w.run(labelled, true, func(o *client.ContainerCreateOptions) {
		o.Config.Labels = map[string]string{laterLabel: uuid.NewString()}
	})
	bare := left("V1", "nothing mounted")
	home(bare)
	w.run(bare, true, func(o *client.ContainerCreateOptions) { o.HostConfig.Mounts = nil })
	strange := left("V2", "not a path of the first version")
	home(strange)
	w.run(strange, true, func(o *client.ContainerCreateOptions) { o.HostConfig.Mounts[0].Source = outside })
	stale := left("V3", "not the one in the given folder")
	home(stale)
	elsewhere := filepath.Join(outside, homeKey(w.id("uK0"), stale))
	ok(t, os.MkdirAll(elsewhere, 0o755))
	w.run(stale, true, func(o *client.ContainerCreateOptions) { o.HostConfig.Mounts[0].Source = elsewhere })
	before := w.containers()

	fine := w.add("01JFC0000000000000F0"+w.tag, "fine", "STOPPED")
	w.file(filepath.Join(home(fine), "file"), "content")
	unknown := filepath.Join(w.homes, homeKey(w.id("uK0"), "01JFZZZZZZZZZZZZZZZZZZZZZZ"))
	ok(t, os.MkdirAll(unknown, 0o755))
	orphan := filepath.Join(w.homes, homeKey("01JFYYYYYYYYYYYYYYYYYYYYYY", "w"))
	ok(t, os.MkdirAll(orphan, 0o755))
	homes := archivetest.WithoutAtimes(archivetest.Snapshot(t, w.homes))

	report := w.bring()
	for id, reason := range want {
		if r := report.of(t, id); r.Result != arrivals.Left || !strings.Contains(r.Reason, reason) || r.ID != "" {
			t.Errorf("%+v, want it not imported: %s", r, reason)
		}
	}
	if r := report.of(t, fine); r.Result != arrivals.Added {
		t.Errorf("%+v", r)
	}
	w.holds(w.row(report.of(t, fine).ID), homeOf(w, fine))
	unknowns := map[string]bool{}
	for _, r := range report.Workspaces {
		if r.OldID == "" && strings.Contains(r.Reason, "not in the first version's database") {
			unknowns[r.OldName] = true
		}
	}
	equal(t, "homes without a user or a workspace", map[string]bool{unknown: true, orphan: true}, unknowns)
	if report.Left != len(want)+2 {
		t.Errorf("%d not imported, want %d", report.Left, len(want)+2)
	}
	equal(t, "containers", before, w.containers())
	if n := fixture.Query[int](w, `SELECT count(*) FROM workspaces`); n != 1 {
		t.Errorf("%d workspaces", n)
	}
	if d := archivetest.Diff(homes, archivetest.WithoutAtimes(archivetest.Snapshot(t, w.homes))); d != "" {
		t.Errorf("the old homes have changed:\n%s", d)
	}

	// The remedy of the message: an empty folder in place of a missing home without data.
	id := "01JFC0000000000000N0" + w.tag
	home(id)
	if r := w.bring().of(t, id); r.Result != arrivals.Added || r.Home.Entries != 1 {
		t.Errorf("with an empty home: %+v", r)
	}
}

// Unusual but harmless values are imported in a valid form.
func TestImportOddValues(t *testing.T) {
	t.Parallel()
	w := justUsers(t)
	notes := map[string]string{}
	names := map[string]string{}
	odd := func(id, name, becomes, note string, set ...string) string {
		w.add(id, name, "CREATED", set...)
		names[id], notes[id] = becomes, note
		return id
	}
	long := strings.Repeat("긴", 300)
	id := func(n string) string { return "01JFD0000000000000" + n + w.tag }
	odd(id("A0"), long, strings.Repeat("긴", 255), "renamed")
	odd(id("A1"), long, strings.Repeat("긴", 251)+" (2)", "renamed")
	odd(id("A2"), "  two\tlines\nand \u202ebidi ", "two lines and  bidi", "renamed")
	odd(id("A3"), "", "workspace "+id("A3"), "renamed")
	odd(id("A4"), "x", "x", "")
	odd(id("A5"), "x", "x (3)", "renamed")
	odd(id("A6"), "x (2)", "x (2)", "")
	odd(id("A7"), "x", "x (4)", "renamed")
	odd(id("A8"), "de\u0301compose\u0301", "décomposé", "renamed")
	odd(id("B0"), "image", "image", "invalid image reference", "image_ref", "--privileged evil")
	odd(id("B1"), "no image", "no image", "invalid image reference", "image_ref", "")
	odd("not-a-ulid-"+w.tag, "bad id", "bad id", "")
	odd("8ZZZZZZZZZZZZZZZZZZZ"+w.tag, "beyond ULIDs", "beyond ULIDs", "")
	odd(uuid.NewString(), "a UUID", "a UUID", "")
	odd("spaces and ünicode "+w.tag, "no address", "no address", "not redirected")
	deleted := w.add(id("X0"), "x", "STOPPED", "deleted_at", "2026-01-01Z")
	ghost := w.add(id("X1"), "x", "DELETED")

	// The owner has already created a workspace with another one's name.
	w.sql(`DELETE FROM users WHERE username = 'lee'`)
	report := w.bring(func(c *config) { c.First.Source.Workspaces = nil })
	kim := workspace.Caller{UserID: report.user(t, "kim").ID, Username: "kim"}
	_, err := w.DB.CreateWorkspace(t.Context(), kim, postgres.NewWorkspace{
		Name: "x (2)", ImageRef: "i", StorageBackend: workspace.StorageDockerVolume, Desired: workspace.DesiredArchived,
	})
	ok(t, err)
	names[id("A6")], notes[id("A6")] = "x (2) (2)", "renamed"

	report = w.bring()
	if report.Left != 0 {
		t.Errorf("not imported: %+v", report)
	}
	ids := map[string]bool{}
	for old, name := range names {
		r := report.of(t, old)
		joined := strings.Join(r.Notes, "; ")
		if r.Result != arrivals.Added || r.Name != name || w.row(r.ID).Name != name || !strings.Contains(joined, notes[old]) || (notes[old] == "") != (joined == "") {
			t.Errorf("%.40q: %+v, want it as %.40q with a note of %q", old, r, name, notes[old])
		}
		if utf8.RuneCountInString(r.Name) > workspace.MaxName || !workspace.ValidID(r.ID) || ids[r.ID] {
			t.Errorf("%+v", r)
		}
		ids[r.ID] = true
	}
	for _, old := range []string{deleted, ghost} {
		if r := report.of(t, old); r.Result != arrivals.Deleted || r.ID != "" {
			t.Errorf("%+v", r)
		}
	}
	if ref := w.row(report.of(t, id("B0")).ID).ImageRef; ref != "codehub/workspace:latest" {
		t.Errorf("image %q", ref)
	}
	if n := len(w.bring().Workspaces); n != len(names)+2 {
		t.Errorf("%d workspaces the second time", n)
	}
}

func TestImage(t *testing.T) {
	t.Parallel()
	w := justUsers(t)
	id := w.add("01JFE0000000000000A0"+w.tag, "x", "CREATED")
	report := w.bring(func(c *config) { c.Image = "example.org/image:1" })
	if ref := w.row(report.of(t, id).ID).ImageRef; ref != "example.org/image:1" {
		t.Errorf("image %q", ref)
	}
}

// Users are matched by name, and different users are never confused.
func TestUsers(t *testing.T) {
	t.Parallel()
	w := justUsers(t)
	w.sql(`UPDATE users SET created_at = created_at - interval '1 year'`) // the oldest users keep their names
	const decomposed = "\u1112\u1161\u11ab\u1100\u1173\u11af"             // the same name, decomposed
	n := 0
	for _, name := range []string{"Kim", "two words", "two-words", " -odd- ", "한글", decomposed, "!!!", strings.Repeat("x", 80), "KIM", "operator"} {
		n++
		w.sql(`INSERT INTO users VALUES ($1, $2, '!', now() + $3 * interval '1 s', 0)`, "01JFA00000000000000"+string(rune('A'+n))+w.tag, name, n)
	}
	id := w.add("01JFE0000000000000A0"+w.tag, "of operator", "CREATED", "owner_user_id", query[string](w, `SELECT id FROM users WHERE username = 'operator'`))
	w.sql(`UPDATE workspaces SET home_store_key = 'users/' || owner_user_id || '/workspaces/' || id || '/home'`)
	check := func(report Report, want map[string]string) {
		t.Helper()
		got := map[string]string{}
		for _, u := range report.Users {
			got[u.OldName] = u.Result + " " + u.Username
			if u.Result == arrivals.Left {
				got[u.OldName] = arrivals.Left
			} else if here, err := w.DB.UserByName(t.Context(), u.Username); err != nil || here.ID != u.ID {
				t.Errorf("%+v is %+v, %v", u, here, err)
			}
		}
		equal(t, "users", want, got)
	}
	want := map[string]string{
		"admin": "added admin", "kim": "added kim", "lee": "added lee",
		"Kim": "added Kim-2", "two words": "added two-words", "two-words": "added two-words-2", " -odd- ": "added odd-",
		"한글": "added 한글", decomposed: "added 한글-2", "!!!": arrivals.Left, strings.Repeat("x", 80): "added " + strings.Repeat("x", 64),
		"KIM": "added KIM-3", "operator": arrivals.Left,
	}
	planned := w.bring(func(c *config) { c.DryRun = true })
	report := w.bring()
	check(report, want)
	equal(t, "the dry run and the import", planned.plain(), report.plain())
	if r := report.of(t, id); r.Result != arrivals.Left || !strings.HasPrefix(r.Reason, "its owner was not imported") {
		t.Errorf("%+v", r)
	}
	if u := report.user(t, "operator"); !strings.Contains(u.Reason, "--join-users") {
		t.Errorf("%+v", u)
	}
	if u := report.user(t, "kim"); len(u.Notes) != 1 || !strings.Contains(u.Notes[0], "set a new password") {
		t.Errorf("%+v", u)
	}

	for name := range want {
		want[name] = strings.Replace(want[name], "added", "already", 1)
	}
	want["operator"] = "joined operator"
	report = w.bring(func(c *config) { c.JoinUsers = true })
	check(report, want)
	want["operator"] = "already operator"
	check(w.bring(), want)
	operator, err := w.DB.UserByName(t.Context(), "operator")
	ok(t, err)
	if ws := w.row(report.of(t, id).ID); ws.OwnerID != operator.ID {
		t.Errorf("the workspace belongs to %s", ws.OwnerID)
	}
	// Users that were removed here are not imported again, nor are their workspaces.
	w.Exec(`DELETE FROM users WHERE username = 'lee'`)
	want["lee"] = arrivals.Left
	check(w.bring(), want)
}

// The first version has no administrators.
func TestAdministrators(t *testing.T) {
	t.Parallel()
	w := peopledWorld(t)
	w.sql(`DELETE FROM workspaces`)
	w.Exec(`UPDATE users SET admin = false`)
	refused := func(why string, change ...func(*config)) {
		t.Helper()
		c := w.config()
		for _, f := range change {
			f(&c)
		}
		_, err := c.bring(t.Context())
		if err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want %q", err, why)
		}
		if n := fixture.Query[int](w, `SELECT count(*) FROM users`); n != 1 {
			t.Errorf("%d users", n)
		}
	}
	named := func(name string) func(*config) { return func(c *config) { c.Admin = name } }
	refused("no administrator yet")
	refused("no user", named("KIM"))

	report := w.bring(named("admin"))
	if u := report.user(t, "admin"); u.Result != arrivals.Left || !strings.Contains(u.Reason, "must not have") {
		t.Errorf("%+v", u)
	}
	report = w.bring(named("kim"))
	u, err := w.DB.UserByName(t.Context(), "kim")
	if err != nil || !u.Admin || !report.user(t, "kim").Admin || report.user(t, "lee").Admin {
		t.Errorf("kim: %+v, %v", u, err)
	}
	// A user of an earlier run can become one; other users do not.
	if u := w.bring(named("lee")).user(t, "lee"); u.Result != arrivals.Already || !u.Admin {
		t.Errorf("%+v", u)
	}
	if n := fixture.Query[int](w, `SELECT count(*) FROM users WHERE admin`); n != 2 {
		t.Errorf("%d administrators", n)
	}
}

// Missing prerequisites are found before anything is changed.
func TestImportChecksPrerequisites(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.allHomes()
	for why, change := range map[string]func(*config){
		"no such file":        func(c *config) { c.First.Homes = filepath.Join(w.homes, "not there") },
		"is not a folder":     func(c *config) { c.First.Homes = filepath.Join(homeOf(w, w.id("wT0")), ".bashrc") },
		"has no folder users": func(c *config) { c.First.Homes = filepath.Join(w.homes, "users") },
		"list the old containers": func(c *config) {
			down, err := client.New(client.WithHost("unix://" + filepath.Join(t.TempDir(), "none.sock")))
			ok(t, err)
			c.First.Docker = down
		},
	} {
		c := w.config()
		change(&c)
		if report, err := c.bring(t.Context()); err == nil || !strings.Contains(err.Error(), why) || len(report.Workspaces) != 0 {
			t.Errorf("%v, want %q", err, why)
		}
	}
	if n := fixture.Query[int](w, `SELECT count(*) FROM users`); n != 1 {
		t.Errorf("%d users", n)
	}
}

func TestSourceMustBeFirstVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for what, dsn := range map[string]string{"this one": w.DSN, "an empty one": pgtest.New(t, nil)} {
		if _, err := ReadSource(t.Context(), dsn); !errors.Is(err, ErrNotFirstVersion) {
			t.Errorf("%s: %v", what, err)
		}
		if holds, err := IsFirstVersion(t.Context(), dsn); holds || err != nil {
			t.Errorf("%s: %v, %v", what, holds, err)
		}
	}
	if holds, err := IsFirstVersion(t.Context(), w.from); !holds || err != nil {
		t.Errorf("the first version: %v, %v", holds, err)
	}
	w.sql(`ALTER TABLE workspaces ADD COLUMN operation text, ADD COLUMN desired_state text`) // 004
	if _, err := ReadSource(t.Context(), w.from); !errors.Is(err, ErrNotFirstVersion) {
		t.Errorf("the version after it: %v", err)
	}
}

// The import warns if the first version still runs.
func TestImportWarnsOfConnections(t *testing.T) {
	t.Parallel()
	w := justUsers(t)
	other, err := postgres.Open(t.Context(), w.from, postgres.Options{})
	ok(t, err)
	defer other.Close()
	if r := w.bring(); len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "stop it and run the import again") {
		t.Errorf("warnings: %q", r.Warnings)
	}
}

// A paused container, and one that ignores SIGTERM.
func TestImportStopsPausedContainers(t *testing.T) {
	t.Parallel()
	w := smallWorld(t)
	_, err := w.docker.ContainerPause(t.Context(), "codehub-ws-"+w.id("wR0"), client.ContainerPauseOptions{})
	ok(t, err)
	w.run(w.id("wT1"), true, func(o *client.ContainerCreateOptions) {
		o.Config.Env = append(o.Config.Env, "TESTSERVER_IGNORE_TERM=1")
		o.HostConfig.Mounts = []mount.Mount{{Type: mount.TypeBind, Source: homeOf(w, w.id("wT1")), Target: homeMount}}
	})
	w.checkFinished("wR0", "wT0", "wT1")
}
