package postgres

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
)

// The methods of this file record what `codehub import` brings to this installation.

// Actions of imports in the audit log.
const (
	AuditUserImport = "user.import"
	AuditImport     = "workspace.import"
)

// FirstVersion is the source of arrivals from codehub's first version. Other sources are
// installations.
const FirstVersion = "first-version"

// importKey is the advisory lock of imports.
const importKey int64 = 0x636f646568756206

// LockImport locks the database against other imports and garbage collections until release;
// CodeOperationInProgress if another import runs. A garbage collection could mistake a slow
// upload for an abandoned one. If the connection with the locks is lost, the claims still
// prevent two imports of one workspace.
func (db *DB) LockImport(ctx context.Context) (release func(), err error) {
	const verb = "take the import's lock"
	pooled, err := db.pool.Acquire(ctx)
	if err != nil {
		return nil, failed(verb, err)
	}
	// The locks belong to the session, so it does not return to the pool.
	conn := pooled.Hijack()
	release = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		// Unlock explicitly: PostgreSQL releases the locks of a closed connection
		// only some time later, and would refuse the next import until then.
		_, _ = conn.Exec(ctx, `SELECT pg_advisory_unlock_all()`)
		_ = conn.Close(ctx)
	}
	got, err := tryLock(ctx, conn, importKey)
	if err == nil && !got {
		err = workspace.Errorf(workspace.CodeOperationInProgress, "Another import is running on this database.")
	}
	for err == nil {
		if got, err = tryLock(ctx, conn, collectionKey); got {
			return release, nil
		}
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-time.After(collectionPoll): // a collection takes seconds
		}
	}
	release()
	return nil, failed(verb, err)
}

const collectionPoll = 100 * time.Millisecond

func tryLock(ctx context.Context, conn *pgx.Conn, key int64) (got bool, err error) {
	err = conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, key).Scan(&got)
	return got, err
}

// HasAdmin reports whether there is an administrator who is not disabled.
func (db *DB) HasAdmin(ctx context.Context) (bool, error) {
	var has bool
	err := db.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM users WHERE admin AND NOT disabled)`).Scan(&has)
	return has, failed("look for administrators", err)
}

// GrantAdmin makes a user an administrator.
func (db *DB) GrantAdmin(ctx context.Context, userID string) error {
	return db.tx(ctx, "make an administrator", func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `UPDATE users SET admin = true WHERE id = $1`, userID); err != nil {
			return err
		}
		return audit(ctx, tx, workspace.System, AuditUserImport, userID, map[string]any{"admin": true})
	})
}

// ArrivedUsers returns the ids here of users from a source, by their ids there. Users that were
// removed since are included.
func (db *DB) ArrivedUsers(ctx context.Context, source string) (map[string]string, error) {
	list, err := db.listArrivals(ctx, `kind = 'user' AND source = $1`, source)
	ids := make(map[string]string, len(list))
	for _, a := range list {
		ids[a.OldID] = string(a.ID)
	}
	return ids, err
}

// Moved returns the ids of imported workspaces by their ids in the first version.
func (db *DB) Moved(ctx context.Context) (map[string]workspace.ID, error) {
	list, err := db.listArrivals(ctx, `kind = 'workspace' AND source = $1 AND arrived_at IS NOT NULL`, FirstVersion)
	if err != nil {
		return nil, err
	}
	ids := make(map[string]workspace.ID, len(list))
	for _, a := range list {
		ids[a.OldID] = a.ID
	}
	return ids, nil
}

// ArrivedUser is a user of a source.
type ArrivedUser struct {
	Source, OldID string // without a source there is no record of the user
	// User is the user to add; with an ID it is an existing one, who is not changed.
	User
	// Identities are linked to a user that is added. An existing user gets none: only the user can
	// say that the account at the provider is theirs.
	Identities []ArrivedIdentity
}

// ArrivedIdentity is an account at an identity provider that the source has linked to a user.
type ArrivedIdentity struct{ Issuer, Subject, Username string }

// AddArrivedUser adds a user of a source, or records that it is an existing user, and returns
// the id here. A user who is recorded already is not changed. CodeNameTaken if another user
// has this name.
func (db *DB) AddArrivedUser(ctx context.Context, u ArrivedUser) (id string, err error) {
	err = db.tx(ctx, "import a user", func(tx pgx.Tx) (err error) {
		id, err = addArrivedUser(ctx, tx, u)
		return err
	})
	return id, err
}

func addArrivedUser(ctx context.Context, tx pgx.Tx, u ArrivedUser) (id string, err error) {
	if u.Source != "" {
		err = tx.QueryRow(ctx, `SELECT id FROM arrivals WHERE source = $1 AND kind = 'user' AND old_id = $2`, u.Source, u.OldID).Scan(&id)
		if !missing(err) {
			return id, err
		}
	}
	if id = u.ID; id == "" {
		made, err := insertUser(ctx, tx, workspace.System, u.User)
		if err != nil {
			return "", err
		}
		id = made.ID
		if !u.CreatedAt.IsZero() {
			if _, err := tx.Exec(ctx, `UPDATE users SET created_at = $2 WHERE id = $1`, id, u.CreatedAt); err != nil {
				return "", err
			}
		}
		if err := linkArrived(ctx, tx, id, u); err != nil {
			return "", err
		}
	}
	if u.Source == "" {
		return id, nil
	}
	if _, err := tx.Exec(ctx, `INSERT INTO arrivals (source, kind, old_id, id, arrived_at) VALUES ($1, 'user', $2, $3, clock_timestamp())`, u.Source, u.OldID, id); err != nil {
		return "", err
	}
	return id, audit(ctx, tx, workspace.System, AuditUserImport, id,
		map[string]any{"username": u.Username, "joined": u.ID != "", "source": u.Source, "old_id": u.OldID})
}

// linkArrived links the identities of a user that is added, except those of other users. The
// provider has accepted none of them here yet, so they are inactive until a login with them,
// which must have the user's name.
func linkArrived(ctx context.Context, tx pgx.Tx, user string, u ArrivedUser) error {
	list := slices.Clone(u.Identities)
	slices.SortFunc(list, func(a, b ArrivedIdentity) int {
		return cmp.Or(cmp.Compare(a.Issuer, b.Issuer), cmp.Compare(a.Subject, b.Subject))
	})
	for _, i := range list {
		if err := lockSubject(ctx, tx, i.Issuer, i.Subject); err != nil {
			return err
		}
		key, err := uuid.NewV7()
		if err != nil {
			return fmt.Errorf("make an id: %w", err)
		}
		tag, err := tx.Exec(ctx, `
			INSERT INTO user_identities (id, user_id, issuer, subject, username, active, checked_at) VALUES ($1, $2, $3, $4, $5, false, 'epoch')
			ON CONFLICT (issuer, subject) DO NOTHING`, key.String(), user, i.Issuer, i.Subject, clean(i.Username))
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			continue
		}
		if err := audit(ctx, tx, workspace.System, AuditIdentityLink, key.String(), map[string]any{"issuer": i.Issuer, "subject": i.Subject, "username": u.Username, "source": u.Source}); err != nil {
			return err
		}
	}
	return nil
}

// Arrival is the database's record of a workspace of a source.
type Arrival struct {
	Source      string // empty: there is no record
	OldID       string // there
	ID          workspace.ID
	ArchiveOpID string // of the last attempt to store the archive
	Version     string // of what was imported (lifecycle.MoveVersion); empty before that, and if the source has none
	Done        bool   // the workspace was created here
}

// Arrivals lists the workspaces of a source whose import has begun, by their ids there.
func (db *DB) Arrivals(ctx context.Context, source string) (map[string]Arrival, error) {
	list, err := db.listArrivals(ctx, `kind = 'workspace' AND source = $1`, source)
	by := make(map[string]Arrival, len(list))
	for _, a := range list {
		by[a.OldID] = a
	}
	return by, err
}

// UnfinishedArrivals lists the workspaces of any source whose import has begun and is not done.
func (db *DB) UnfinishedArrivals(ctx context.Context) ([]Arrival, error) {
	return db.listArrivals(ctx, `kind = 'workspace' AND arrived_at IS NULL`)
}

func (db *DB) listArrivals(ctx context.Context, where string, args ...any) ([]Arrival, error) {
	const verb = "list what was imported"
	rows, err := db.pool.Query(ctx, `
		SELECT source, old_id, id, archive_op_id, version, arrived_at IS NOT NULL FROM arrivals WHERE `+where, args...)
	if err != nil {
		return nil, failed(verb, err)
	}
	var list []Arrival
	var a Arrival
	_, err = pgx.ForEachRow(rows, []any{&a.Source, &a.OldID, &a.ID, orEmpty(&a.ArchiveOpID), &a.Version, &a.Done}, func() error {
		list = append(list, a)
		return nil
	})
	return list, failed(verb, err)
}

// ClaimArrival records that the archive of a is about to be stored under a.ArchiveOpID; each
// attempt has its own. It returns those of earlier attempts, which can no longer finish; the
// caller removes their objects. CodeGone if this installation has the workspace.
func (db *DB) ClaimArrival(ctx context.Context, a Arrival) (abandoned []string, err error) {
	err = db.tx(ctx, "claim an import", func(tx pgx.Tx) error {
		// The copy of a finished import belongs to the workspace that was removed here since,
		// and garbage collection removes it.
		err := tx.QueryRow(ctx, `
			INSERT INTO arrivals AS a (source, kind, old_id, id, archive_op_id) VALUES ($1, 'workspace', $2, $3, $4)
			ON CONFLICT (source, kind, old_id) DO UPDATE SET id = EXCLUDED.id, archive_op_id = EXCLUDED.archive_op_id, version = '', arrived_at = NULL,
				abandoned = CASE WHEN a.arrived_at IS NULL THEN array_remove(a.abandoned || a.archive_op_id, NULL) ELSE a.abandoned END
			RETURNING abandoned::text[]`, a.Source, a.OldID, a.ID, a.ArchiveOpID).Scan(&abandoned)
		if err != nil {
			return err
		}
		// Only now: the row's lock has waited for a FinishArrival whose commit is under way.
		return absent(ctx, tx, a.ID)
	})
	return abandoned, err
}

// ForgetArrivals records that the objects of earlier attempts are removed.
func (db *DB) ForgetArrivals(ctx context.Context, a Arrival, abandoned []string) error {
	_, err := db.pool.Exec(ctx, `
		UPDATE arrivals SET abandoned = ARRAY(SELECT unnest(abandoned) EXCEPT SELECT unnest($3::uuid[]))
		WHERE source = $1 AND kind = 'workspace' AND old_id = $2`, a.Source, a.OldID, abandoned)
	return failed("forget unfinished copies", err)
}

// DropArrival removes the record of an import that was claimed and has no copy. Its claim can no
// longer finish. One that another attempt has claimed since stays.
func (db *DB) DropArrival(ctx context.Context, a Arrival) error {
	_, err := db.pool.Exec(ctx, `
		DELETE FROM arrivals
		WHERE source = $1 AND kind = 'workspace' AND old_id = $2 AND archive_op_id = $3 AND arrived_at IS NULL AND abandoned = '{}'`,
		a.Source, a.OldID, a.ArchiveOpID)
	return failed("remove the record of an unfinished import", err)
}

// absent returns CodeGone if the workspace exists here. One that is completely removed
// does not.
func absent(ctx context.Context, tx pgx.Tx, id workspace.ID) error {
	var there bool
	err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM workspaces WHERE id = $1 AND phase <> 'DELETED')`, id).Scan(&there)
	if err == nil && there {
		err = workspace.Errorf(workspace.CodeGone, "This installation already has the workspace.")
	}
	return err
}

// ArrivalConflicts is what may keep a workspace from being imported.
type ArrivalConflicts struct {
	Exists    bool // this installation has the workspace, and has not removed it completely
	IsDeleted bool // that one is deleted
	// NameTaken: the owner has another workspace of this name.
	NameTaken  bool
	Workspaces int // of the owner
	Deleted    int // workspaces of the owner, which still count
	Max        int // workspaces that the owner may have, and with deleted ones twice as many; 0: no limit
}

// ArrivalConflicts reads what FinishArrival would refuse; owner is empty for a user who is not
// here yet.
func (db *DB) ArrivalConflicts(ctx context.Context, id workspace.ID, owner, name string) (ArrivalConflicts, error) {
	c := ArrivalConflicts{Max: db.limits.Workspaces}
	err := db.pool.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM workspaces WHERE id = $1 AND phase <> 'DELETED'),
			EXISTS (SELECT FROM workspaces WHERE id = $1 AND phase <> 'DELETED' AND deleted_at IS NOT NULL),
			EXISTS (SELECT FROM workspaces WHERE owner_user_id = $2 AND name = $3 AND id <> $1 AND deleted_at IS NULL),
			(SELECT count(*) FROM workspaces WHERE owner_user_id = $2 AND deleted_at IS NULL),
			(SELECT count(*) FROM workspaces WHERE owner_user_id = $2 AND deleted_at IS NOT NULL AND phase <> 'DELETED')`,
		id, nullable(owner), name).Scan(&c.Exists, &c.IsDeleted, &c.NameTaken, &c.Workspaces, &c.Deleted)
	return c, failed("read what an import would refuse", err)
}

// ArrivedWorkspace is a workspace for FinishArrival.
type ArrivedWorkspace struct {
	Arrival
	NewWorkspace
	Owner        ArrivedUser
	LastAccessAt *time.Time
	LastAccess   string // kind of the last access
	CreatedAt    time.Time
	// Force adds the workspace in any case: a number is added to a name that is taken, and a
	// workspace that may not run now gets the desired state STANDBY.
	Force bool
	// Archives are newest first; the first one is the current one. Without one there is no home yet.
	Archives []workspace.Archive
	// Found archives were found in the bucket. Others are verified, and created now.
	Found bool
}

// FinishArrival records the workspace, its archives, and its owner unless that is recorded
// already, under the claim of its Arrival, which ends the import. CodeNameTaken;
// CodeQuotaExceeded; CodeGone if another attempt holds the claim or the workspace exists.
func (db *DB) FinishArrival(ctx context.Context, n ArrivedWorkspace) (w workspace.Workspace, err error) {
	err = db.tx(ctx, "finish an import", func(tx pgx.Tx) error {
		n := n
		if n.Desired == workspace.DesiredRunning {
			if err := lockLimits(ctx, tx); err != nil {
				return err
			}
		}
		if err := absent(ctx, tx, n.ID); err != nil {
			return err
		}
		owner, err := addArrivedUser(ctx, tx, n.Owner)
		if err != nil {
			return err
		}
		if n.Source != "" {
			tag, err := tx.Exec(ctx, `
				UPDATE arrivals SET arrived_at = clock_timestamp(), version = $4
				WHERE source = $1 AND kind = 'workspace' AND old_id = $2 AND archive_op_id = $3 AND arrived_at IS NULL`, n.Source, n.OldID, n.ArchiveOpID, n.Version)
			if err != nil {
				return err
			}
			if tag.RowsAffected() == 0 {
				return workspace.Errorf(workspace.CodeGone, "Another import has the workspace.")
			}
		}
		// The lock keeps other transactions from adding workspaces of the owner.
		if _, err := tx.Exec(ctx, `SELECT FROM users WHERE id = $1 FOR NO KEY UPDATE`, owner); err != nil {
			return err
		}
		if err := db.fit(ctx, tx, &n, owner); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `DELETE FROM workspaces WHERE id = $1 AND phase = 'DELETED'`, n.ID); err != nil {
			return err
		}
		if w, err = n.insert(ctx, tx, owner); err != nil {
			return err
		}
		// An earlier backup of the database must be recognized as one.
		if err := requestMark(ctx, tx); err != nil {
			return err
		}
		return audit(ctx, tx, workspace.System, AuditImport, string(n.ID),
			map[string]any{"name": w.Name, "source": n.Source, "old_id": n.OldID, "owner": owner, "archive_key": w.ArchiveKey, "desired_state": w.DesiredState})
	})
	return w, err
}

// fit applies the owner's limits and names to a workspace that is about to be added.
func (db *DB) fit(ctx context.Context, tx pgx.Tx, n *ArrivedWorkspace, owner string) (err error) {
	if !n.Force {
		if err := db.checkWorkspaces(ctx, tx, owner); err != nil {
			return ofOwner(err)
		}
		return nil
	}
	if n.Desired == workspace.DesiredRunning {
		switch err := db.checkLimits(ctx, tx, owner, n.ID); {
		case workspace.CodeOf(err) == workspace.CodeLimitExceeded, workspace.CodeOf(err) == workspace.CodeQuotaExceeded:
			n.Desired = workspace.DesiredStandby
		case err != nil:
			return err
		}
	}
	n.Name, err = freeName(ctx, tx, owner, n.Name, nil)
	return err
}

// insert adds the workspace with its archives. CodeNameTaken, and nothing is added, if the
// owner has a workspace of this name.
func (n ArrivedWorkspace) insert(ctx context.Context, tx pgx.Tx, owner string) (w workspace.Workspace, err error) {
	env, err := envValue(n.Env)
	if err != nil {
		return w, err
	}
	home := workspace.Archive{}
	if len(n.Archives) > 0 {
		home = n.Archives[0]
	}
	var created *time.Time // nil: now
	if !n.CreatedAt.IsZero() {
		created = &n.CreatedAt
	}
	err = tx.QueryRow(ctx, `
		INSERT INTO workspaces (id, owner_user_id, name, description, memo, image_ref, size, storage_backend, desired_state,
			standby_ttl_seconds, archive_ttl_seconds, env, time_zone, awake_while_working, last_access_at, last_access_kind,
			created_at, archive_op_id, archive_key, archive_digest, archive_size)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, COALESCE($17::timestamptz, now()), $18, $19, $20, $21)
		ON CONFLICT (owner_user_id, name) WHERE deleted_at IS NULL DO NOTHING RETURNING `+workspaceColumns,
		n.ID, owner, n.Name, n.Description, n.Memo, n.ImageRef, nullable(n.Size), n.StorageBackend, n.Desired,
		n.StandbyTTL, n.ArchiveTTL, env, nullable(n.TimeZone), n.AwakeWhileWorking, n.LastAccessAt, nullable(n.LastAccess),
		created, nullable(home.OpID), nullable(home.Key), home.Digest, home.Size).
		Scan(workspaceTargets(&w)...)
	if missing(err) {
		return w, nameTaken(n.Name, nil)
	}
	if err != nil {
		return w, err
	}
	if n.Found {
		return w, recordFound(ctx, tx, n.Archives)
	}
	for _, a := range n.Archives {
		// It is created now: garbage collection compares its time with times of this
		// database, such as that of an earlier deletion of the workspace here.
		_, err = tx.Exec(ctx, `
			INSERT INTO archives (key, workspace_id, archive_op_id, digest, size, entries, skipped, verified_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, now())`, a.Key, n.ID, a.OpID, a.Digest, a.Size, a.Entries, a.Skipped)
		if err != nil {
			return w, err
		}
	}
	return w, nil
}

// FreeName returns the name under which FinishArrival with Force would add a workspace; planned
// has names that are about to be taken.
func (db *DB) FreeName(ctx context.Context, owner, name string, planned map[string]bool) (free string, err error) {
	err = db.tx(ctx, "find a free name", func(tx pgx.Tx) error {
		free, err = freeName(ctx, tx, owner, name, planned)
		return err
	})
	return free, err
}

// freeName returns name, or name with a number if it is planned or the owner has a workspace of
// that name.
func freeName(ctx context.Context, tx pgx.Tx, owner, name string, planned map[string]bool) (string, error) {
	name = clean(name)
	for n := 1; ; n++ {
		candidate := cut(name, workspace.MaxName)
		if n > 1 {
			suffix := fmt.Sprintf(" (%d)", n)
			candidate = cut(name, workspace.MaxName-len(suffix)) + suffix
		}
		if planned[candidate] {
			continue
		}
		var taken bool
		err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM workspaces WHERE owner_user_id = $1 AND name = $2 AND deleted_at IS NULL)`,
			nullable(owner), candidate).Scan(&taken)
		if err != nil || !taken {
			return candidate, err
		}
	}
}

// cut returns at most n characters of s.
func cut(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n])
	}
	return s
}

// HasWorkspaces reports whether there is any workspace, including deleted ones.
func (db *DB) HasWorkspaces(ctx context.Context) (has bool, err error) {
	err = db.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM workspaces)`).Scan(&has)
	return has, failed("look for workspaces", err)
}

// KnownWorkspaces returns which of these workspaces are in the database, also deleted ones.
func (db *DB) KnownWorkspaces(ctx context.Context, ids []workspace.ID) (map[workspace.ID]bool, error) {
	const verb = "look for workspaces"
	rows, err := db.pool.Query(ctx, `SELECT id FROM workspaces WHERE id = ANY($1::uuid[])`, ids)
	if err != nil {
		return nil, failed(verb, err)
	}
	known := map[workspace.ID]bool{}
	var id workspace.ID
	_, err = pgx.ForEachRow(rows, []any{&id}, func() error {
		known[id] = true
		return nil
	})
	return known, failed(verb, err)
}

// TakeInstallation gives this database the id of another installation, whose containers,
// volumes and archives it then owns. CodeForbidden if the database has a workspace or an
// archive. No server may be running.
func (db *DB) TakeInstallation(ctx context.Context, id string) error {
	return db.tx(ctx, "take over an installation", func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `LOCK TABLE workspaces, archives IN SHARE ROW EXCLUSIVE MODE`); err != nil {
			return err
		}
		var used bool
		if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM workspaces) OR EXISTS (SELECT FROM archives)`).Scan(&used); err != nil {
			return err
		}
		if used {
			return workspace.Errorf(workspace.CodeForbidden, "This database already has workspaces.")
		}
		if _, err := tx.Exec(ctx, `INSERT INTO installation (id) VALUES ($1) ON CONFLICT (only_row) DO UPDATE SET id = EXCLUDED.id`, id); err != nil {
			return err
		}
		// The marks in Docker are those of the lost database.
		_, err := tx.Exec(ctx, `UPDATE gc_state SET take_over = true, taken_over_at = clock_timestamp(), restored_at = clock_timestamp()`)
		return err
	})
}

// recordFound records archives, newest first. Each supersedes the next.
func recordFound(ctx context.Context, tx pgx.Tx, list []workspace.Archive) error {
	for i, r := range list {
		var superseded *time.Time
		if i > 0 {
			superseded = &list[i-1].CreatedAt
		}
		_, err := tx.Exec(ctx, `
			INSERT INTO archives (key, workspace_id, archive_op_id, origin, digest, size, entries, skipped, created_at, complete_at, superseded_at)
			VALUES ($1, $2, $3, 'found', $4, $5, $6, $7, $8, clock_timestamp(), $9)
			ON CONFLICT (key) DO UPDATE SET digest = EXCLUDED.digest, size = EXCLUDED.size, entries = EXCLUDED.entries,
				skipped = EXCLUDED.skipped, complete_at = COALESCE(archives.complete_at, EXCLUDED.complete_at), unprotected_since = NULL, missing_since = NULL
			WHERE archives.deleting_at IS NULL`,
			r.Key, r.WorkspaceID, r.OpID, r.Digest, r.Size, r.Entries, r.Skipped, r.CreatedAt, superseded)
		if err != nil {
			return err
		}
	}
	return nil
}
