package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// ReplicaAlive is how long a server counts as alive after its last heartbeat.
const ReplicaAlive = 60 * time.Second

// replicaForgotten is how long a server without heartbeats stays in the list.
const replicaForgotten = 24 * time.Hour

// replicasKey is the advisory lock under which servers join one at a time.
const replicasKey int64 = 0x636f646568756207

// Replica is a codehub server on this database. Times are the database's.
type Replica struct {
	ID       string // a UUID, of this process alone
	Hostname string
	Version  string
	// Settings are the settings that servers compare, by name.
	Settings map[string]string
	Health   json.RawMessage // state of its backends, in the format of its own version; nil: unknown

	StartedAt time.Time
	SeenAt    time.Time
	FlushedAt *time.Time    // the activity that it saw is flushed through this time
	Age       time.Duration // since SeenAt
	Leads     bool          // its session holds the leader's lock
	Alive     bool          // seen within ReplicaAlive
}

// JoinReplica records r, unless check refuses it because of the known servers; check's error is
// returned unchanged. Servers that join at the same time do so one after the other, so each
// sees the previous ones. While another server migrates the database, JoinReplica waits; the error
// is *Outdated if this server does not work with it afterwards. Rows of servers without a heartbeat
// for a day are removed.
func (db *DB) JoinReplica(ctx context.Context, r Replica, check func(others []Replica) error) error {
	for {
		err := db.joinReplica(ctx, r, check)
		if !errors.Is(err, errMigrating) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(migrationPoll):
		}
	}
}

func (db *DB) joinReplica(ctx context.Context, r Replica, check func(others []Replica) error) error {
	const verb = "join the servers of this database"
	var objection error
	err := db.tx(ctx, verb, func(tx pgx.Tx) (err error) {
		if objection, err = db.checkCompatible(ctx, tx); objection != nil || err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, replicasKey); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `DELETE FROM replicas WHERE seen_at < clock_timestamp() - $1::interval`, replicaForgotten); err != nil {
			return err
		}
		others, err := readReplicas(ctx, tx)
		if err != nil {
			return err
		}
		if objection = check(others); objection != nil {
			return nil
		}
		return writeReplica(ctx, tx, r)
	})
	if err != nil {
		return err
	}
	return objection
}

// BeatReplica records a heartbeat of r and the state of its backends. The error is *Outdated if
// the database was migrated so that this server, whose heartbeats had stopped, does not work with
// it any more: it has to end.
func (db *DB) BeatReplica(ctx context.Context, r Replica) error {
	const verb = "tell that this server is alive"
	objection, err := db.outdated(ctx, db.pool)
	if err != nil {
		return failed(verb, err)
	}
	if objection != nil {
		return objection
	}
	return failed(verb, writeReplica(ctx, db.pool, r))
}

// writeReplica writes the whole row, since the row of a server that was suspended
// may have been removed.
func writeReplica(ctx context.Context, in execer, r Replica) error {
	settings, err := jsonOf(&r.Settings)
	if err != nil {
		return err
	}
	health := r.Health
	if health == nil {
		health = json.RawMessage(`{}`)
	}
	_, err = in.Exec(ctx, `
		INSERT INTO replicas (id, hostname, version, settings, health, started_at, seen_at)
		VALUES ($1, $2, $3, $4, $5, clock_timestamp(), clock_timestamp())
		ON CONFLICT (id) DO UPDATE SET seen_at = clock_timestamp(), health = EXCLUDED.health`,
		r.ID, clean(r.Hostname), clean(r.Version), settings, storableJSON(health))
	return err
}

// LeaveReplica removes a server that shuts down from the list.
func (db *DB) LeaveReplica(ctx context.Context, id string) error {
	_, err := db.pool.Exec(ctx, `DELETE FROM replicas WHERE id = $1`, id)
	return failed("leave the servers of this database", err)
}

// Replicas lists the known servers, the oldest first. A server that ended without
// leaving stays in the list for a day.
func (db *DB) Replicas(ctx context.Context) ([]Replica, error) {
	list, err := readReplicas(ctx, db.pool)
	return list, failed("read the servers of this database", err)
}

func readReplicas(ctx context.Context, in querier) ([]Replica, error) {
	rows, err := in.Query(ctx, `
		SELECT r.id, r.hostname, r.version, r.settings, r.health, r.started_at, r.seen_at, r.flushed_at,
			clock_timestamp() - r.seen_at, COALESCE(r.id = l.replica_id, false)
		FROM replicas r LEFT JOIN (`+leading+`) l ON true
		ORDER BY r.started_at, r.id`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r Replica, err error) {
		err = row.Scan(&r.ID, &r.Hostname, &r.Version, &r.Settings, &r.Health, &r.StartedAt, &r.SeenAt, &r.FlushedAt, &r.Age, &r.Leads)
		r.Alive = r.Age < ReplicaAlive
		return r, err
	})
}

// HasHomesIn reports whether any workspace has its home on that storage.
func (db *DB) HasHomesIn(ctx context.Context, storage string) (yes bool, err error) {
	err = db.pool.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM workspaces WHERE storage_backend = $1 AND phase <> 'DELETED')`, storage).Scan(&yes)
	return yes, failed("look for homes", err)
}
