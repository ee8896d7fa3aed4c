package e2e

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"codehub/internal/postgres"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/pgtest"
)

// The audit records a write to the controller's columns without the leader's
// lock, and a workspace above the limits. It records nothing else.
func TestAuditFindsViolations(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	c := &cluster{test: test{t}, dsn: pgtest.New(t, postgres.Migrate)}
	c.installAudit(limits{perUser: 1, global: 2})
	const (
		user  = `INSERT INTO users (id, username, username_key, password_hash) SELECT gen_random_uuid(), n, n, '' FROM (VALUES ('ann'), ('bob'), ('eve')) AS v (n)`
		runs  = `INSERT INTO workspaces (id, owner_user_id, name, image_ref, storage_backend, desired_state) SELECT gen_random_uuid(), id, gen_random_uuid(), 'i', 'docker-volume', 'RUNNING' FROM users WHERE username = ANY ($1)`
		write = `UPDATE workspaces SET phase = 'STANDBY'`
		lead  = `SELECT pg_advisory_lock($1)`
	)
	none := errors.New("rolled back")
	for _, v := range []struct {
		name  string
		users []string
		leads bool
		write bool
		want  int
	}{
		{"one workspace of each user", []string{"ann", "bob"}, false, false, 0},
		{"two workspaces of one user", []string{"ann", "ann"}, false, false, 1},
		{"three workspaces in all", []string{"ann", "bob", "eve"}, false, false, 1},
		{"write by the leader", []string{"ann"}, true, true, 0},
		{"write without the lock", []string{"ann"}, false, true, 1},
	} {
		t.Run(v.name, func(t *testing.T) {
			err := c.trySQL(t.Context(), func(ctx context.Context, conn *pgx.Conn) error {
				return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
					if _, err := tx.Exec(ctx, user); err != nil {
						return err
					}
					if v.leads {
						if _, err := tx.Exec(ctx, lead, int64(leaderKey)); err != nil {
							return err
						}
					}
					for _, u := range v.users {
						if _, err := tx.Exec(ctx, runs, []string{u}); err != nil {
							return err
						}
						if _, err := tx.Exec(ctx, `SET CONSTRAINTS ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED`); err != nil {
							return err
						}
					}
					if v.write {
						if _, err := tx.Exec(ctx, write); err != nil {
							return err
						}
					}
					var violations int
					if err := tx.QueryRow(ctx, `SELECT count(*) FROM e2e.violations WHERE NOT tolerated`).Scan(&violations); err != nil {
						return err
					}
					if violations != v.want {
						t.Errorf("the audit recorded %d violations, want %d", violations, v.want)
					}
					return none
				})
			})
			if !errors.Is(err, none) {
				t.Fatal(err)
			}
		})
	}
}
