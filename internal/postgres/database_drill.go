package postgres

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/api"
)

// SaveDatabaseDrill records the result of a drill in place of the last one, with the database's
// time.
func (db *DB) SaveDatabaseDrill(ctx context.Context, d api.DatabaseDrill) error {
	result, err := jsonOf(&d)
	if err != nil {
		return err
	}
	_, err = db.pool.Exec(ctx, `
		INSERT INTO database_drill (result) VALUES ($1)
		ON CONFLICT (only_row) DO UPDATE SET result = excluded.result, ended_at = clock_timestamp()`, result)
	return failed("record the drill of the database", err)
}

// DatabaseDrill reads the result of the last drill, and how long ago it ended; nil: there was none.
func (db *DB) DatabaseDrill(ctx context.Context) (d *api.DatabaseDrill, age time.Duration, err error) {
	err = pgx.BeginTxFunc(ctx, db.pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) (err error) {
		if d, err = databaseDrill(ctx, tx); err != nil || d == nil {
			return err
		}
		var seconds float64
		err = tx.QueryRow(ctx, `SELECT EXTRACT(EPOCH FROM clock_timestamp() - $1)::float8`, d.EndedAt).Scan(&seconds)
		age = time.Duration(seconds * float64(time.Second))
		return err
	})
	return d, age, failed("read the drill of the database", err)
}

func databaseDrill(ctx context.Context, tx pgx.Tx) (*api.DatabaseDrill, error) {
	var d api.DatabaseDrill
	var at time.Time
	var result []byte
	err := tx.QueryRow(ctx, `SELECT ended_at, result FROM database_drill`).Scan(&at, &result)
	if missing(err) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(result, &d)
	}
	d.EndedAt = at
	return &d, err
}
