package backup_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"codehub/api"
	"codehub/internal/archive"
	"codehub/internal/arrivals/rollback"
	"codehub/internal/base/health"
	"codehub/internal/control/backup"
	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/storage/bucket"
	"codehub/internal/storage/store"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/pgtest"
	"codehub/internal/users/sealed"
	"codehub/internal/users/secrets"
	"codehub/internal/workspace"
)

// volumes are the volumes of a runtime, by workspace.
type volumes map[workspace.ID]runtime.Volume

func (v volumes) Volumes(context.Context) (list []runtime.Volume, err error) {
	for _, one := range v {
		list = append(list, one)
	}
	return list, nil
}
func (volumes) Containers(context.Context) ([]runtime.Container, error) { return nil, nil }
func (volumes) Mark(context.Context) (m workspace.Mark, found bool, err error) {
	return m, false, nil
}

// drilled is an installation whose database backups are tried.
type drilled struct {
	*testing.T
	*fixture.Database
	cfg     backup.DrillConfig
	volumes volumes
	ann     workspace.Caller
	keys    string // the file of the keys
}

func newDrilled(t *testing.T, s store.Store, db *fixture.Database) *drilled {
	t.Helper()
	id, err := db.DB.Installation(t.Context())
	b := fixture.OpenBucket(t, s, id)
	err = errors.Join(err, b.Check(t.Context(), false))
	d := &drilled{T: t, Database: db, volumes: volumes{}, ann: db.AddUser("ann"), keys: filepath.Join(t.TempDir(), "secret.key")}
	keys, e := sealed.OpenOrCreate(d.keys)
	if err = errors.Join(err, e); err != nil {
		t.Fatal(err)
	}
	plan := rollback.New(rollback.Config{Runtime: d.volumes, Bucket: b, DeleteGrace: time.Hour, Log: slog.New(slog.DiscardHandler)})
	d.cfg = backup.DrillConfig{Bucket: b, DSN: db.DSN, DB: db.DB, Keys: keys, Compare: plan.Compare}
	return d
}

// live adds a workspace with a volume.
func (d *drilled) live(name string) workspace.ID {
	d.Helper()
	w, claim := d.AddWorkspace(d.ann, name), uuid.NewString()
	d.Change(`UPDATE workspaces SET home_ctx = jsonb_build_object('state', 'live', 'claim', $2::text), phase = 'STANDBY' WHERE id = $1`, w.ID, claim)
	d.volumes[w.ID] = runtime.Volume{Workspace: w.ID, Storage: workspace.StorageDockerVolume, Claim: claim, Seeded: true, Owner: "ann", Name: name}
	return w.ID
}

// archived adds a workspace with an archive, and returns the archive's key.
func (d *drilled) archived(name string) (key string) {
	d.Helper()
	w, op := d.AddWorkspace(d.ann, name), uuid.Must(uuid.NewV7()).String()
	key = d.cfg.Bucket.Key(w.ID, op)
	meta := &archive.Meta{CodehubVersion: "test", WorkspaceID: string(w.ID), WorkspaceName: name, Owner: "ann", ArchiveOpID: op, CreatedAt: time.Now()}
	fixture.PutArchive(d, d.cfg.Bucket.Store, key, meta, name)
	d.Change(`INSERT INTO archives (workspace_id, key, archive_op_id, digest, size, complete_at, verified_at) VALUES ($1, $2, $3, $4, $5, now(), now())`, w.ID, key, op, meta.SHA256, meta.Size)
	d.Change(`UPDATE workspaces SET home_ctx = '{"state": "absent"}', phase = 'ARCHIVED', desired_state = 'ARCHIVED', archive_key = $2, archive_digest = $3, archive_size = $4 WHERE id = $1`, w.ID, key, meta.SHA256, meta.Size)
	return key
}

func (d *drilled) backUp() {
	d.Helper()
	if _, err := backup.Store(d.Context(), backup.Config{Bucket: d.cfg.Bucket, DSN: d.DSN, Version: "test"}); err != nil {
		d.Fatal(err)
	}
}

func (d *drilled) drill() api.DatabaseDrill {
	d.Helper()
	got, err := backup.Drill(d.Context(), d.cfg)
	if err != nil {
		d.Fatal(err)
	}
	saved, _, err := d.DB.DatabaseDrill(d.Context())
	if err != nil || saved == nil || saved.EndedAt.IsZero() {
		d.Fatalf("recorded: %+v, %v", saved, err)
	}
	if diff := cmp.Diff(&got, saved, cmpopts.IgnoreFields(api.DatabaseDrill{}, "EndedAt"), cmpopts.EquateEmpty()); diff != "" {
		d.Error(diff)
	}
	d.clean()
	return got
}

// clean checks that neither the scratch database nor a session of a drill is left.
func (d *drilled) clean() {
	d.Helper()
	if n := d.scratches(); n != 0 {
		d.Errorf("%d scratch databases are left", n)
	}
	harness.Eventually(d.T, "no session is left", func() bool {
		return fixture.Query[int](d, `SELECT count(*) FROM pg_stat_activity WHERE datname = $1 OR datname = current_database() AND application_name IN ('codehub-drill', 'codehub-backup', 'codehub-migrate')`, d.scratch()) == 0
	})
}

func (d *drilled) scratch() string {
	return "codehub_drill_" + strings.ReplaceAll(d.cfg.Bucket.Installation, "-", "")
}

func (d *drilled) scratches() int {
	d.Helper()
	return fixture.Query[int](d, `SELECT count(*) FROM pg_database WHERE datname = $1`, d.scratch())
}

// A drill restores the last backup, counts what has changed since then, and finds what is missing
// although it has not changed. It changes no other row.
func TestDrillComparesBackup(t *testing.T) {
	fixture.EachStore(t, func(t *testing.T, s store.Store) {
		d := newDrilled(t, s, fixture.NewDatabase(t, postgres.Options{}))
		if _, err := backup.Drill(t.Context(), d.cfg); !errors.Is(err, backup.ErrNoBackup) {
			t.Error(err)
		}
		kept, deleted, emptied := d.live("kept"), d.live("deleted"), d.archived("emptied")
		key, restored := d.archived("archived"), d.archived("restored")
		d.AddWorkspace(d.ann, "new")
		d.backUp()
		before := d.Rows("workspaces", "users", "archives", "audit_log", "gc_state", "installation")
		got := d.drill()
		if want := (api.DrillComparison{Workspaces: 6, Unchanged: 6, Changes: map[string]int{}, MissingIn: []string{}}); !cmp.Equal(got.Comparison, want) || got.Problem != "" {
			t.Errorf("%+v", got)
		}
		if rows := fixture.Query[int](d, `SELECT count(*) FROM workspaces`); got.Rows < int64(rows) || got.Tables < 20 || got.BackupAt == nil || !strings.HasPrefix(got.Backup, d.cfg.Bucket.Installation+"/database/") {
			t.Errorf("%+v", got)
		}
		if diff := cmp.Diff(before, d.Rows("workspaces", "users", "archives", "audit_log", "gc_state", "installation")); diff != "" {
			t.Error(diff)
		}

		// After the backup a workspace is deleted, one is created, one is restored from its archive, and
		// the home of one is started empty.
		delete(d.volumes, deleted)
		d.Change(`UPDATE workspaces SET deleted_at = now(), phase = 'DELETED', home_ctx = '{"state": "absent"}' WHERE id = $1`, deleted)
		d.live("created")
		d.Change(`UPDATE workspaces SET archive_key = NULL, archive_digest = '', archive_size = 0 WHERE archive_key = $1`, emptied)
		id := fixture.Query[workspace.ID](d, `SELECT id FROM workspaces WHERE archive_key = $1`, restored)
		d.Change(`UPDATE workspaces SET home_ctx = '{"state": "live", "claim": "c"}', phase = 'STANDBY' WHERE id = $1`, id)
		d.volumes[id] = runtime.Volume{Workspace: id, Storage: workspace.StorageDockerVolume, Claim: "c", Marker: restored, Owner: "ann", Name: "restored"}
		remove(d, emptied)
		got = d.drill()
		want := api.DrillComparison{Workspaces: 7, Unchanged: 3, Changes: map[string]int{"created_later": 1, "no_copy": 2, "volume_newer": 1}, MissingIn: []string{}}
		if diff := cmp.Diff(want, got.Comparison); diff != "" || got.Problem != "" {
			t.Errorf("%s %q", diff, got.Problem)
		}

		// What is missing without a change is a problem, unless it was known when the backup was made.
		remove(d, key)
		delete(d.volumes, kept)
		got = d.drill()
		if got.Comparison.Missing != 2 || got.Comparison.Unchanged != 1 || !strings.Contains(got.Problem, "home is missing: 2") || !strings.Contains(got.Problem, "kept (ann)") || !strings.Contains(got.Problem, "archived (ann)") {
			t.Errorf("%+v", got)
		}
		time.Sleep(time.Until(got.BackupAt.Truncate(time.Second).Add(2 * time.Second))) // names of backups have seconds
		d.Change(`UPDATE workspaces SET phase = 'ERROR' WHERE name IN ('kept', 'archived')`)
		d.backUp()
		if got = d.drill(); got.Comparison.Missing != 0 || got.Problem != "" {
			t.Errorf("%+v", got)
		}
	})
}

func remove(d *drilled, key string) {
	d.Helper()
	for _, k := range []string{key, archive.MetaKey(key)} {
		if err := d.cfg.Bucket.Store.Delete(d.Context(), k); err != nil {
			d.Fatal(err)
		}
	}
}

// A backup that is damaged or cannot be decrypted is a problem. A bucket that fails is an error of
// the drill, and leaves the last result.
func TestDrillFindsDamage(t *testing.T) {
	t.Parallel()
	d := newDrilled(t, fixture.NewFolder(t), fixture.NewDatabase(t, postgres.Options{}))
	if _, err := secrets.New(d.DB, d.cfg.Keys).Create(t.Context(), d.ann, api.CreateSecret{Name: "token", Env: "TOKEN", Value: "v"}); err != nil {
		t.Fatal(err)
	}
	d.backUp()
	good := d.drill()
	if good.Secrets != 1 || good.Problem != "" {
		t.Errorf("%+v", good)
	}

	s := &failing{Store: d.cfg.Bucket.Store}
	d.cfg.Bucket.Store = s
	s.get.Store(true)
	if _, err := backup.Drill(t.Context(), d.cfg); !errors.Is(err, errStore) {
		t.Error(err)
	}
	d.clean()
	if last, _, err := d.DB.DatabaseDrill(t.Context()); err != nil || last.Problem != "" {
		t.Errorf("%+v, %v", last, err)
	}
	s.get.Store(false)

	other := filepath.Join(t.TempDir(), "other.key")
	keys, err := sealed.OpenOrCreate(other)
	if err != nil {
		t.Fatal(err)
	}
	d.cfg.Keys = keys
	if got := d.drill(); got.Secrets != 0 || !strings.Contains(got.Problem, "cannot be decrypted: 1 of 1") || !strings.Contains(got.Problem, other) {
		t.Errorf("%+v", got)
	}

	content := read(d, good.Backup)
	for name, damaged := range map[string][]byte{"cut": content[:len(content)/2], "empty": {}, "other": bytes.Repeat([]byte("x"), 100)} {
		fixture.PutObject(t, s.Store, good.Backup, damaged)
		if got := d.drill(); !strings.HasPrefix(got.Problem, postgres.ErrUnrestorable.Error()) || got.Rows != 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func read(d *drilled, key string) []byte {
	d.Helper()
	r, err := d.cfg.Bucket.OpenBackup(d.Context(), key)
	if err != nil {
		d.Fatal(err)
	}
	defer r.Close()
	content, err := io.ReadAll(r)
	if err != nil {
		d.Fatal(err)
	}
	return content
}

// A drill that is killed leaves a scratch database, which the next one replaces. Two do not run at
// the same time.
func TestKilledDrill(t *testing.T) {
	t.Parallel()
	folder := fixture.NewFolder(t)
	d := newDrilled(t, folder, fixture.NewDatabase(t, postgres.Options{}))
	d.live("kept")
	d.backUp()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "CODEHUB_TEST_DRILL="+d.DSN, "CODEHUB_TEST_FOLDER="+folder.Dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "comparing\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if _, err := backup.Drill(t.Context(), d.cfg); !errors.Is(err, postgres.ErrDrilling) {
		t.Error(err)
	}
	if err := postgres.DropScratch(t.Context(), d.DSN); !errors.Is(err, postgres.ErrDrilling) {
		t.Error(err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if n := d.scratches(); n != 1 {
		t.Errorf("%d scratch databases are left", n)
	}
	harness.Eventually(t, "the lock of the killed drill is free", func() bool {
		_, err := backup.Drill(t.Context(), d.cfg)
		if err != nil && !errors.Is(err, postgres.ErrDrilling) {
			t.Fatal(err)
		}
		return err == nil
	})
	d.clean()
}

// killable makes a drill that does not end once the backup is restored.
func killable(dsn, folder string) error {
	ctx := context.Background()
	db, err := postgres.Open(ctx, dsn, postgres.Options{})
	if err != nil {
		return err
	}
	id, err := db.Installation(ctx)
	if err != nil {
		return err
	}
	b, err := bucket.New(bucket.Config{Store: store.NewFolder(folder), Folder: folder, HostFolder: folder, Installation: id, Version: "test"})
	if err != nil {
		return err
	}
	_, err = backup.Drill(ctx, backup.DrillConfig{Bucket: b, DSN: dsn, DB: db, Compare: func(context.Context, postgres.RollbackState, func(context.Context) (postgres.RollbackState, error)) (api.DrillComparison, error) {
		fmt.Println("comparing")
		select {}
	}})
	return err
}

// A leader makes a drill when the last one is old enough. A problem is a condition, which ends with
// a drill without one, also with that of the command.
func TestDrillSchedule(t *testing.T) {
	t.Parallel()
	d := newDrilled(t, fixture.NewFolder(t), fixture.NewDatabase(t, postgres.Options{}))
	id := d.live("kept")
	conditions := &health.Monitor{}
	r := backup.NewDrillRunner(backup.DrillRunnerConfig{
		DrillConfig: d.cfg, Interval: 30 * 24 * time.Hour, First: time.Millisecond, Retry: 10 * time.Millisecond, Conditions: conditions, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	last := func() (l api.DatabaseDrill) {
		got, _, err := d.DB.DatabaseDrill(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got != nil {
			l = *got
		}
		return l
	}
	d.backUp()
	harness.Eventually(t, "the first drill ends", func() bool { return !last().EndedAt.IsZero() })
	first := last().EndedAt
	kept := d.volumes[id]
	age := func(by string) { d.Change(`UPDATE database_drill SET ended_at = ended_at - $1::interval`, by) }
	age("6 days")
	harness.Eventually(t, "none is due after 6 days", func() bool { return conditions.Err("database-drill") == nil })
	if now := last().EndedAt; now.After(first) {
		t.Errorf("the next drill ended at %s", now)
	}
	// The leader's goroutine reads the map only in a drill, which is not due before the age is set.
	delete(d.volumes, id)
	age("2 days")
	harness.Eventually(t, "the problem is a condition", func() bool {
		err := conditions.Err("database-drill")
		return err != nil && strings.Contains(err.Error(), "kept (ann)")
	})
	d.volumes[id] = kept
	harness.Eventually(t, "the drill on request ends", func() bool {
		_, err := backup.Drill(t.Context(), d.cfg)
		return err == nil
	})
	harness.Eventually(t, "the condition ends", func() bool { return conditions.Err("database-drill") == nil })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	d.clean()
}

// A role that may not create databases is named with the right that it lacks.
func TestDrillNeedsRight(t *testing.T) {
	t.Parallel()
	own := pgtest.StartOwn(t)
	if err := postgres.Migrate(t.Context(), own.DSN()); err != nil {
		t.Fatal(err)
	}
	own.Stop()
	own.Superuser(`ALTER ROLE codehub NOCREATEDB`)
	own.Start()
	d := newDrilled(t, fixture.NewFolder(t), fixture.OpenDatabase(t, own.DSN(), postgres.Options{}))
	d.backUp()
	if _, err := backup.Drill(t.Context(), d.cfg); err == nil || !strings.Contains(err.Error(), `ALTER ROLE "codehub" CREATEDB`) {
		t.Error(err)
	}
}
