package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"codehub/api"
	"codehub/internal/workspace"
)

const accountColumns = `u.id, u.username, u.admin, u.disabled, u.max_running, u.max_workspaces, u.max_bytes,
	CASE WHEN u.locked_until > now() THEN u.locked_until END, u.created_at,
	(SELECT count(*) FROM workspaces w WHERE w.holds_slot AND w.owner_user_id = u.id),
	(SELECT count(*) FROM workspaces w WHERE w.owner_user_id = u.id AND w.deleted_at IS NULL),
	(SELECT ` + ownedBytes + ` FROM workspaces w WHERE w.owner_user_id = u.id AND w.deleted_at IS NULL),
	COALESCE(k.bytes, 0),
	u.suspended_for, u.suspended_at, (SELECT count(*) FROM passkeys k WHERE k.user_id = u.id),
	(SELECT i.expires_at FROM invitations i WHERE i.user_id = u.id AND i.expires_at > now()),
	l.max_running, l.running_from, COALESCE(l.running_group, ''), l.max_workspaces, l.workspaces_from, COALESCE(l.workspaces_group, ''),
	l.max_bytes, l.bytes_from, COALESCE(l.bytes_group, '')`

// accountJoins is what accountColumns need besides the users u.
const accountJoins = `JOIN user_limits l ON l.user_id = u.id LEFT JOIN (
		SELECT w.owner_user_id, sum(b.stored + b.size)::bigint AS bytes
		FROM home_backups b JOIN workspaces w ON w.id = b.workspace_id GROUP BY w.owner_user_id
	) k ON k.owner_user_id = u.id`

// Account is a user as administrators see it, and AccountList a page of them.
type (
	Account     = api.Account
	AccountList = api.AccountList
)

func (db *DB) toAccount(row pgx.CollectableRow) (Account, error) {
	var a Account
	l := &a.Limits
	var running, workspaces, bytes *int64 // nil: the server's
	err := row.Scan(&a.ID, &a.Username, &a.Admin, &a.Disabled, &a.MaxRunning, &a.MaxWorkspaces, &a.MaxBytes,
		&a.LockedTill, &a.CreatedAt, &a.Running, &a.Workspaces, &a.Bytes, &a.BackupBytes,
		&a.Suspended, &a.SuspendedSince, &a.Passkeys, &a.InvitedUntil,
		&running, &l.Running.From, &l.Running.Group, &workspaces, &l.Workspaces.From, &l.Workspaces.Group,
		&bytes, &l.Bytes.From, &l.Bytes.Group)
	l.Running.Max = valueOr(running, int64(db.limits.PerUser))
	l.Workspaces.Max = valueOr(workspaces, int64(db.limits.Workspaces))
	l.Bytes.Max = valueOr(bytes, db.limits.Bytes)
	l.Backups = api.Limit{Max: db.limits.BackupBytes, From: api.LimitServer}
	return a, err
}

func valueOr[T any](p *T, or T) T {
	if p == nil {
		return or
	}
	return *p
}

// accountsKey is the advisory lock under which administrator rights change.
const accountsKey int64 = 0x636f6465687562a0

// administrators takes the lock of the accounts, so that concurrent changes cannot remove the
// last administrator, and returns the ids of the enabled administrators. CodeForbidden unless
// the caller is one of them or System.
func administrators(ctx context.Context, tx pgx.Tx, caller workspace.Caller) (map[string]bool, error) {
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, accountsKey); err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, `SELECT id FROM users WHERE admin AND active`)
	if err != nil {
		return nil, err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	all := make(map[string]bool, len(ids))
	for _, id := range ids {
		all[id] = true
	}
	if caller != workspace.System && !all[caller.UserID] {
		return nil, notAdmin()
	}
	return all, nil
}

// administers returns CodeForbidden unless the caller is an administrator now.
func (db *DB) administers(ctx context.Context, caller workspace.Caller) error {
	if caller == workspace.System {
		return nil
	}
	var admin bool
	if workspace.ValidID(caller.UserID) {
		err := db.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM users WHERE id = $1 AND admin AND active)`, caller.UserID).Scan(&admin)
		if err != nil {
			return failed("look up who administers", err)
		}
	}
	if !admin {
		return notAdmin()
	}
	return nil
}

func notAdmin() error {
	return workspace.Errorf(workspace.CodeForbidden, "Only administrators can do this.")
}

// AccountFilter selects users.
type AccountFilter struct {
	Query string // part of the name, without regard to case; empty: all
	Page
}

// Accounts lists users by name, one page at a time. Only administrators may call it.
func (db *DB) Accounts(ctx context.Context, caller workspace.Caller, f AccountFilter) (AccountList, error) {
	if err := db.administers(ctx, caller); err != nil {
		return AccountList{}, err
	}
	after, err := nameCursor(f.Cursor)
	if err != nil {
		return AccountList{}, err
	}
	const verb = "list the users"
	rows, err := db.pool.Query(ctx, `
		SELECT `+accountColumns+` FROM (
			SELECT * FROM users
			WHERE removed_at IS NULL AND ($1 = '' OR username_key COLLATE "C" > $1) AND ($3 = '' OR username_key LIKE $4)
			ORDER BY username_key COLLATE "C" LIMIT $2
		) u `+accountJoins+`
		ORDER BY u.username_key COLLATE "C"`, after, f.Size()+1, f.Query, containing(UsernameKey(f.Query)))
	if err != nil {
		return AccountList{}, failed(verb, err)
	}
	list, err := pgx.CollectRows(rows, db.toAccount)
	if err != nil {
		return AccountList{}, failed(verb, err)
	}
	var out AccountList
	out.Users, out.NextCursor = cutNames(list, f.Size(), func(a Account) string { return a.Username })
	return out, nil
}

// Account reads one user. Only administrators may call it.
func (db *DB) Account(ctx context.Context, caller workspace.Caller, id string) (Account, error) {
	if err := db.administers(ctx, caller); err != nil {
		return Account{}, err
	}
	if !workspace.ValidID(id) {
		return Account{}, notFound("user")
	}
	a, err := db.account(ctx, db.pool, id)
	if missing(err) {
		return Account{}, notFound("user")
	}
	return a, failed("read a user", err)
}

func (db *DB) account(ctx context.Context, in querier, id string) (Account, error) {
	rows, err := in.Query(ctx, `SELECT `+accountColumns+` FROM users u `+accountJoins+` WHERE u.id = $1 AND u.removed_at IS NULL`, id)
	if err != nil {
		return Account{}, err
	}
	return pgx.CollectExactlyOneRow(rows, db.toAccount)
}

// CreateAccount adds a user for an administrator, with the user's own limits. CodeNameTaken,
// CodeOneAccount.
func (db *DB) CreateAccount(ctx context.Context, caller workspace.Caller, u User) (Account, error) {
	var out Account
	err := db.tx(ctx, "create an account", func(tx pgx.Tx) error {
		if _, err := administrators(ctx, tx, caller); err != nil {
			return err
		}
		if err := db.roomFor(ctx, tx, ""); err != nil {
			return err
		}
		made, err := insertUser(ctx, tx, caller, u)
		if err != nil {
			return err
		}
		out, err = db.account(ctx, tx, made.ID)
		return err
	})
	return out, err
}

// AccountPatch holds an administrator's changes to a user. Fields that are nil or not set stay
// as they are.
type AccountPatch struct {
	Admin        *bool
	Disabled     *bool
	PasswordHash *string

	MaxRunning    workspace.Optional[int] // counts from the next start on
	MaxWorkspaces workspace.Optional[int] // counts from the next creation on
	MaxBytes      workspace.Optional[int64]
	// Stop also stops all workspaces of the user.
	Stop bool
}

// PatchAccount changes a user for an administrator. Disabling the user or setting a password
// ends all their sessions and API tokens; a new password also ends a lockout and a
// suspension. CodeNotFound;
// CodeLastAdmin if no enabled administrator would be left; CodeOneAccount if this one cannot be
// enabled.
func (db *DB) PatchAccount(ctx context.Context, caller workspace.Caller, id string, p AccountPatch) (Account, error) {
	var out Account
	err := db.tx(ctx, "change an account", func(tx pgx.Tx) error {
		admins, err := administrators(ctx, tx, caller)
		if err != nil {
			return err
		}
		if !workspace.ValidID(id) {
			return notFound("user")
		}
		var u User
		err = tx.QueryRow(ctx, `SELECT `+userColumns+` FROM users u WHERE id = $1 AND removed_at IS NULL FOR NO KEY UPDATE`, id).Scan(u.targets()...)
		if missing(err) {
			return notFound("user")
		}
		if err != nil {
			return err
		}
		changed := p.apply(&u)
		if last := len(admins) == 1 && admins[id]; last && (!u.Admin || u.Disabled) {
			return workspace.Errorf(workspace.CodeLastAdmin, "%s is the only administrator who can log in. Make another user an administrator first.", u.Username)
		}
		if changed["disabled"] == false {
			if err := db.roomFor(ctx, tx, id); err != nil {
				return err
			}
		}
		if len(changed) > 0 {
			if err := saveAccount(ctx, tx, u, p.PasswordHash != nil); err != nil {
				return err
			}
			if err := audit(ctx, tx, caller, AuditUserChange, id, changed); err != nil {
				return err
			}
		}
		if p.Stop {
			if err := stopAll(ctx, tx, caller, u); err != nil {
				return err
			}
		}
		out, err = db.account(ctx, tx, id)
		return err
	})
	return out, err
}

// apply changes u and returns the changes for the audit log, without password hashes.
func (p AccountPatch) apply(u *User) map[string]any {
	changed := map[string]any{}
	if p.Admin != nil && *p.Admin != u.Admin {
		u.Admin, changed["admin"] = *p.Admin, *p.Admin
	}
	if p.Disabled != nil && *p.Disabled != u.Disabled {
		u.Disabled, changed["disabled"] = *p.Disabled, *p.Disabled
	}
	if n := p.MaxRunning; n.Set && !same(n.Value, u.MaxRunning) {
		u.MaxRunning, changed["max_running"] = n.Value, n.Value
	}
	if n := p.MaxWorkspaces; n.Set && !same(n.Value, u.MaxWorkspaces) {
		u.MaxWorkspaces, changed["max_workspaces"] = n.Value, n.Value
	}
	if n := p.MaxBytes; n.Set && !same(n.Value, u.MaxBytes) {
		u.MaxBytes, changed["max_bytes"] = n.Value, n.Value
	}
	if p.PasswordHash != nil {
		u.PasswordHash, changed["password"] = *p.PasswordHash, true
	}
	if len(changed) > 0 {
		changed["username"] = u.Username
	}
	return changed
}

// same reports whether both are nil, or have the same value.
func same[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }

func saveAccount(ctx context.Context, tx pgx.Tx, u User, password bool) error {
	_, err := tx.Exec(ctx, `
		UPDATE users SET admin = $2, disabled = $3, max_running = $4, password_hash = $5,
			failed_logins = CASE WHEN $6 THEN 0 ELSE failed_logins END,
			locked_until = CASE WHEN $6 THEN NULL ELSE locked_until END,
			suspended_for = CASE WHEN $6 THEN NULL ELSE suspended_for END, max_workspaces = $7, max_bytes = $8
		WHERE id = $1`, u.ID, u.Admin, u.Disabled, u.MaxRunning, u.PasswordHash, password, u.MaxWorkspaces, u.MaxBytes)
	if err != nil || !u.Disabled && !password {
		return err
	}
	return endAccess(ctx, tx, u.ID)
}

// endAccess ends all sessions and API tokens of the user and an invitation, and removes their SSH
// keys: any of them may be an intruder's.
func endAccess(ctx context.Context, tx pgx.Tx, userID string) error {
	for _, table := range []string{"sessions", "api_tokens", "ssh_keys", "passkey_attempts", "invitations"} {
		if _, err := tx.Exec(ctx, `DELETE FROM `+table+` WHERE user_id = $1`, userID); err != nil {
			return err
		}
	}
	return nil
}
