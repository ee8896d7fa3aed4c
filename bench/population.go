package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"codehub/internal/runtime"
	"codehub/internal/testing/runtimetest"
	"codehub/internal/workspace"
)

// population is a number of workspaces in each phase, without operations.
type population struct{ running, standby, archived, pending, failed int }

// typicalPopulation returns the mix of phases of a large installation.
func typicalPopulation(n int) population {
	c := population{running: n / 10, standby: n * 3 / 10, pending: n / 200, failed: n / 200}
	c.archived = n - c.running - c.standby - c.pending - c.failed
	return c
}

func (c population) size() int { return c.running + c.standby + c.archived + c.pending + c.failed }

// insert writes the rows, ten for each owner, as they are when all desired
// states are reached: an observation changes nothing. Workspaces in PENDING
// have their next attempt in an hour.
func (c population) insert(ctx context.Context, conn *pgx.Conn) error {
	for _, statement := range []struct {
		sql  string
		args []any
	}{
		{sql: `ALTER TABLE workspaces DISABLE TRIGGER USER`}, // no notifications
		{sql: `
			INSERT INTO users (id, username, username_key, password_hash)
			SELECT gen_random_uuid(), 'user ' || i, 'user ' || i, '!' FROM generate_series(1, ($1::int + 9) / 10) i`, args: []any{c.size()}},
		{sql: conditionFunction},
		{sql: populationSQL, args: []any{c.running, c.standby, c.archived, c.pending, c.failed}},
		{sql: `ALTER TABLE workspaces ENABLE TRIGGER USER`},
		{sql: `VACUUM ANALYZE workspaces`},
	} {
		if _, err := conn.Exec(ctx, statement.sql, statement.args...); err != nil {
			return fmt.Errorf("write %d workspaces: %w", c.size(), err)
		}
	}
	return nil
}

// populationSQL inserts the rows. Half of the live homes were restored from an
// archive. The ids are of version 7, in the order of creation.
const populationSQL = `
	WITH one AS (
		SELECT i,
			(lpad(to_hex(1760000000000 + i * 60000::bigint), 12, '0') || '7000' || '8' || substr(md5('w' || i), 1, 15))::uuid AS id,
			md5('claim' || i)::uuid AS claim,
			CASE WHEN i <= $1::int THEN 'RUNNING'
				WHEN i <= $1::int + $2::int THEN 'STANDBY'
				WHEN i <= $1::int + $2::int + $3::int THEN 'ARCHIVED'
				WHEN i <= $1::int + $2::int + $3::int + $4::int THEN 'PENDING'
				ELSE 'ERROR' END AS phase
		FROM generate_series(1, $1::int + $2::int + $3::int + $4::int + $5::int) i
	), kept AS (
		SELECT *,
			phase IN ('RUNNING', 'STANDBY', 'ERROR') AS live,
			CASE WHEN phase = 'ARCHIVED' OR phase <> 'PENDING' AND i % 2 = 0
				THEN 'codehub/' || id || '/' || md5('made' || i)::uuid || '/home.tar.zst' END AS key
		FROM one
	)
	INSERT INTO workspaces (id, owner_user_id, name, description, image_ref, storage_backend,
		home_ctx, conditions, phase, phase_changed_at, archive_op_id, archive_key, archive_digest, archive_size,
		error_reason, error_message, error_count, retry_at, desired_state, last_access_at, last_access_kind, created_at)
	SELECT id, u.user_id, 'workspace ' || i, 'a description.', 'codehub/workspace:latest', 'docker-volume',
		CASE WHEN live THEN jsonb_build_object('state', 'live', 'claim', claim, 'marker', COALESCE(key, ''))
			WHEN phase = 'PENDING' THEN jsonb_build_object('state', 'filling', 'claim', claim)
			ELSE '{"state": "absent"}' END,
		jsonb_build_object(
			'storage.volume_ready', pg_temp.condition(live, 'Ready', 'NoVolume', ''),
			'storage.archive_ready', pg_temp.condition(key IS NOT NULL, 'Ready', 'NoArchive', COALESCE(key, '')),
			'infra.container_ready', pg_temp.condition(phase = 'RUNNING', 'Ready', 'NoContainer', ''),
			'policy.healthy', pg_temp.condition(true, 'Healthy', '', '')),
		phase, now() - i % 1000 * interval '1 minute',
		CASE WHEN key IS NOT NULL THEN md5('made' || i)::uuid END, key,
		CASE WHEN key IS NULL THEN '' ELSE encode(sha256(key::bytea), 'hex') END,
		CASE WHEN key IS NULL THEN 0 ELSE 123456789 END,
		CASE phase WHEN 'PENDING' THEN 'ActionFailed' WHEN 'ERROR' THEN 'RetryExceeded' END,
		CASE WHEN phase IN ('PENDING', 'ERROR') THEN 'Docker refused it.' END,
		CASE phase WHEN 'PENDING' THEN 2 WHEN 'ERROR' THEN 3 ELSE 0 END,
		CASE phase WHEN 'PENDING' THEN now() + interval '1 hour' END,
		CASE phase WHEN 'STANDBY' THEN 'STANDBY' WHEN 'ARCHIVED' THEN 'ARCHIVED' ELSE 'RUNNING' END,
		now() - i % 1000 * interval '1 minute', 'editor', now() - interval '30 days'
	FROM kept
	JOIN (SELECT id AS user_id, row_number() OVER (ORDER BY username_key) AS n FROM users WHERE username LIKE 'user %') u ON u.n = (i + 9) / 10`

// conditionFunction creates a SQL function that returns one condition of a row,
// for populationSQL.
const conditionFunction = `
	CREATE FUNCTION pg_temp.condition(holds boolean, yes text, no text, message text) RETURNS jsonb LANGUAGE sql AS $$
		SELECT jsonb_build_object('status', CASE WHEN holds THEN 'True' ELSE 'False' END, 'reason', CASE WHEN holds THEN yes ELSE no END,
			'message', message, 'last_transition_time', now() - interval '1 day')
	$$`

// staticRuntime is a runtime whose containers and volumes match the rows of a
// population. It lists them at once, and they do not change.
type staticRuntime struct {
	*runtimetest.Fake
	containers []runtime.Container
	volumes    []runtime.Volume
}

func (s *staticRuntime) Containers(context.Context) ([]runtime.Container, error) {
	return s.containers, nil
}
func (s *staticRuntime) Volumes(context.Context) ([]runtime.Volume, error)        { return s.volumes, nil }
func (s *staticRuntime) Jobs(context.Context) ([]runtime.Job, error)              { return nil, nil }
func (s *staticRuntime) Disks(context.Context) ([]runtime.Disk, error)            { return nil, nil }
func (s *staticRuntime) Prepare(context.Context) error                            { return nil }
func (s *staticRuntime) SettleVolume(context.Context, workspace.ID, string) error { return nil }

// newStaticRuntime returns a runtime that matches the rows.
func newStaticRuntime(ctx context.Context, conn *pgx.Conn) (*staticRuntime, error) {
	s := &staticRuntime{Fake: runtimetest.NewFake()}
	rows, err := conn.Query(ctx, `
		SELECT id::text, home_ctx ->> 'claim', home_ctx ->> 'marker', storage_backend, phase = 'RUNNING'
		FROM workspaces WHERE home_ctx ->> 'state' = 'live' ORDER BY id`)
	if err != nil {
		return nil, err
	}
	var id, claim, marker, storage string
	var runs bool
	_, err = pgx.ForEachRow(rows, []any{&id, &claim, &marker, &storage, &runs}, func() error {
		s.volumes = append(s.volumes, runtime.Volume{Workspace: workspace.ID(id), Storage: storage, Claim: claim, Marker: marker, Held: true})
		if runs {
			s.containers = append(s.containers, runtime.Container{
				ID: fmt.Sprintf("%064x", len(s.containers)), Workspace: workspace.ID(id), Claim: claim,
				State: runtime.ContainerRunning, Detail: "Up 2 hours", Addr: "10.0.0.2:8080",
			})
		}
		return nil
	})
	return s, err
}
