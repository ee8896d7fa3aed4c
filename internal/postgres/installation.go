package postgres

import (
	"context"

	"github.com/google/uuid"
)

// Installation returns the id of this installation, a UUID generated once per database.
// Containers and volumes are labelled with it, so that installations on the same Docker do not
// touch each other's.
func (db *DB) Installation(ctx context.Context) (string, error) {
	const verb = "read the installation's id"
	_, err := db.pool.Exec(ctx, `INSERT INTO installation (id) VALUES ($1) ON CONFLICT DO NOTHING`, uuid.NewString())
	if err != nil {
		return "", failed(verb, err)
	}
	var id string
	err = db.pool.QueryRow(ctx, `SELECT id FROM installation`).Scan(&id)
	return id, failed(verb, err)
}

// SetupKey returns a secret of this installation, the same on all servers, from which the code
// of the setup page is made.
func (db *DB) SetupKey(ctx context.Context) ([]byte, error) {
	if _, err := db.Installation(ctx); err != nil { // makes the row
		return nil, err
	}
	var key []byte
	err := db.pool.QueryRow(ctx, `SELECT sha256(convert_to('setup code ' || failure_key, 'UTF8')) FROM installation`).Scan(&key)
	return key, failed("read the key of the setup code", err)
}
