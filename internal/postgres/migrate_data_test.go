package postgres_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// migrateTo migrates an empty database to an earlier version.
func migrateTo(t *testing.T, dsn string, version int64) *sql.DB {
	t.Helper()
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	db := stdlib.OpenDB(*cfg)
	t.Cleanup(func() { _ = db.Close() })
	p, err := goose.NewProvider(goose.DialectPostgres, db, os.DirFS("migrations"), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.UpTo(t.Context(), version); err != nil {
		t.Fatal(err)
	}
	return db
}

// A database of the version before several servers, with workspaces in every state, is
// migrated: only new columns change, no workspace is stopped for the time before, and the
// limits count the running ones.
func TestMigrateWithWorkspaces(t *testing.T) {
	t.Parallel()
	dsn := emptyDSN(t)
	old := migrateTo(t, dsn, 6)
	exec := func(q string, args ...any) {
		t.Helper()
		if _, err := old.ExecContext(t.Context(), q, args...); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
	owner := uuid.NewString()
	exec(`INSERT INTO users (id, username, username_key, password_hash) VALUES ($1, 'ann', 'ann', 'x')`, owner)
	exec(`INSERT INTO leader (replica_id, pid, backend_start) VALUES ($1, 1, now() - interval '1 day')`, uuid.NewString())
	exec(`INSERT INTO replicas (id, seen_at, flushed_at) VALUES ($1, now() - interval '1 day', now() - interval '1 day')`, uuid.NewString())
	names := map[string]string{}
	for _, phase := range []string{"PENDING", "ARCHIVED", "STANDBY", "RUNNING", "ERROR", "DELETING", "DELETED"} {
		for _, desired := range []string{"ARCHIVED", "STANDBY", "RUNNING"} {
			for _, conditions := range []string{`{}`, noContainer, container, exited, nothing} {
				for _, op := range []string{"NONE", "STARTING"} {
					deleted := phase == "DELETING" || phase == "DELETED"
					if op != "NONE" && (phase == "ERROR" || phase == "DELETED") {
						continue
					}
					id := uuid.NewString()
					var claim any
					if op != "NONE" {
						claim = uuid.NewString()
					}
					name := fmt.Sprint(phase, desired, op, len(names))
					names[id] = name
					exec(`INSERT INTO workspaces (id, owner_user_id, name, image_ref, instance_backend, storage_backend, home_store_key, phase,
							desired_state, conditions, operation, op_id, deleted_at, phase_changed_at, last_access_at, standby_ttl_seconds, keep_awake_until)
						VALUES ($1, $2, $3, 'x', 'local-docker', 'docker-volume', 'v', $4, $5, $6, $7, $8,
							CASE WHEN $9 THEN now() END, now() - interval '30 days', CASE WHEN $10 THEN now() - interval '20 days' END,
							CASE WHEN $10 THEN 600 END, CASE WHEN $10 THEN now() + interval '1 day' END)`,
						id, owner, name, phase, desired, conditions, op, claim, deleted, len(names)%2 == 0)
				}
			}
		}
	}
	all := func(without ...string) string {
		t.Helper()
		var s string
		q := `SELECT string_agg((to_jsonb(w) - $1::text[])::text, chr(10) ORDER BY id) FROM workspaces w`
		if err := old.QueryRowContext(t.Context(), q, "{"+strings.Join(without, ",")+"}").Scan(&s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	unused := []string{"holds_slot", "desired_cause", "observed_at", "instance_backend", "home_store_key", "archive_entries", "running_image_ref", "previous_image_ref", "image_generation", "image_pull", "image_pin", "image_newer", "awake_while_working", "env", "running_env_digest", "time_zone", "uid_offset", "size", "running_size", "home_limit", "freeing_at", "freeing_from", "home_bytes", "archives_bytes", "total_bytes", "state"}
	before := all(unused...)
	if err := postgres.Migrate(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	if after := all(unused...); after != before {
		t.Errorf("rows were changed:\n%s\n\n%s", before, after)
	}
	db, err := postgres.Open(context.Background(), dsn, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	session := postgres.NewController(postgres.NewSession(conn))
	rows, err := session.Candidates(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	holds, err := db.RunningOf(t.Context(), owner)
	if err != nil {
		t.Fatal(err)
	}
	counted := map[workspace.ID]bool{}
	for _, w := range holds {
		counted[w.ID] = true
	}
	for _, w := range rows {
		delete(names, string(w.ID))
		want := w.DeletedAt == nil && (w.Phase == workspace.PhaseRunning || w.Operation == workspace.OpStarting ||
			w.DesiredState == workspace.DesiredRunning && w.Phase != workspace.PhaseError || w.Conditions.HasContainer())
		if counted[w.ID] != want {
			t.Errorf("%s counts: %v, want %v (%v)", w.Name, counted[w.ID], want, w.Conditions)
		}
	}
	for id, name := range names {
		if !strings.HasPrefix(name, "DELETED") {
			t.Errorf("%s (%s) is gone", name, id)
		}
	}
	// The clock of activity has not begun, so no earlier time counts as idle.
	idle := postgres.NewIdleness(session)
	if ended, err := idle.EndIdle(t.Context(), 600e9, 1000); err != nil || len(ended) > 0 {
		t.Errorf("%d were stopped for the time before (%v)", len(ended), err)
	}
	if ended, err := idle.EndUnused(t.Context(), 600e9, 1000); err != nil || len(ended) > 0 {
		t.Errorf("%d were archived for the time before (%v)", len(ended), err)
	}
}
