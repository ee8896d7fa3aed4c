package move_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"codehub/client"
	"codehub/internal/archive"
	"codehub/internal/arrivals"
	"codehub/internal/arrivals/move"
	"codehub/internal/control/admin"
	"codehub/internal/postgres"
	"codehub/internal/running/service"
	"codehub/internal/storage/bucket"
	"codehub/internal/storage/store"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/harness/web"
	"codehub/internal/testing/pgtest"
	"codehub/internal/users/auth"
	"codehub/internal/web/httpapi"
	"codehub/internal/workspace"
	"codehub/internal/workspace/imageref"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const secret = "s3cret-value"

// world is two installations without Docker: a source with its API, whose workspaces the
// test archives, and a target.
type world struct {
	testing.TB
	source       *web.Server
	sourceBucket *bucket.Bucket
	admin        workspace.Caller // of the source
	users        map[string]workspace.Caller
	via          *faults

	*fixture.Database // the target's
	bucket            *bucket.Bucket
	cfg               config
	log               *harness.Log
}

// newWorld has the users ann and bob at the source, and moves allowed there.
func newWorld(t testing.TB, target store.Store, limits postgres.Limits) *world {
	t.Helper()
	w := &world{TB: t, users: map[string]workspace.Caller{}, log: &harness.Log{}, via: &faults{}}
	log := slog.New(slog.NewTextHandler(w.log, nil))
	database := fixture.NewDatabase(t, postgres.Options{})
	from, err := database.DB.Installation(t.Context())
	check(t, err)
	w.sourceBucket = fixture.OpenBucket(t, fixture.NewFolder(t), from)
	check(t, w.sourceBucket.Check(t.Context(), false))
	w.source = serve(t, database, w.sourceBucket, log)
	w.admin = w.source.AddAccount("root", "correct horse", true)
	for _, name := range []string{"ann", "bob"} {
		w.users[name] = w.source.AddAccount(name, "correct horse", false)
	}
	_, err = w.source.DB.AllowMoves(t.Context(), time.Hour)
	check(t, err)

	w.Database = fixture.NewDatabase(t, postgres.Options{Limits: limits, Log: log})
	_, err = w.DB.CreateUser(t.Context(), postgres.User{Username: "operator", PasswordHash: "!", Admin: true})
	check(t, err)
	to, err := w.DB.Installation(t.Context())
	check(t, err)
	w.bucket = fixture.OpenBucket(t, target, to)
	check(t, w.bucket.Check(t.Context(), false))
	images, err := imageref.ParseAllowed("codehub/*, other/*", "codehub/workspace:latest")
	check(t, err)
	w.cfg = config{
		here:  here{DB: w.DB, Bucket: w.bucket, Storage: workspace.StorageLocalDir, Images: images, Log: log},
		there: there{Client: w.client(w.source, w.admin), Poll: time.Millisecond},
	}
	return w
}

// config configures an import from another installation.
type config struct {
	here
	there
	Step func(step string)
}

type (
	here  = arrivals.Config
	there = move.Config
)

func (c config) run(ctx context.Context) (arrivals.Report, error) {
	c.Source = move.New(c.there)
	c.here.Step = func(step string) error {
		if c.Step != nil {
			c.Step(step)
		}
		return nil
	}
	return arrivals.Run(ctx, c.here)
}

// serve serves the API of an installation.
func serve(t testing.TB, database *fixture.Database, b *bucket.Bucket, log *slog.Logger) *web.Server {
	t.Helper()
	s := web.New(t, database, log)
	s.Serve(httpapi.Outer(log, httpapi.NewMetrics(), s.Streams, httpapi.New(httpapi.Config{
		Settings: service.Settings{URL: s.URL}, Archives: b, Store: s.DB, Auth: s.Auth, Hub: s.Hub, Log: log,
		Admin: admin.New(admin.Config{Store: s.DB, Passwords: s.Auth}),
	})))
	return s
}

// client returns a client of a server with a token of a user.
func (w *world) client(of *web.Server, who workspace.Caller) *client.Client {
	w.Helper()
	_, token, err := of.Auth.CreateToken(w.Context(), auth.Identity{Caller: who}, "move", nil, auth.TokenLimits{})
	check(w, err)
	c, err := client.New(of.HTTP.URL, token, client.WithHTTPClient(&http.Client{Transport: w.via}))
	check(w, err)
	return c
}

// archived makes an archived workspace at the source.
func (w *world) archived(owner, name, content string) workspace.ID {
	w.Helper()
	standby, archived := 600, 1200
	ws := w.source.AddWorkspace(w.users[owner], name, func(n *postgres.NewWorkspace) {
		n.Desired, n.Description, n.Memo, n.TimeZone = workspace.DesiredArchived, "about "+name, "notes", "Europe/Berlin"
		n.Env, n.StandbyTTL, n.ArchiveTTL = map[string]string{"TOKEN": secret, "A": "1"}, &standby, &archived
	})
	w.source.Change(`UPDATE workspaces SET awake_while_working = true, last_access_at = created_at, last_access_kind = 'open',
		created_at = created_at - interval '30 days' WHERE id = $1`, ws.ID)
	w.archive(ws.ID, content)
	return ws.ID
}

// archive completes the archiving of a workspace at the source.
func (w *world) archive(id workspace.ID, content string) {
	w.Helper()
	op := uuid.Must(uuid.NewV7()).String()
	key := w.sourceBucket.Key(id, op)
	meta := &archive.Meta{
		CodehubVersion: "older", WorkspaceID: string(id), WorkspaceName: "x", Owner: "x", ArchiveOpID: op, CreatedAt: time.Now().UTC().Add(-240 * time.Hour).Truncate(time.Second),
	}
	fixture.PutArchive(w, w.sourceBucket.Store, key, meta, content)
	w.source.Change(`UPDATE workspaces SET phase = 'ARCHIVED', desired_state = 'ARCHIVED', next_desired_state = NULL, operation = 'NONE', op_id = NULL,
		archive_op_id = $2, archive_key = $3, archive_digest = $4, archive_size = $5 WHERE id = $1`, id, op, key, meta.SHA256, meta.Size)
}

// run moves with changes to the configuration.
func (w *world) run(change ...func(*config)) arrivals.Report {
	w.Helper()
	r, err := w.try(w.Context(), change...)
	check(w, err)
	return r
}

func (w *world) try(ctx context.Context, change ...func(*config)) (arrivals.Report, error) {
	cfg := w.cfg
	for _, f := range change {
		f(&cfg)
	}
	return cfg.run(ctx)
}

func remove(c *config) { c.Remove = true }
func dryRun(c *config) { c.DryRun = true }
func join(c *config)   { c.JoinUsers = true }

// state is all that both installations hold, as text.
func (w *world) state() string {
	w.Helper()
	tables := []string{"users", "workspaces", "archives", "arrivals", "audit_log"}
	return w.Rows(tables...) + w.source.Rows(tables...) + strings.Join(w.objects(w.bucket), "\n") + strings.Join(w.objects(w.sourceBucket), "\n")
}

// objects lists the objects of an installation without its mark.
func (w *world) objects(b *bucket.Bucket) (keys []string) {
	w.Helper()
	list, err := b.List(w.Context())
	check(w, err)
	for _, o := range list {
		keys = append(keys, o.Key)
	}
	return keys
}

// content reads an object.
func (w *world) content(b *bucket.Bucket, key string) []byte {
	w.Helper()
	r, err := b.Store.Get(w.Context(), key, 0)
	check(w, err)
	defer r.Close()
	var out bytes.Buffer
	_, err = out.ReadFrom(r)
	check(w, err)
	return out.Bytes()
}

// here reads a workspace of the target.
func (w *world) here(id workspace.ID) (workspace.Workspace, bool) {
	w.Helper()
	ws, err := w.DB.Workspace(w.Context(), workspace.System, id)
	if workspace.CodeOf(err) == workspace.CodeNotFound {
		return ws, false
	}
	check(w, err)
	return ws, true
}

// deletedThere reports whether a workspace is deleted at the source.
func (w *world) deletedThere(id workspace.ID) bool {
	w.Helper()
	return fixture.Query[bool](w.source, `SELECT deleted_at IS NOT NULL FROM workspaces WHERE id = $1`, id)
}

// expectMoved checks that the target has exactly these workspaces, each once and the same as
// at the source, and nothing else of them.
func (w *world) expectMoved(ids ...workspace.ID) {
	w.Helper()
	var keys []string
	for _, id := range ids {
		ws, ok := w.here(id)
		if !ok {
			w.Errorf("%s is not here", id)
			continue
		}
		old, err := w.source.DB.Workspace(w.Context(), workspace.System, id)
		check(w, err)
		pairs := map[string][2]any{
			"image": {old.ImageRef, ws.ImageRef},
			"env":   {fmt.Sprint(old.Env), fmt.Sprint(ws.Env)}, "time zone": {old.TimeZone, ws.TimeZone}, "stop": {*old.StandbyTTL, *ws.StandbyTTL}, "archive": {*old.ArchiveTTL, *ws.ArchiveTTL},
			"awake": {old.AwakeWhileWorking, ws.AwakeWhileWorking}, "created": {old.CreatedAt.UTC(), ws.CreatedAt.UTC()}, "use": {old.LastAccessAt.UTC(), ws.LastAccessAt.UTC()},
			"kind of use": {old.LastAccess, ws.LastAccess}, "digest": {old.ArchiveDigest, ws.ArchiveDigest}, "size": {old.ArchiveSize, ws.ArchiveSize},
			"desired state": {workspace.DesiredArchived, ws.DesiredState}, "storage": {workspace.StorageLocalDir, ws.StorageBackend},
		}
		for _, d := range workspace.Texts {
			if *d.Current(&old) == "" {
				w.Errorf("the workspaces of this test have no %s", d.Name)
			}
			pairs[d.Name] = [2]any{*d.Current(&old), *d.Current(&ws)}
		}
		for what, pair := range pairs {
			if pair[0] != pair[1] {
				w.Errorf("%s of %s: %v, want %v", what, old.Name, pair[1], pair[0])
			}
		}
		if !bytes.Equal(w.content(w.sourceBucket, old.ArchiveKey), w.content(w.bucket, ws.ArchiveKey)) {
			w.Errorf("the archives of %s differ", old.Name)
		}
		meta, err := w.bucket.Meta(w.Context(), ws.ArchiveKey)
		check(w, err)
		if meta.CodehubVersion != "older" || meta.WorkspaceName != old.Name || time.Since(meta.CreatedAt) > time.Hour {
			w.Errorf("%+v", meta)
		}
		keys = append(keys, ws.ArchiveKey, archive.MetaKey(ws.ArchiveKey))
	}
	slices.Sort(keys)
	if got := w.objects(w.bucket); !slices.Equal(keys, got) {
		w.Errorf("objects in the bucket: %v, want %v", got, keys)
	}
	for query, want := range map[string]int{
		`SELECT count(*) FROM workspaces`:                                                                      len(ids),
		`SELECT count(*) FROM archives`:                                                                        len(ids),
		`SELECT count(*) FROM archives WHERE created_at < now() - interval '1 hour'`:                           0,
		`SELECT count(*) FROM workspaces WHERE archive_key NOT IN (SELECT key FROM archives)`:                  0,
		`SELECT count(*) FROM arrivals WHERE kind = 'workspace' AND (arrived_at IS NULL OR abandoned <> '{}')`: 0,
		`SELECT count(*) FROM audit_log WHERE action = 'workspace.import'`:                                     len(ids),
	} {
		if got := fixture.Query[int](w, query); got != want {
			w.Errorf("%s: %d, want %d", query, got, want)
		}
	}
}

// expectNothing checks that the target has no workspace and no object.
func (w *world) expectNothing() {
	w.Helper()
	if n := fixture.Query[int](w, `SELECT count(*) FROM workspaces`); n != 0 || len(w.objects(w.bucket)) != 0 {
		w.Errorf("%d workspaces and the objects %v", n, w.objects(w.bucket))
	}
}

// of returns the result for a workspace.
func of(t testing.TB, r arrivals.Report, id workspace.ID) arrivals.Workspace {
	t.Helper()
	i := slices.IndexFunc(r.Workspaces, func(w arrivals.Workspace) bool { return w.OldID == string(id) })
	if i < 0 {
		t.Fatalf("%s is not in the report %+v", id, r)
	}
	return r.Workspaces[i]
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// noise is content that does not compress.
func noise(n int) string {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(b)
	return string(b)
}
