package postgres

import "context"

// HasArchives reports whether any archive was ever made or found.
func (db *DB) HasArchives(ctx context.Context) (bool, error) {
	var has bool
	err := db.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM archives)`).Scan(&has)
	return has, failed("look for archives", err)
}
