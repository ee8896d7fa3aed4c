package importm1

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/archive"
	"codehub/internal/arrivals"
	"codehub/internal/postgres"
	"codehub/internal/storage/bucket"
	"codehub/internal/storage/store"
	"codehub/internal/testing/archivetest"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/pgtest"
	"codehub/internal/workspace"
)

const childEnv = "IMPORTM1_TEST_CHILD"

// TestMain is also the program that the tests can kill: an import as childEnv
// describes it.
func TestMain(m *testing.M) {
	if spec := os.Getenv(childEnv); spec != "" {
		os.Exit(child(spec))
	}
	pgtest.Main(m)
}

// world is a first version with its database, homes and containers, and an
// installation that they are to come to.
type world struct {
	testing.TB
	tag    string // in all ids
	from   string // address of its database
	homes  string
	docker *client.Client

	*fixture.Database // the installation's
	bucket            *bucket.Bucket
	limits            postgres.Limits
}

// newWorld has the rows of testdata, without homes and containers, and an
// empty installation that has an administrator. Its passwords cannot be
// verified, which would take the tests most of their time.
func newWorld(t testing.TB) *world {
	t.Helper()
	w := peopledWorld(t)
	w.sql(`UPDATE users SET password_hash = '!'`)
	return w
}

// peopledWorld is one with real passwords.
func peopledWorld(t testing.TB) *world {
	t.Helper()
	w := emptyWorld(t)
	w.sql(w.tagged(testdata(t, "m1_rows.sql")))
	return w
}

func emptyWorld(t testing.TB) *world {
	t.Helper()
	harness.NeedsDocker(t)
	w := &world{
		TB: t, tag: strings.NewReplacer("I", "1", "L", "2", "O", "3", "U", "4").Replace(rand.Text()[:6]),
		from:  pgtest.New(t, nil),
		homes: filepath.Join(t.TempDir(), "homes"), limits: postgres.Limits{PerUser: 2, Global: 100},
	}
	ok(t, os.MkdirAll(filepath.Join(w.homes, "users"), 0o755))
	w.sql(testdata(t, "m1_schema.sql"))
	var err error
	w.docker, err = client.New(client.FromEnv)
	ok(t, err)
	t.Cleanup(func() { _ = w.docker.Close() })
	w.Database = fixture.NewDatabase(t, postgres.Options{Limits: w.limits})
	_, err = w.DB.CreateUser(t.Context(), postgres.User{Username: "operator", PasswordHash: "!", Admin: true})
	ok(t, err)
	w.bucket = folderBucket(t, w.DB, filepath.Join(t.TempDir(), "archives"))
	return w
}

func folderBucket(t testing.TB, db *postgres.DB, dir string) *bucket.Bucket {
	t.Helper()
	b, err := openFolder(t.Context(), db, dir)
	ok(t, err)
	return b
}

func openFolder(ctx context.Context, db *postgres.DB, dir string) (*bucket.Bucket, error) {
	installation, err := db.Installation(ctx)
	if err != nil {
		return nil, err
	}
	b, err := bucket.New(bucket.Config{
		Store: store.NewFolder(dir), Installation: installation, Version: "test", Folder: dir, HostFolder: dir,
	})
	if err != nil {
		return nil, err
	}
	return b, b.Check(ctx, false)
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func testdata(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	ok(t, err)
	return string(b)
}

func (w *world) tagged(s string) string { return strings.ReplaceAll(s, "@", w.tag) }

// id is the id that begins so.
func (w *world) id(short string) string {
	id := map[byte]string{'u': "01JFA0000000000000", 'w': "01JFB0000000000000"}[short[0]] + short[1:] + w.tag
	if len(id) != 26 {
		w.Fatalf("%s is no id", id)
	}
	return id
}

// sql runs a statement on the first version's database, on a connection of its
// own: an import warns of connections that stay.
func (w *world) sql(sql string, args ...any) {
	w.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, w.from)
	ok(w, err)
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql, args...)
	ok(w, err)
}

// query returns the one value that a query of the first version's database yields.
func query[T any](w *world, sql string, args ...any) (v T) {
	w.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, w.from)
	ok(w, err)
	defer conn.Close(ctx)
	ok(w, conn.QueryRow(ctx, sql, args...).Scan(&v))
	return v
}

// dump is the content of the first version's database, to see whether it changes.
func (w *world) dump() string {
	w.Helper()
	var b strings.Builder
	for _, table := range []string{"users", "sessions", "workspaces", "alembic_version"} {
		b.WriteString(query[string](w, `SELECT COALESCE(string_agg(t::text, E'\n' ORDER BY t::text), '') FROM `+table+` t`) + "\n")
	}
	return b.String()
}

// home makes the home of a workspace; fill is given its folder.
func (w *world) home(id string, fill func(dir string)) string {
	w.Helper()
	key := query[string](w, `SELECT home_store_key FROM workspaces WHERE id = $1`, id)
	dir := filepath.Join(w.homes, key)
	ok(w, os.MkdirAll(dir, 0o755))
	ok(w, os.Chown(dir, 1000, 1000))
	if fill != nil {
		fill(dir)
	}
	return dir
}

func (w *world) file(path, content string) {
	w.Helper()
	ok(w, os.WriteFile(path, []byte(content), 0o640))
	ok(w, os.Chown(path, 1000, 1000))
}

// allHomes gives every workspace of the rows that was ever started a home.
func (w *world) allHomes() {
	for _, short := range []string{"wP0", "wR0", "wG0", "wT0", "wD0", "wE0", "wX0", "wT1"} {
		w.home(w.id(short), func(dir string) { w.file(filepath.Join(dir, ".bashrc"), "# of "+short) })
	}
}

// run makes the container that the first version would have for a workspace.
func (w *world) run(id string, running bool, change ...func(*client.ContainerCreateOptions)) string {
	w.Helper()
	ctx := w.Context()
	home := filepath.Join(w.homes, query[string](w, `SELECT home_store_key FROM workspaces WHERE id = $1`, id))
	o := client.ContainerCreateOptions{
		Name:   "codehub-ws-" + id,
		Config: &container.Config{Image: harness.TestImage(), User: "1000:1000", Env: []string{"HOME=" + homeMount}},
		HostConfig: &container.HostConfig{
			NetworkMode: "none",
			Mounts:      []mount.Mount{{Type: mount.TypeBind, Source: home, Target: homeMount}},
		},
	}
	for _, f := range change {
		f(&o)
	}
	made, err := w.docker.ContainerCreate(ctx, o)
	ok(w, err)
	w.Cleanup(func() {
		_, _ = w.docker.ContainerRemove(context.Background(), made.ID, client.ContainerRemoveOptions{Force: true})
	})
	if running {
		w.start(made.ID)
	}
	return made.ID
}

func (w *world) start(container string) {
	w.Helper()
	_, err := w.docker.ContainerStart(w.Context(), container, client.ContainerStartOptions{})
	ok(w, err)
}

// containers says of each workspace that has a container what it does.
func (w *world) containers() map[string]string {
	w.Helper()
	list, err := w.docker.ContainerList(w.Context(), client.ContainerListOptions{
		All: true, Filters: client.Filters{}.Add("name", w.tag),
	})
	ok(w, err)
	by := map[string]string{}
	for _, c := range list.Items {
		by[strings.TrimPrefix(c.Names[0], "/codehub-ws-")] = string(c.State)
	}
	return by
}

// config configures an import of the first version.
type config struct {
	arrivals.Config
	First Config
}

func (c config) bring(ctx context.Context) (Report, error) {
	c.Source = New(c.First)
	r, err := arrivals.Run(ctx, c.Config)
	return Report{r}, err
}

// Report is a report with what the tests look up in it.
type Report struct{ arrivals.Report }

// plain is the report without what a dry run cannot have.
func (r Report) plain() Report {
	r.DryRun = true
	r.Users, r.Workspaces = slices.Clone(r.Users), slices.Clone(r.Workspaces)
	for i := range r.Users {
		r.Users[i].ID = ""
	}
	for i := range r.Workspaces {
		r.Workspaces[i].ID, r.Workspaces[i].Home, r.Workspaces[i].Source = "", nil, ""
	}
	return r
}

func (w *world) config() config {
	w.Helper()
	c, err := configOf(w.Context(), w.from, w.homes, w.docker, w.DB, w.bucket)
	ok(w, err)
	c.Log = slog.New(slog.DiscardHandler)
	return c
}

func configOf(ctx context.Context, from, homes string, docker *client.Client, db *postgres.DB, b *bucket.Bucket) (config, error) {
	source, err := ReadSource(ctx, from)
	return config{
		First: Config{Source: source, Homes: homes, Docker: docker},
		Config: arrivals.Config{
			DB: db, Bucket: b, Storage: workspace.StorageDockerVolume, DefaultImage: "codehub/workspace:latest",
			Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		},
	}, err
}

// bring runs an import to its end.
func (w *world) bring(change ...func(*config)) Report {
	w.Helper()
	c := w.config()
	for _, f := range change {
		f(&c)
	}
	report, err := c.bring(w.Context())
	if err != nil {
		w.Fatalf("%v\n%+v", err, report)
	}
	return report
}

// results is what became of each workspace.
func results(r Report) map[string]string {
	by := map[string]string{}
	for _, w := range r.Workspaces {
		by[w.OldID] = w.Result
	}
	return by
}

func (r Report) of(t testing.TB, id string) arrivals.Workspace {
	t.Helper()
	i := slices.IndexFunc(r.Workspaces, func(w arrivals.Workspace) bool { return w.OldID == id })
	if i < 0 {
		t.Fatalf("nothing is said of %s", id)
	}
	return r.Workspaces[i]
}

func (r Report) user(t testing.TB, name string) arrivals.User {
	t.Helper()
	i := slices.IndexFunc(r.Users, func(u arrivals.User) bool { return u.OldName == name })
	if i < 0 {
		t.Fatalf("nothing is said of %s", name)
	}
	return r.Users[i]
}

// row is a workspace in the installation's database.
func (w *world) row(id string) workspace.Workspace {
	w.Helper()
	ws, err := w.DB.Workspace(w.Context(), workspace.System, workspace.ID(id))
	ok(w, err)
	return ws
}

// holds checks that the archive of a workspace is complete, and of exactly the
// home.
func (w *world) holds(ws workspace.Workspace, home string) {
	w.Helper()
	meta, err := w.bucket.ReadBack(w.Context(), ws.ArchiveKey, w.stats(ws), nil)
	if err != nil {
		w.Errorf("%s: %v", ws.Name, err)
		return
	}
	object, err := w.bucket.Open(w.Context(), ws.ArchiveKey, 0)
	ok(w, err)
	defer object.Close()
	dir := filepath.Join(w.TempDir(), "unpacked")
	ok(w, os.Mkdir(dir, 0o700))
	_, err = archive.Unpack(w.Context(), object, dir, archive.UnpackOptions{Expect: meta})
	ok(w, err)
	before, after := archivetest.Snapshot(w, home), archivetest.Snapshot(w, dir)
	if d := archivetest.Diff(archivetest.WithoutAtimes(before), archivetest.WithoutAtimes(after)); d != "" {
		w.Errorf("%s is not the home that it was:\n%s", ws.Name, d)
	}
}

// stats is what the bucket's .meta says, held against the row.
func (w *world) stats(ws workspace.Workspace) archive.Stats {
	w.Helper()
	meta, err := w.bucket.Meta(w.Context(), ws.ArchiveKey)
	ok(w, err)
	entries := fixture.Query[int64](w, `SELECT entries FROM archives WHERE key = $1`, ws.ArchiveKey)
	if meta.SHA256 != ws.ArchiveDigest || meta.Size != ws.ArchiveSize || meta.Entries != entries {
		w.Errorf("%s: the rows have %s %d %d, the bucket %+v", ws.Name, ws.ArchiveDigest, ws.ArchiveSize, entries, meta)
	}
	return archive.Stats{SHA256: meta.SHA256, Size: meta.Size, Entries: meta.Entries, Bytes: meta.Bytes, Skipped: meta.Skipped}
}

// objects are all keys in the bucket, and all files of uploads under way.
func (w *world) objects() []string {
	w.Helper()
	var found []string
	ok(w, filepath.WalkDir(w.bucket.Folder, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !strings.Contains(path, "codehub.json") && strings.Contains(path, w.bucket.Installation) {
			found = append(found, strings.TrimPrefix(path, w.bucket.Folder+"/"))
		}
		return err
	}))
	return found
}

// spec describes an import in another process.
type spec struct {
	From, Homes, DSN, Folder string
	Limits                   postgres.Limits
	Nth                      int // the step after which it is killed
}

// child is the other process.
func child(encoded string) int {
	var s spec
	ctx := context.Background()
	err := json.Unmarshal([]byte(encoded), &s)
	if err == nil {
		err = importOf(ctx, s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func importOf(ctx context.Context, s spec) error {
	db, err := postgres.Open(ctx, s.DSN, postgres.Options{Limits: s.Limits})
	if err != nil {
		return err
	}
	defer db.Close()
	b, err := openFolder(ctx, db, s.Folder)
	if err != nil {
		return err
	}
	docker, err := client.New(client.FromEnv)
	if err != nil {
		return err
	}
	c, err := configOf(ctx, s.From, s.Homes, docker, db, b)
	if err != nil {
		return err
	}
	n := 0
	c.Step = func(string) error {
		if n++; n == s.Nth {
			if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
				return err
			}
			select {}
		}
		return nil
	}
	report, err := c.bring(ctx)
	if err == nil && report.Left > 0 {
		err = fmt.Errorf("%d left: %+v", report.Left, report)
	}
	return err
}

// apart runs an import in a process of its own and reports whether it was
// killed; any other end than that or success fails the test.
func (w *world) apart(s spec) (killed bool) {
	w.Helper()
	s.From, s.Homes, s.DSN, s.Folder, s.Limits = w.from, w.homes, w.DSN, w.bucket.Folder, w.limits
	encoded, err := json.Marshal(s)
	ok(w, err)
	ctx, cancel := context.WithTimeout(w.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"="+string(encoded))
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	err = cmd.Run()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		if status, isWait := ended.Sys().(syscall.WaitStatus); isWait && status.Signaled() && ctx.Err() == nil {
			return true
		}
	}
	if err != nil {
		w.Fatalf("the import: %v\n%s", err, said.String())
	}
	return false
}

func equal(t testing.TB, what string, want, got any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}
