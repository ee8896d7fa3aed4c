package postgres_test

import (
	"context"
	"io/fs"
	"os"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

func TestMigrate(t *testing.T) {
	t.Parallel()
	dsn := emptyDSN(t)
	ctx := t.Context()
	for range 2 {
		var g errgroup.Group
		for range 5 {
			g.Go(func() error { return postgres.Migrate(ctx, dsn) })
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	files, err := fs.Glob(os.DirFS("migrations"), "*.sql")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	var applied int
	if err := conn.QueryRow(ctx, `SELECT count(*) FROM goose_db_version WHERE version_id > 0`).Scan(&applied); err != nil {
		t.Fatal(err)
	}
	if applied != len(files) {
		t.Errorf("%d migrations were applied, there are %d", applied, len(files))
	}
}

func TestMigrateEndsWithContext(t *testing.T) {
	t.Parallel()
	dsn := emptyDSN(t)
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), `SELECT pg_advisory_lock($1)`, int64(0x636f646568756203)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- postgres.Migrate(ctx, dsn) }()
	for waiting := 0; waiting == 0 && len(done) == 0; {
		err := conn.QueryRow(t.Context(), `
			SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'codehub-migrate' AND query LIKE '%pg_try_advisory_lock%'`).Scan(&waiting)
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(done) > 0 {
		t.Fatalf("did not wait for the lock: %v", <-done)
	}
	cancel()
	if err := <-done; err == nil {
		t.Fatal("migrated while another held the lock")
	}
	var tables int
	if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_tables WHERE tablename = 'workspaces'`).Scan(&tables); err != nil || tables != 0 {
		t.Errorf("%d tables were created (%v)", tables, err)
	}
}

func TestOpenAndPing(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	if err := e.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := postgres.Open(t.Context(), "host=/nowhere dbname=x", postgres.Options{}); err == nil {
		t.Fatal("opened a database that does not exist")
	}
	if _, err := postgres.Open(t.Context(), "::", postgres.Options{}); err == nil {
		t.Fatal("opened an invalid dsn")
	}
	// A database that is out of reach is unavailable, which is not the caller's fault.
	e.Close()
	if err := e.Ping(t.Context()); err == nil {
		t.Fatal("a closed pool responded")
	}
}

func TestInstallation(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ids := make(chan string, 8)
	var g errgroup.Group
	for range cap(ids) {
		g.Go(func() error {
			id, err := e.Installation(t.Context())
			ids <- id
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	first := <-ids
	if !workspace.ValidID(first) {
		t.Fatalf("%q is not a UUID", first)
	}
	for range cap(ids) - 1 {
		if id := <-ids; id != first {
			t.Errorf("two ids: %s and %s", first, id)
		}
	}
	if other := must(open(t, postgres.Options{}).Installation(t.Context()))(t); other == first {
		t.Error("two installations share an id")
	}
}

// The schema's constraints enforce the invariants of a row even if the code does not.
func TestSchemaRefuses(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	w := e.workspace(e.user("ann"), nil)
	for name, set := range map[string]string{
		"unknown phase":              `phase = 'BROKEN'`,
		"unknown operation":          `operation = 'RUNNING', op_id = gen_random_uuid()`,
		"unknown desired state":      `desired_state = 'DELETED'`,
		"unknown queued state":       `next_desired_state = 'PENDING'`,
		"unknown error":              `error_reason = 'Bad'`,
		"unknown home":               `home_ctx = '{"state": "gone"}'`,
		"home without state":         `home_ctx = '{}'`,
		"conditions that are a list": `conditions = '[]'`,
		"unknown storage backend":    `storage_backend = 'nfs'`,
		"unknown recovery":           `recover_action = 'hope', recover_requested_at = now()`,
		"recovery without action":    `recover_requested_at = now()`,
		"recovery from no archive":   `recover_action = 'archive', recover_requested_at = now()`,
		"recovery from a blank one":  `recover_action = 'archive', recover_requested_at = now(), recover_archive = '{}'`,
		"archive without recovery":   `recover_archive = '{"key": "k"}'`,
		"empty home from an archive": `recover_action = 'empty', recover_requested_at = now(), recover_archive = '{"key": "k"}'`,
		"negative ttl":               `standby_ttl_seconds = -1`,
		"negative error count":       `error_count = -1`,
		"empty name":                 `name = ''`,
		"empty image":                `image_ref = ''`,
		"operation in ERROR":         `phase = 'ERROR', operation = 'STARTING', op_id = gen_random_uuid()`,
		"operation without claim":    `operation = 'STARTING'`,
		"claim without operation":    `op_id = gen_random_uuid()`,
		"gone without deletion":      `phase = 'DELETED'`,
	} {
		_, err := e.raw.Exec(t.Context(), `UPDATE workspaces SET `+set+` WHERE id = $1`, w.ID)
		var pg *pgconn.PgError
		if !asPg(err, &pg) || pg.Code != "23514" {
			t.Errorf("%s: got %v, want a violated check", name, err)
		}
	}
	_, err := e.raw.Exec(t.Context(), `UPDATE workspaces SET owner_user_id = $2 WHERE id = $1`, w.ID, uuid.NewString())
	if err == nil {
		t.Error("a workspace without an owner")
	}
}
