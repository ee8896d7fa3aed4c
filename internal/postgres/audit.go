package postgres

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"codehub/internal/workspace"
)

// Actions in the audit log, in addition to those of package lifecycle. Each entry is written in
// the transaction of its change.
const (
	AuditLogin       = "login"
	AuditLogout      = "logout"
	AuditSessionEnd  = "session.end"
	AuditTokenCreate = "token.create"
	AuditTokenDelete = "token.delete"
	AuditUserCreate  = "user.create"
	AuditUserChange  = "user.change"
	AuditPassword    = "user.password"
	AuditCreate      = "workspace.create"
)

type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// audit records that caller did action to target.
func audit(ctx context.Context, tx pgx.Tx, caller workspace.Caller, action, target string, details map[string]any) error {
	if details == nil {
		details = map[string]any{}
	}
	b, err := json.Marshal(details)
	if err != nil {
		return fmt.Errorf("encode the details: %w", err)
	}
	var user *string
	if caller != workspace.System {
		user = nullable(caller.UserID)
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO audit_log (user_id, username, token_id, action, target, details)
		VALUES ($1, $2, $3, $4, $5, $6)`,
		user, clean(caller.Username), nullable(caller.Token), action, clean(target), storableJSON(b))
	return err
}
