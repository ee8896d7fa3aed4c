package backup_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"codehub/internal/base/health"
	"codehub/internal/control/backup"
	"codehub/internal/postgres"
	"codehub/internal/storage/bucket"
	"codehub/internal/storage/store"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/pgtest"
)

func TestMain(m *testing.M) {
	if dsn := os.Getenv("CODEHUB_TEST_DRILL"); dsn != "" {
		if err := killable(dsn, os.Getenv("CODEHUB_TEST_FOLDER")); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
	pgtest.Main(m)
}

// A leader makes a backup when the last one is old enough, keeps as many as it should, and
// leaves those of other installations.
func TestSchedule(t *testing.T) {
	t.Parallel()
	db := fixture.NewDatabase(t, postgres.Options{})
	b := bucketOf(t, db)
	for _, name := range []string{"20200101T000000Z", "20200102T000000Z", "20200103T000000Z", "29990101T000000Z", "other"} {
		fixture.PutObject(t, b.Store, b.Installation+"/database/"+name+".backup.zst", []byte("old"))
	}
	foreign := "0190a5d4-0000-7000-8000-000000000001/database/20200101T000000Z.backup.zst"
	fixture.PutObject(t, b.Store, foreign, []byte("old"))
	ready := make(chan bool, 100)
	r := backup.NewRunner(backup.RunnerConfig{
		Config:   backup.Config{Bucket: b, DSN: db.DSN, Version: "test"},
		Schedule: backup.Schedule{Interval: time.Hour, Keep: 2}, First: time.Millisecond, Retry: time.Millisecond,
		Ready: func() bool { ready <- true; return len(ready) > 2 }, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	var list []bucket.BackupObject
	harness.Eventually(t, "two backups and that of the future are left", func() bool {
		var err error
		list, err = b.Backups(t.Context())
		return err == nil && len(list) == 3 && time.Since(list[1].Time()) < time.Hour
	})
	harness.Eventually(t, "the last backup is known", func() bool { return time.Since(r.Last()) < time.Hour })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if list[0].Name != "20200103T000000Z" || !r.Last().IsZero() {
		t.Errorf("%+v, last %s", list, r.Last())
	}
	content, err := b.OpenBackup(t.Context(), list[1].Key)
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	if info, err := postgres.CheckBackup(content); err != nil || info.Installation != b.Installation {
		t.Errorf("%+v, %v", info, err)
	}
	if _, err := b.Store.Stat(t.Context(), foreign); err != nil {
		t.Error(err)
	}
	// The next leader does not make one at once.
	next := backup.NewRunner(backup.RunnerConfig{
		Config: backup.Config{Bucket: b, DSN: db.DSN}, Schedule: backup.Schedule{Interval: time.Hour, Keep: 2}, First: time.Millisecond, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel = context.WithCancel(t.Context())
	go func() { ended <- next.Run(ctx) }()
	harness.Eventually(t, "the last backup is known", func() bool { return !next.Last().IsZero() })
	cancel()
	if again, err := b.Backups(t.Context()); <-ended != nil || err != nil || len(again) != 3 {
		t.Errorf("%+v, %v", again, err)
	}
}

// A bucket that fails is a condition, which ends with the next backup.
func TestFailureIsCondition(t *testing.T) {
	t.Parallel()
	db := fixture.NewDatabase(t, postgres.Options{})
	b := bucketOf(t, db)
	marker := b.Installation + "/codehub.json"
	if err := b.Store.Delete(t.Context(), marker); err != nil {
		t.Fatal(err)
	}
	conditions := &health.Monitor{}
	r := backup.NewRunner(backup.RunnerConfig{
		Config: backup.Config{Bucket: b, DSN: db.DSN, Version: "test"}, Schedule: backup.Schedule{Interval: time.Hour, Keep: 2},
		First: time.Millisecond, Retry: time.Millisecond, Conditions: conditions, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	harness.Eventually(t, "the condition fails", func() bool { return conditions.Err("database-backup") != nil })
	fixture.PutObject(t, b.Store, marker, []byte("{}"))
	harness.Eventually(t, "the condition ends", func() bool { return conditions.Err("database-backup") == nil && !r.Last().IsZero() })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// failing is a store that fails to read or delete objects, or has cut them.
type failing struct {
	store.Store
	get, cut, del atomic.Bool
}

var errStore = errors.New("the store fails")

func (f *failing) Get(ctx context.Context, key string, offset int64) (io.ReadCloser, error) {
	r, err := f.Store.Get(ctx, key, offset)
	if err == nil && f.get.Load() {
		return brokenReader{r}, nil
	}
	if err == nil && f.cut.Load() {
		return struct {
			io.Reader
			io.Closer
		}{io.LimitReader(r, 100), r}, nil
	}
	return r, err
}

func (f *failing) Delete(ctx context.Context, key string) error {
	if f.del.Load() {
		return errStore
	}
	return f.Store.Delete(ctx, key)
}

// brokenReader fails after its first bytes.
type brokenReader struct{ io.ReadCloser }

func (b brokenReader) Read(p []byte) (int, error) {
	n, _ := b.ReadCloser.Read(p[:min(len(p), 10)])
	return n, errStore
}

// A removal that fails is a condition until it works, even if no backup is due.
func TestFailedRemovalIsCondition(t *testing.T) {
	t.Parallel()
	db := fixture.NewDatabase(t, postgres.Options{})
	b := bucketOf(t, db)
	f := &failing{Store: b.Store}
	b.Store = f
	f.del.Store(true)
	fixture.PutObject(t, f.Store, b.Installation+"/database/20200101T000000Z.backup.zst", []byte("old"))
	conditions, retried := &health.Monitor{}, make(chan struct{})
	var tries atomic.Int32
	r := backup.NewRunner(backup.RunnerConfig{
		Config: backup.Config{Bucket: b, DSN: db.DSN, Version: "test"}, Schedule: backup.Schedule{Interval: time.Hour, Keep: 1},
		First: time.Millisecond, Retry: time.Millisecond, Conditions: conditions, Log: slog.New(slog.DiscardHandler),
		Ready: func() bool {
			if tries.Add(1) == 3 {
				close(retried)
			}
			return true
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	<-retried
	if err := conditions.Err("database-backup"); err == nil {
		t.Error("the condition does not fail")
	}
	f.del.Store(false)
	harness.Eventually(t, "the condition ends", func() bool { return conditions.Err("database-backup") == nil })
	cancel()
	if list, err := b.Backups(t.Context()); <-ended != nil || err != nil || len(list) != 1 || time.Since(list[0].Time()) > time.Hour {
		t.Errorf("%+v, %v", list, err)
	}
}

// A backup that cannot be read again remains, and one that is damaged does not.
func TestBackupIsReadAgain(t *testing.T) {
	t.Parallel()
	db := fixture.NewDatabase(t, postgres.Options{})
	b := bucketOf(t, db)
	f := &failing{Store: b.Store}
	b.Store = f
	f.cut.Store(true)
	if _, err := backup.Store(t.Context(), backup.Config{Bucket: b, DSN: db.DSN}); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Error(err)
	}
	if list, err := b.Backups(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("%+v, %v", list, err)
	}
	f.cut.Store(false)
	f.get.Store(true)
	if _, err := backup.Store(t.Context(), backup.Config{Bucket: b, DSN: db.DSN}); !errors.Is(err, errStore) {
		t.Error(err)
	}
	f.get.Store(false)
	list, err := b.Backups(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	content, err := b.OpenBackup(t.Context(), list[0].Key)
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	if _, err := postgres.CheckBackup(content); err != nil {
		t.Error(err)
	}
}

func bucketOf(t *testing.T, db *fixture.Database) *bucket.Bucket {
	t.Helper()
	id, err := db.DB.Installation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b := fixture.OpenBucket(t, store.NewFolder(filepath.Join(t.TempDir(), "archives")), id)
	if err := b.Check(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	return b
}
