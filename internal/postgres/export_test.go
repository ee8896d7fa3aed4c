package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
)

// Audit records an action by itself.
func (db *DB) Audit(ctx context.Context, caller workspace.Caller, action, target string, details map[string]any) error {
	return pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error { return audit(ctx, tx, caller, action, target, details) })
}

// Impatient makes l notice a silent connection within 2d.
func (l *Listener) Impatient(d time.Duration) *Listener {
	l.pingEvery, l.pingTimeout = d, d
	return l
}
