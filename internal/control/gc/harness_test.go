package gc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"codehub/internal/archive"
	"codehub/internal/control/gc"
	"codehub/internal/control/mark"
	"codehub/internal/postgres"
	"codehub/internal/storage/bucket"
	"codehub/internal/storage/store"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/pgtest"
	"codehub/internal/testing/runtimetest"
	"codehub/internal/workspace"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const (
	grace = 2 * time.Hour
	delay = 2 * time.Hour
)

// world is an installation: a database, its part of a bucket, and a leader's
// session.
type world struct {
	testing.TB
	*fixture.Database
	ctrl    *postgres.Controller
	bucket  *bucket.Bucket
	store   *faultyStore
	user    workspace.Caller
	set     gc.Settings
	session postgres.Session
	docker  *runtimetest.Fake
}

// newWorld creates an installation in a folder, or in the given store.
func newWorld(t testing.TB, shared store.Store) *world {
	t.Helper()
	w := &world{
		TB: t, Database: fixture.NewDatabase(t, postgres.Options{}),
		set: gc.Settings{DeleteGrace: grace, Delay: delay, Keep: 1}, docker: runtimetest.NewFake(),
	}
	w.ctrl = w.Controller()
	w.session = w.ctrl
	id, err := w.DB.Installation(t.Context())
	check(t, err)
	if shared == nil {
		shared = fixture.NewFolder(t)
	}
	w.bucket, w.store = openBucket(t, shared, id)
	w.user = w.AddUser("ann")
	return w
}

func openBucket(t testing.TB, under store.Store, installation string) (*bucket.Bucket, *faultyStore) {
	t.Helper()
	s := &faultyStore{Store: under}
	var faulty store.Store
	switch under := under.(type) {
	case fixture.Folder:
		faulty = folderStore{s, under}
	case store.Presigner:
		faulty = s3Store{s, under}
	}
	b := fixture.OpenBucket(t, faulty, installation)
	check(t, b.Check(t.Context(), false))
	return b, s
}

// faultyStore fails where a test sets it, and records deletions.
type faultyStore struct {
	store.Store
	listed      func() // after a listing
	listFailsAt int    // objects; 0: never
	deleteFails func(key string) bool
	getFails    func(key string) bool
	deleted     []string
}

type (
	folderStore struct {
		*faultyStore
		folderMaker
	}
	folderMaker interface {
		MakeFolder(ctx context.Context, key string) error
	}
	s3Store struct {
		*faultyStore
		store.Presigner
	}
)

func (s *faultyStore) List(ctx context.Context, prefix string) iter.Seq2[store.Object, error] {
	return func(yield func(store.Object, error) bool) {
		n := 0
		for o, err := range s.Store.List(ctx, prefix) {
			if n++; s.listFailsAt > 0 && n >= s.listFailsAt {
				yield(store.Object{}, fmt.Errorf("list: %w", store.ErrUnavailable))
				return
			}
			if !yield(o, err) {
				return
			}
		}
		if s.listed != nil {
			s.listed()
		}
	}
}

func (s *faultyStore) Get(ctx context.Context, key string, offset int64) (io.ReadCloser, error) {
	if s.getFails != nil && s.getFails(key) {
		return nil, fmt.Errorf("get: %w", store.ErrUnavailable)
	}
	return s.Store.Get(ctx, key, offset)
}

func (s *faultyStore) Delete(ctx context.Context, key string) error {
	if s.deleteFails != nil && s.deleteFails(key) {
		return fmt.Errorf("delete: %w", store.ErrUnavailable)
	}
	s.deleted = append(s.deleted, key)
	return s.Store.Delete(ctx, key)
}

// collect collects as the server does, and stores a mark as the server does.
func (w *world) collect(opts gc.Options) *gc.Report {
	w.Helper()
	if !opts.DryRun {
		check(w, w.mark())
	}
	r, err := w.tryCollect(opts)
	check(w, err)
	return r
}

func (w *world) config() gc.Config {
	return gc.Config{Bucket: w.bucket, Settings: w.set, Server: true, Log: slog.New(slog.DiscardHandler)}
}

// mark stores a mark, as the server does when its term begins and at least every minute.
func (w *world) mark() error {
	k := mark.New(mark.Config{Runtime: w.docker, Bucket: w.bucket, Log: slog.New(slog.DiscardHandler), Watch: time.Millisecond})
	return k.Move(w.Context(), w.session)
}

// restored does what the server and an administrator do with a restored database: the
// server compares the marks and holds, then the administrator takes over.
func (w *world) restored() {
	w.Helper()
	if err := w.mark(); !mark.IsForeign(err) {
		w.Fatalf("the restored database: %v", err)
	}
	if _, err := w.tryCollect(gc.Options{}); !errors.Is(err, gc.ErrRestored) {
		w.Fatalf("a collection before anybody took over: %v", err)
	}
	w.Exec(`UPDATE gc_state SET take_over = true, hold = NULL, hold_since = NULL, restored_at = now()`)
	check(w, w.mark())
}

func (w *world) tryCollect(opts gc.Options) (*gc.Report, error) {
	return gc.Collect(w.Context(), w.config(), w.session, opts)
}

// pass lets time pass: it makes all times in the database older by d.
func (w *world) pass(d time.Duration) {
	w.Helper()
	w.Exec(`UPDATE archives SET created_at = created_at - $1::interval, verified_at = verified_at - $1::interval,
		complete_at = complete_at - $1::interval, superseded_at = superseded_at - $1::interval, missing_since = missing_since - $1::interval,
		unprotected_since = unprotected_since - $1::interval, deleting_at = deleting_at - $1::interval`, d)
	w.Exec(`UPDATE workspaces SET deleted_at = deleted_at - $1::interval`, d)
	w.Exec(`UPDATE gc_state SET restored_at = restored_at - $1::interval, ran_at = ran_at - $1::interval`, d)
}

// workspace creates a workspace with a live home.
func (w *world) workspace(name string) workspace.ID {
	w.Helper()
	ws := w.AddWorkspace(w.user, name)
	w.live(ws.ID)
	return ws.ID
}

// live records a live home without an operation, as after a restore.
func (w *world) live(id workspace.ID) {
	w.Exec(`UPDATE workspaces SET phase = 'STANDBY', operation = 'NONE', op_id = NULL, home_ctx = '{"state": "live", "claim": "c"}',
		desired_state = 'STANDBY', error_reason = NULL, conditions = $2 WHERE id = $1`, id,
		`{"infra.container_ready": {"status": "False", "reason": "NoContainer"}, "storage.volume_ready": {"status": "True", "reason": "Ready"}}`)
}

// claim claims an ARCHIVING, as the controller does, and returns the key.
func (w *world) claim(id workspace.ID) (key, claim string) {
	w.Helper()
	return w.claimBy(w.ctrl, id)
}

func (w *world) claimBy(ctrl *postgres.Controller, id workspace.ID) (key, claim string) {
	w.Helper()
	claim = uuid.Must(uuid.NewV7()).String()
	key = w.bucket.Key(id, claim)
	w.Exec(`UPDATE workspaces SET operation = 'ARCHIVING', op_id = $2, archive_op_id = $2, op_started_at = now(), desired_state = 'ARCHIVED'
		WHERE id = $1 AND operation = 'NONE'`, id, claim)
	ours, err := ctrl.ClaimArchive(context.WithoutCancel(w.Context()), id, claim, key)
	check(w, err)
	if !ours {
		w.Fatal("the claim is over")
	}
	return key, claim
}

// cancel ends the operation without success.
func (w *world) cancel(id workspace.ID) {
	w.Exec(`UPDATE workspaces SET operation = 'NONE', op_id = NULL, desired_state = 'STANDBY' WHERE id = $1`, id)
}

// upload stores an archive of a home with this content, and returns its .meta.
func (w *world) upload(id workspace.ID, key, content string) postgres.Stored {
	w.Helper()
	meta := w.putHome(id, key, content)
	w.putMeta(key, meta)
	return postgres.Stored{ID: id, Claim: meta.ArchiveOpID, Key: key, Digest: meta.SHA256, Size: meta.Size, Entries: meta.Entries}
}

func (w *world) putHome(id workspace.ID, key, content string) *archive.Meta {
	w.Helper()
	meta := &archive.Meta{
		CodehubVersion: "test", WorkspaceID: string(id), WorkspaceName: "name of " + string(id), Owner: "ann",
		ArchiveOpID: bucket.ParseKey(key).OpID, CreatedAt: time.Now().UTC(),
	}
	fixture.PutHome(w, w.store.Store, key, meta, content)
	return meta
}

func (w *world) putMeta(key string, meta *archive.Meta) {
	w.Helper()
	fixture.PutMeta(w, w.store.Store, key, meta)
}

func (w *world) putObject(key string, content []byte) {
	w.Helper()
	fixture.PutObject(w, w.store.Store, key, content)
}

// keep calls StoreArchive and then removes the home.
func (w *world) keep(a postgres.Stored) {
	w.Helper()
	stored, err := w.ctrl.StoreArchive(w.Context(), a)
	check(w, err)
	if !stored {
		w.Fatalf("%s was not stored", a.Key)
	}
	w.archived(a.ID)
}

// archived: the home is removed after its archive was stored.
func (w *world) archived(id workspace.ID) {
	w.Exec(`UPDATE workspaces SET operation = 'NONE', op_id = NULL, phase = 'ARCHIVED', home_ctx = '{"state": "absent"}', conditions = $2
		WHERE id = $1`, id, `{"infra.container_ready": {"status": "False", "reason": "NoContainer"},
		"storage.volume_ready": {"status": "False", "reason": "NoVolume"}, "storage.archive_ready": {"status": "True", "reason": "Ready"}}`)
}

// archive takes a workspace through a whole ARCHIVING.
func (w *world) archive(id workspace.ID, content string) (key string) {
	w.Helper()
	key, _ = w.claim(id)
	w.keep(w.upload(id, key, content))
	return key
}

// generations archives and restores n times, and returns the keys.
func (w *world) generations(id workspace.ID, n int) (keys []string) {
	w.Helper()
	for i := range n {
		w.live(id)
		keys = append(keys, w.archive(id, fmt.Sprint("generation ", i)))
	}
	return keys
}

// there lists the keys of archives that are complete in the bucket.
func (w *world) there() map[string]bool {
	w.Helper()
	parts := map[string]int{}
	for o, err := range w.store.Store.List(context.WithoutCancel(w.Context()), w.bucket.Installation+"/") {
		check(w, err)
		if k := bucket.ParseKey(o.Key); k.Kind == bucket.Home || k.Kind == bucket.Meta {
			parts[k.Archive()]++
		}
	}
	out := map[string]bool{}
	for key, n := range parts {
		if n == 2 {
			out[key] = true
		}
	}
	return out
}

func (w *world) wantThere(keys ...string) {
	w.Helper()
	if got, want := slices.Sorted(maps.Keys(w.there())), slices.Sorted(slices.Values(keys)); !slices.Equal(got, want) {
		w.Errorf("in the bucket are %q, want %q", short(got), short(want))
	}
}

// short is the part of keys that differs.
func short(keys []string) []string {
	var out []string
	for _, k := range keys {
		p := bucket.ParseKey(k)
		out = append(out, p.Workspace[len(p.Workspace)-4:]+"/"+p.OpID[len(p.OpID)-4:])
	}
	return out
}

func item(t testing.TB, r *gc.Report, key string) gc.Item {
	t.Helper()
	for _, i := range r.Items {
		if i.Key == key {
			return i
		}
	}
	t.Errorf("nothing is said of %s", key)
	return gc.Item{}
}

func wantItem(t testing.TB, r *gc.Report, key string, v gc.Verdict, reason string) {
	t.Helper()
	if i := item(t, r, key); i.Verdict != v || !strings.Contains(i.Reason, reason) {
		t.Errorf("%s: %s (%s), want %s (%s)", key, i.Verdict, i.Reason, v, reason)
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
