package server

import (
	"context"
	"log/slog"

	"codehub/internal/postgres"
	"codehub/internal/users/sealed"
)

// checkKeys warns of values in the database whose key is missing, as after a restore without the
// key file.
func checkKeys(ctx context.Context, keys *sealed.Ring, db *postgres.DB, log *slog.Logger) error {
	counts, err := db.SealedKeys(ctx)
	for _, id := range keys.Keys() {
		delete(counts, id)
	}
	for id, values := range counts {
		log.Warn("encrypted values cannot be read, since their key is missing", "key", id, "values", values, "file", keys.File())
	}
	return err
}
