package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"codehub/internal/workspace"
)

// Actions in the audit log, in addition to those of package lifecycle. Each entry is written in
// the transaction of its change.
const (
	AuditLogin        = "login"
	AuditLogout       = "logout"
	AuditSessionEnd   = "session.end"
	AuditTokenCreate  = "token.create"
	AuditTokenDelete  = "token.delete"
	AuditUserCreate   = "user.create"
	AuditUserChange   = "user.change"
	AuditPassword     = "user.password"
	AuditCreate       = "workspace.create"
	AuditSSHKeyAdd    = "ssh_key.add"
	AuditSSHKeyDelete = "ssh_key.delete"

	AuditIdentityLink   = "identity.link"
	AuditIdentityUnlink = "identity.unlink"
	AuditIdentityEnd    = "identity.end" // the provider does not accept the user any more
	AuditIdentityLogout = "identity.logout"
	AuditPasswordLogin  = "user.password_login"
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

// AuditSettings is how long the audit log is kept, as codehub serve declares it.
type AuditSettings struct {
	Keep time.Duration `name:"audit-keep" env:"CODEHUB_AUDIT_KEEP" min:"0" max:"87600h" default:"8760h" help:"How long entries of the audit log are kept (0 = for ever)."`
}

// DeleteOldAudit removes the oldest entries of the audit log that are older than keep, at
// most limit, and returns their number.
func (db *DB) DeleteOldAudit(ctx context.Context, keep time.Duration, limit int) (int64, error) {
	tag, err := db.pool.Exec(ctx, `
		DELETE FROM audit_log WHERE id IN (
			SELECT id FROM audit_log WHERE at < now() - make_interval(secs => $1) ORDER BY at, id LIMIT $2 FOR UPDATE SKIP LOCKED)`,
		keep.Seconds(), limit)
	return tag.RowsAffected(), failed("remove old audit entries", err)
}
