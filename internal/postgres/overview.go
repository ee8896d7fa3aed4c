package postgres

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/api"
	"codehub/internal/workspace"
)

// aliveFor is how long a server that was seen counts as alive, and leadsFor
// how old the leader's beat may be before another one takes its place.
const (
	aliveFor = 60 * time.Second
	leadsFor = 15 * time.Second
)

// AdminStatus is how servers and workspaces fare; for administrators alone.
func (db *DB) AdminStatus(ctx context.Context, caller workspace.Caller) (api.AdminStatus, error) {
	out := api.AdminStatus{
		Phases: map[string]int{}, Operations: map[string]int{},
		MaxRunning: db.limits.Global, PerUser: db.limits.PerUser,
	}
	if err := db.administers(ctx, caller); err != nil {
		return api.AdminStatus{}, err
	}
	err := pgx.BeginTxFunc(ctx, db.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) (err error) {
		if out.Servers, err = servers(ctx, tx); err != nil {
			return err
		}
		if err := counts(ctx, tx, &out); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, `SELECT hold, hold_since FROM gc_state`).Scan(orEmpty(&out.Hold), &out.HoldSince); err != nil {
			return err
		}
		err = tx.QueryRow(ctx, `SELECT watched_until FROM activity_clock`).Scan(&out.WatchedUntil)
		if missing(err) {
			err = nil
		}
		return err
	})
	return out, failed("read how the servers fare", err)
}

func servers(ctx context.Context, tx pgx.Tx) ([]api.Server, error) {
	rows, err := tx.Query(ctx, `
		SELECT r.id, r.hostname, r.version, r.started_at, r.seen_at, r.flushed_at, r.health,
			r.seen_at > now() - make_interval(secs => $1),
			COALESCE(l.replica_id = r.id AND l.beat_at > now() - make_interval(secs => $2), false)
		FROM replicas r LEFT JOIN leader l ON true ORDER BY r.started_at, r.id`, aliveFor.Seconds(), leadsFor.Seconds())
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (s api.Server, err error) {
		var health []byte
		if err = row.Scan(&s.ID, &s.Hostname, &s.Version, &s.StartedAt, &s.SeenAt, &s.FlushedAt, &health, &s.Alive, &s.Leads); err != nil {
			return s, err
		}
		// What a server of another version says otherwise is left out.
		if json.Unmarshal(health, &s.Backends) != nil || s.Backends == nil {
			s.Backends = map[string]api.Breaker{}
		}
		return s, nil
	})
}

func counts(ctx context.Context, tx pgx.Tx, out *api.AdminStatus) error {
	rows, err := tx.Query(ctx, `
		SELECT phase, operation, count(*), count(*) FILTER (WHERE holds_slot)
		FROM workspaces WHERE phase <> 'DELETED' GROUP BY phase, operation`)
	if err != nil {
		return err
	}
	var phase, op string
	var n, running int
	_, err = pgx.ForEachRow(rows, []any{&phase, &op, &n, &running}, func() error {
		out.Phases[phase] += n
		out.Running += running
		if op != string(workspace.OpNone) {
			out.Operations[op] += n
		}
		return nil
	})
	return err
}
