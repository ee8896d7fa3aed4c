package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"codehub/api"
	"codehub/internal/base/setting"
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
	if caller.Inside {
		details = maps.Clone(details)
		details["asked_by"] = "workspace"
	}
	b, err := json.Marshal(details)
	if err != nil {
		return fmt.Errorf("encode the details: %w", err)
	}
	var user *string
	if caller != workspace.System {
		user = nullable(caller.UserID)
	}
	var from *netip.Addr
	if caller.Address.IsValid() {
		a := caller.Address.Unmap().WithZone("")
		from = &a
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO audit_log (user_id, username, token_id, address, action, target, details)
		VALUES ($1, $2, $3, $4, $5, $6, $7)`,
		user, clean(caller.Username), nullable(caller.Token), from, action, clean(target), storableJSON(b))
	return err
}

// AuditSettings is how long the audit log is kept, as codehub serve declares it.
type AuditSettings struct {
	Keep time.Duration `name:"audit-keep" env:"CODEHUB_AUDIT_KEEP" min:"0" max:"87600h" default:"8760h" help:"How long entries of the audit log are kept; at least 24h (0 = for ever)."`
}

// Resolve checks the settings. The database removes no entry that is younger than a day.
func (s *AuditSettings) Resolve() error {
	if s.Keep > 0 && s.Keep < 24*time.Hour {
		return setting.Invalid("CODEHUB_AUDIT_KEEP", fmt.Sprintf("%s is too short", s.Keep), "give at least 24h, or 0 to keep the audit log for ever")
	}
	return nil
}

// AuditRemove is the action of a removal of old entries. Its details have their number and the
// time of the last one.
const AuditRemove = "audit.remove"

// DeleteOldAudit removes the oldest entries of the audit log that are older than keep, at
// most limit, and returns their number. The log has an entry about it.
func (db *DB) DeleteOldAudit(ctx context.Context, keep time.Duration, limit int) (n int64, err error) {
	err = db.tx(ctx, "remove old audit entries", func(tx pgx.Tx) error {
		var last *time.Time
		err := tx.QueryRow(ctx, `
			WITH removed AS (
				DELETE FROM audit_log WHERE id IN (
					SELECT id FROM audit_log WHERE at < now() - make_interval(secs => $1) ORDER BY at, id LIMIT $2 FOR UPDATE SKIP LOCKED)
				RETURNING at)
			SELECT count(*), max(at) FROM removed`, keep.Seconds(), limit).Scan(&n, &last)
		if err != nil || n == 0 {
			return err
		}
		return audit(ctx, tx, workspace.System, AuditRemove, "", map[string]any{"entries": n, "until": last})
	})
	return n, err
}

// AuditEntry is an entry of the audit log.
type AuditEntry = api.AuditEntry

// AuditFilter selects entries of the audit log.
type AuditFilter struct {
	User   string    // name or id; empty: any
	Action string    // an action, or the beginning of actions up to a dot, such as "workspace."; empty: any
	Target string    // an id; empty: any
	Since  time.Time // zero: no bound
	Until  time.Time // zero: no bound
	Oldest bool      // the oldest come first
	Page
}

// Audit lists entries of the audit log, the newest first unless Oldest is set, and returns the
// cursor of the next page, "" at the end. Only administrators may call it.
func (db *DB) Audit(ctx context.Context, caller workspace.Caller, f AuditFilter) (list []AuditEntry, next string, err error) {
	if err := db.administers(ctx, caller); err != nil {
		return nil, "", err
	}
	q, err := f.where()
	if err != nil {
		return nil, "", err
	}
	order := "DESC"
	if f.Oldest {
		order = "ASC"
	}
	const verb = "read the audit log"
	rows, err := db.pool.Query(ctx, fmt.Sprintf(`
		SELECT a.id, a.at, COALESCE(a.user_id::text, ''), a.username, COALESCE(a.token_id::text, ''), COALESCE(host(a.address), ''), a.action, a.target,
			COALESCE(w.name, u.username, a.details ->> 'name', a.details ->> 'username', ''), a.details
		FROM (SELECT *, CASE WHEN target ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN target::uuid END AS object
			FROM audit_log WHERE %s ORDER BY id %s LIMIT %d) a
		LEFT JOIN workspaces w ON w.id = a.object LEFT JOIN users u ON u.id = a.object
		ORDER BY a.id %[2]s`, strings.Join(q.parts, ` AND `), order, f.Size()+1), q.args...)
	if err != nil {
		return nil, "", failed(verb, err)
	}
	list, err = pgx.CollectRows(rows, pgx.RowToStructByPos[AuditEntry])
	if err != nil {
		return nil, "", failed(verb, err)
	}
	if n := f.Size(); len(list) > n {
		list = list[:n]
		next = strconv.FormatInt(list[n-1].ID, 36)
	}
	return list, next, nil
}

func (f AuditFilter) where() (q where, err error) {
	q.add(`true`)
	switch {
	case workspace.ValidID(f.User):
		q.add(`user_id = ?`, f.User)
	case f.User != "":
		q.add(`lower(username) = lower(?)`, f.User)
	}
	switch {
	case strings.HasSuffix(f.Action, "."):
		q.add(`action LIKE ?`, strings.TrimPrefix(containing(f.Action), "%"))
	case f.Action != "":
		q.add(`action = ?`, f.Action)
	}
	if f.Target != "" {
		q.add(`target = ?`, f.Target)
	}
	if !f.Since.IsZero() {
		q.add(`at >= ?`, f.Since)
	}
	if !f.Until.IsZero() {
		q.add(`at < ?`, f.Until)
	}
	if f.Cursor != "" {
		id, err := strconv.ParseInt(f.Cursor, 36, 64)
		if err != nil {
			return q, invalidCursor()
		}
		if f.Oldest {
			q.add(`id > ?`, id)
		} else {
			q.add(`id < ?`, id)
		}
	}
	return q, nil
}

// AuditExport is the action of an export of the audit log.
const AuditExport = "audit.export"

// ExportAudit passes the entries that f selects to each, the oldest first, without a bound on
// their number. It ends at f.Until or earlier, before every entry whose transaction has not
// committed yet, and passes that time to begin first: an export since then has all other
// entries. The log has an entry about it. Only administrators may call it.
func (db *DB) ExportAudit(ctx context.Context, caller workspace.Caller, f AuditFilter, begin func(until time.Time), each func(AuditEntry) error) error {
	if err := db.administers(ctx, caller); err != nil {
		return err
	}
	if _, err := f.where(); err != nil {
		return err
	}
	var until time.Time
	err := db.tx(ctx, "export the audit log", func(tx pgx.Tx) (err error) {
		if until, err = auditComplete(ctx, tx); err != nil {
			return err
		}
		if !f.Until.IsZero() && f.Until.Before(until) {
			until = f.Until
		}
		details := map[string]any{"until": until.UTC()}
		if !f.Since.IsZero() {
			details["since"] = f.Since.UTC()
		}
		for name, v := range map[string]string{"user": f.User, "action": f.Action, "target": f.Target} {
			if v != "" {
				details[name] = v
			}
		}
		return audit(ctx, tx, caller, AuditExport, "", details)
	})
	if err != nil {
		return err
	}
	begin(until)
	f.Oldest, f.Limit, f.Until = true, MaxList, until
	for {
		list, next, err := db.Audit(ctx, caller, f)
		if err != nil {
			return err
		}
		for _, e := range list {
			if err := each(e); err != nil {
				return err
			}
		}
		if next == "" {
			return nil
		}
		f.Cursor = next
	}
}

// auditComplete returns a time before which no entry is added any more: that at which the oldest
// running transaction began. The time of an entry is that of its insertion, which other
// transactions see only after the commit.
func auditComplete(ctx context.Context, tx pgx.Tx) (until time.Time, err error) {
	err = tx.QueryRow(ctx, `
		SELECT least(now(), min(xact_start)) FROM pg_stat_activity
		WHERE datname = current_database() AND backend_type = 'client backend'`).Scan(&until)
	return until, err
}
