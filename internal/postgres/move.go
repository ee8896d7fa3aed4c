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

// The methods of this file record what `codehub move` brings to this installation.

// Actions of moves in the audit log of the target.
const (
	AuditUserMove = "user.move"
	AuditMove     = "workspace.move"
)

// MovedUsers returns the ids here of users from another installation, by their ids there.
// Users that were removed since are included.
func (db *DB) MovedUsers(ctx context.Context, source string) (map[string]string, error) {
	const verb = "list the moved users"
	rows, err := db.pool.Query(ctx, `SELECT old_id, user_id FROM moved_users WHERE source = $1`, source)
	if err != nil {
		return nil, failed(verb, err)
	}
	ids := map[string]string{}
	var old, id string
	_, err = pgx.ForEachRow(rows, []any{&old, &id}, func() error {
		ids[old] = id
		return nil
	})
	return ids, failed(verb, err)
}

// MovedUser is a user of the source.
type MovedUser struct {
	Source   string // installation
	OldID    string // id there
	ID       string // id here; empty: the user is added
	Username string
	Disabled bool
	// MaxRunning is the user's own running limit, of users that are added.
	MaxRunning *int
	// Identities are linked to a user that is added. An existing user gets none: only the user can
	// say that the account at the provider is theirs.
	Identities []MovedIdentity
}

// MovedIdentity is an account at an identity provider that the source has linked to a user.
type MovedIdentity struct{ Issuer, Subject, Username string }

// MoveUser adds a user of another installation, without a password, or records that it is
// an existing user, and returns the id here. A user who is recorded already is not
// changed. CodeNameTaken if another user has this name.
func (db *DB) MoveUser(ctx context.Context, u MovedUser) (id string, err error) {
	err = db.tx(ctx, "move a user", func(tx pgx.Tx) (err error) {
		id, err = moveUser(ctx, tx, u)
		return err
	})
	return id, err
}

func moveUser(ctx context.Context, tx pgx.Tx, u MovedUser) (id string, err error) {
	err = tx.QueryRow(ctx, `SELECT user_id FROM moved_users WHERE source = $1 AND old_id = $2`, u.Source, u.OldID).Scan(&id)
	if !missing(err) {
		return id, err
	}
	if id = u.ID; id == "" {
		made, err := insertUser(ctx, tx, workspace.System, User{Username: u.Username, Disabled: u.Disabled, MaxRunning: u.MaxRunning})
		if err != nil {
			return "", err
		}
		id = made.ID
		if err := linkMoved(ctx, tx, id, u); err != nil {
			return "", err
		}
	}
	if _, err := tx.Exec(ctx, `INSERT INTO moved_users (source, old_id, user_id) VALUES ($1, $2, $3)`, u.Source, u.OldID, id); err != nil {
		return "", err
	}
	return id, audit(ctx, tx, workspace.System, AuditUserMove, id, map[string]any{"username": u.Username, "joined": u.ID != "", "source": u.Source})
}

// linkMoved links the identities of a user that is added, except those of other users. The
// provider has accepted none of them here yet, so they are inactive until a login with them,
// which must have the user's name.
func linkMoved(ctx context.Context, tx pgx.Tx, user string, u MovedUser) error {
	list := slices.Clone(u.Identities)
	slices.SortFunc(list, func(a, b MovedIdentity) int {
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

// Move is the database's record of a workspace from another installation.
type Move struct {
	Source      string // installation
	ID          workspace.ID
	ArchiveOpID string // of the last attempt to copy the archive
	Version     string // lifecycle.MoveVersion of what was moved; empty before that
	Done        bool   // the workspace was created here
}

// Moves lists the moves from an installation that have begun.
func (db *DB) Moves(ctx context.Context, source string) (map[workspace.ID]Move, error) {
	list, err := db.listMoves(ctx, `source = $1`, source)
	moves := make(map[workspace.ID]Move, len(list))
	for _, m := range list {
		moves[m.ID] = m
	}
	return moves, err
}

// UnfinishedMoves lists the moves from any installation that have begun and are not done.
func (db *DB) UnfinishedMoves(ctx context.Context) ([]Move, error) {
	return db.listMoves(ctx, `moved_at IS NULL`)
}

func (db *DB) listMoves(ctx context.Context, where string, args ...any) ([]Move, error) {
	const verb = "list the moved workspaces"
	rows, err := db.pool.Query(ctx, `
		SELECT source, workspace_id, archive_op_id, version, moved_at IS NOT NULL FROM moved_workspaces WHERE `+where, args...)
	if err != nil {
		return nil, failed(verb, err)
	}
	var moves []Move
	var m Move
	_, err = pgx.ForEachRow(rows, []any{&m.Source, &m.ID, &m.ArchiveOpID, &m.Version, &m.Done}, func() error {
		moves = append(moves, m)
		return nil
	})
	return moves, failed(verb, err)
}

// ClaimMove records that the archive of m is about to be copied under m.ArchiveOpID; each
// attempt has its own. It returns those of earlier attempts, which can no longer finish;
// the caller removes their objects. CodeGone if this installation has the workspace.
func (db *DB) ClaimMove(ctx context.Context, m Move) (abandoned []string, err error) {
	err = db.tx(ctx, "claim a move", func(tx pgx.Tx) error {
		// The copy of a finished move belongs to the workspace that was removed here since,
		// and garbage collection removes it.
		err := tx.QueryRow(ctx, `
			INSERT INTO moved_workspaces AS m (source, workspace_id, archive_op_id) VALUES ($1, $2, $3)
			ON CONFLICT (source, workspace_id) DO UPDATE SET archive_op_id = EXCLUDED.archive_op_id, version = '', moved_at = NULL,
				abandoned = CASE WHEN m.moved_at IS NULL THEN m.abandoned || m.archive_op_id ELSE m.abandoned END
			RETURNING abandoned::text[]`, m.Source, m.ID, m.ArchiveOpID).Scan(&abandoned)
		if err != nil {
			return err
		}
		// Only now: the row's lock has waited for a FinishMove whose commit is under way.
		return absent(ctx, tx, m.ID)
	})
	return abandoned, err
}

// ForgetMoves records that the objects of earlier attempts are removed.
func (db *DB) ForgetMoves(ctx context.Context, m Move, abandoned []string) error {
	_, err := db.pool.Exec(ctx, `
		UPDATE moved_workspaces SET abandoned = ARRAY(SELECT unnest(abandoned) EXCEPT SELECT unnest($3::uuid[]))
		WHERE source = $1 AND workspace_id = $2`, m.Source, m.ID, abandoned)
	return failed("forget unfinished copies", err)
}

// DropMove removes the record of a move that was claimed and has no copy. Its claim can no longer
// finish. One that another attempt has claimed since stays.
func (db *DB) DropMove(ctx context.Context, m Move) error {
	_, err := db.pool.Exec(ctx, `
		DELETE FROM moved_workspaces
		WHERE source = $1 AND workspace_id = $2 AND archive_op_id = $3 AND moved_at IS NULL AND abandoned = '{}'`, m.Source, m.ID, m.ArchiveOpID)
	return failed("remove the record of an unfinished move", err)
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

// MoveConflicts is what may keep a workspace from being moved here.
type MoveConflicts struct {
	Exists    bool // this installation has the workspace, and has not removed it completely
	IsDeleted bool // that one is deleted
	// NameTaken: the owner has another workspace of this name.
	NameTaken  bool
	Workspaces int // of the owner
	Deleted    int // workspaces of the owner, which still count
	Max        int // workspaces that the owner may have, and with deleted ones twice as many; 0: no limit
}

// MoveConflicts reads what FinishMove would refuse; owner is empty for a user who is not
// here yet.
func (db *DB) MoveConflicts(ctx context.Context, id workspace.ID, owner, name string) (MoveConflicts, error) {
	c := MoveConflicts{Max: db.limits.Workspaces}
	err := db.pool.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM workspaces WHERE id = $1 AND phase <> 'DELETED'),
			EXISTS (SELECT FROM workspaces WHERE id = $1 AND phase <> 'DELETED' AND deleted_at IS NOT NULL),
			EXISTS (SELECT FROM workspaces WHERE owner_user_id = $2 AND name = $3 AND id <> $1 AND deleted_at IS NULL),
			(SELECT count(*) FROM workspaces WHERE owner_user_id = $2 AND deleted_at IS NULL),
			(SELECT count(*) FROM workspaces WHERE owner_user_id = $2 AND deleted_at IS NOT NULL AND phase <> 'DELETED')`,
		id, nullable(owner), name).Scan(&c.Exists, &c.IsDeleted, &c.NameTaken, &c.Workspaces, &c.Deleted)
	return c, failed("read what a move would refuse", err)
}

// MovedWorkspace is a workspace for FinishMove.
type MovedWorkspace struct {
	Move
	NewWorkspace
	Owner             MovedUser
	AwakeWhileWorking bool
	LastAccessAt      *time.Time
	LastAccess        string // kind of the last access
	CreatedAt         time.Time
	Home              workspace.Archive // verified
}

// FinishMove records the workspace, its archive, and its owner unless that is recorded
// already, under the claim of its Move, which ends the move. CodeNameTaken;
// CodeQuotaExceeded; CodeGone if another attempt holds the claim or the workspace exists.
func (db *DB) FinishMove(ctx context.Context, n MovedWorkspace) (w workspace.Workspace, err error) {
	err = db.tx(ctx, "finish a move", func(tx pgx.Tx) error {
		if err := absent(ctx, tx, n.ID); err != nil {
			return err
		}
		owner, err := moveUser(ctx, tx, n.Owner)
		if err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `
			UPDATE moved_workspaces SET moved_at = clock_timestamp(), version = $4
			WHERE source = $1 AND workspace_id = $2 AND archive_op_id = $3 AND moved_at IS NULL`, n.Source, n.ID, n.ArchiveOpID, n.Version)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return workspace.Errorf(workspace.CodeGone, "Another move has the workspace.")
		}
		// The lock keeps other transactions from adding workspaces of the owner.
		if _, err := tx.Exec(ctx, `SELECT FROM users WHERE id = $1 FOR NO KEY UPDATE`, owner); err != nil {
			return err
		}
		if err := db.checkWorkspaces(ctx, tx, owner); err != nil {
			return ofOwner(err)
		}
		if _, err := tx.Exec(ctx, `DELETE FROM workspaces WHERE id = $1 AND phase = 'DELETED'`, n.ID); err != nil {
			return err
		}
		a := arrival{NewWorkspace: n.NewWorkspace, ID: n.ID, OwnerID: owner, AwakeWhileWorking: n.AwakeWhileWorking,
			LastAccessAt: n.LastAccessAt, LastAccess: n.LastAccess, CreatedAt: n.CreatedAt, Home: &n.Home}
		if w, err = a.insert(ctx, tx); err != nil {
			return err
		}
		// An earlier backup of the database must be recognized as one.
		if err := requestMark(ctx, tx); err != nil {
			return err
		}
		return audit(ctx, tx, workspace.System, AuditMove, string(n.ID),
			map[string]any{"name": w.Name, "source": n.Source, "owner": owner, "archive_key": n.Home.Key})
	})
	return w, err
}
