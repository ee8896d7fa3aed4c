package postgres

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
)

// AuditRollback is the change of a workspace by a takeover, and AuditTakeOver the
// takeover itself.
const (
	AuditRollback = "workspace.rollback"
	AuditTakeOver = "installation.take_over"
)

// RollbackRow is a workspace in a restored database.
type RollbackRow struct {
	ID         workspace.ID
	Owner      string // username
	Name       string
	Storage    string
	Home       workspace.Home
	Phase      workspace.Phase
	Desired    workspace.DesiredState
	ArchiveKey string
	DeletedAt  *time.Time
	// Known has the keys of verified archives, Unverified those of complete archives
	// that were not verified, and Going those of archives that were being removed.
	Known, Unverified, Going map[string]bool
}

// RollbackState is the state of a restored database.
type RollbackState struct {
	Now   time.Time
	Hold  string     // empty: it is not on hold
	Since *time.Time // on hold since
	// WaitsSince is the time from which every deletion waits its whole grace; nil: none.
	WaitsSince *time.Time
	Rows       []RollbackRow
}

// RollbackState reads all workspaces and their archives in one snapshot. Only
// administrators may call it.
func (db *DB) RollbackState(ctx context.Context, caller workspace.Caller) (s RollbackState, err error) {
	if err := db.administers(ctx, caller); err != nil {
		return s, err
	}
	return db.Homes(ctx)
}

// Homes is RollbackState without a caller, for a drill.
func (db *DB) Homes(ctx context.Context) (s RollbackState, err error) {
	opts := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, db.pool, opts, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `SELECT clock_timestamp(), hold, hold_since, restored_at FROM gc_state`).Scan(&s.Now, orEmpty(&s.Hold), &s.Since, &s.WaitsSince); err != nil {
			return err
		}
		known, unverified, going := archiveKeys{}, archiveKeys{}, archiveKeys{}
		rows, err := tx.Query(ctx, `
			SELECT workspace_id, key, deleting_at IS NOT NULL, verified_at IS NOT NULL FROM archives
			WHERE deleting_at IS NOT NULL OR verified_at IS NOT NULL OR complete_at IS NOT NULL AND origin <> 'found'`)
		if err != nil {
			return err
		}
		var id workspace.ID
		var key string
		var goes, verified bool
		if _, err := pgx.ForEachRow(rows, []any{&id, &key, &goes, &verified}, func() error {
			switch {
			case goes:
				going.add(id, key)
			case verified:
				known.add(id, key)
			default:
				unverified.add(id, key)
			}
			return nil
		}); err != nil {
			return err
		}
		rows, err = tx.Query(ctx, `
			SELECT w.id, u.username, w.name, w.storage_backend, w.home_ctx, w.phase, w.desired_state, w.archive_key, w.deleted_at
			FROM workspaces w JOIN users u ON u.id = w.owner_user_id`)
		if err != nil {
			return err
		}
		s.Rows, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r RollbackRow, err error) {
			var home []byte
			if err := row.Scan(&r.ID, &r.Owner, &r.Name, &r.Storage, &home, &r.Phase, &r.Desired, orEmpty(&r.ArchiveKey), &r.DeletedAt); err != nil {
				return r, err
			}
			r.Known, r.Unverified, r.Going = known[r.ID], unverified[r.ID], going[r.ID]
			return r, json.Unmarshal(home, &r.Home)
		})
		return err
	})
	return s, failed("read the workspaces of a restored database", err)
}

// archiveKeys returns the keys of archives by workspace.
type archiveKeys map[workspace.ID]map[string]bool

func (k archiveKeys) add(id workspace.ID, key string) {
	if k[id] == nil {
		k[id] = map[string]bool{}
	}
	k[id][key] = true
}

// RollbackStep is the change of one workspace.
type RollbackStep struct {
	ID    workspace.ID
	Seen  *RollbackRow // the row that the decision used; nil: a new row
	Owner string       // username, for a new row; the caller if it is empty or invalid
	Name  string       // for a new row

	ImageRef, StorageBackend string // for a new row

	// Unchanged resets only the observed conditions of the row: they are from another
	// time.
	Unchanged bool
	Home      workspace.Home
	Desired   workspace.DesiredState
	Runs      bool // its container runs
	Undelete  bool
	SetAside  bool // another volume with the name of its home is set aside
	// Archives are its archives in the bucket, newest first. Current becomes its
	// current archive; nil: it has none, or keeps its own.
	Archives []workspace.Archive
	Current  *workspace.Archive
}

// ApplyRollback applies the steps and takes over with this database, in one
// transaction. It creates missing users, disabled. Errors: CodeNotOnHold;
// CodeOperationInProgress if a workspace has changed since the decision.
func (db *DB) ApplyRollback(ctx context.Context, caller workspace.Caller, steps []RollbackStep) error {
	return db.tx(ctx, "apply a rollback", func(tx pgx.Tx) error {
		if _, err := administrators(ctx, tx, caller); err != nil {
			return err
		}
		if err := takeOver(ctx, tx); err != nil {
			return err
		}
		owners := map[string]string{}
		for _, s := range steps {
			var err error
			if s.Seen == nil {
				err = addLost(ctx, tx, caller, s, owners)
			} else {
				err = rollBack(ctx, tx, caller, s)
			}
			if err != nil {
				return err
			}
		}
		if err := forgetArchives(ctx, tx); err != nil {
			return err
		}
		return audit(ctx, tx, caller, AuditTakeOver, "", map[string]any{"workspaces": len(steps)})
	})
}

// forgetArchives removes the observation of archives that the backup had as missing or damaged
// from workspaces with an operation. It is from another time, and some operations, such as
// STOPPING, do not observe the archive again: they would fail with it.
func forgetArchives(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `
		UPDATE workspaces SET conditions = conditions - $1::text - $2::text
		WHERE operation <> 'NONE' AND archive_key IS NOT NULL AND conditions -> $1::text ->> 'status' = 'False'`,
		workspace.ArchiveReady, workspace.Healthy)
	return err
}

// addLost adds the row of a workspace that the database lacks.
func addLost(ctx context.Context, tx pgx.Tx, caller workspace.Caller, s RollbackStep, owners map[string]string) error {
	owner, err := ownerOfLost(ctx, tx, caller, s.Owner, owners)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `SELECT FROM users WHERE id = $1 FOR UPDATE`, owner); err != nil {
		return err
	}
	name, err := freeName(ctx, tx, owner, s.Name, nil)
	if err != nil {
		return err
	}
	switch err := absent(ctx, tx, s.ID); {
	case workspace.CodeOf(err) == workspace.CodeGone:
		return changedSince(s.ID)
	case err != nil:
		return err
	}
	n := ArrivedWorkspace{Arrival: Arrival{ID: s.ID}, NewWorkspace: NewWorkspace{
		Name: name, ImageRef: s.ImageRef, StorageBackend: s.StorageBackend, Desired: s.Desired,
	}}
	if _, err := n.insert(ctx, tx, owner); err != nil {
		return err
	}
	return s.settle(ctx, tx, caller, name)
}

// ownerOfLost returns the id of the user with this name, and creates a missing user,
// disabled. For an invalid username it is the caller.
func ownerOfLost(ctx context.Context, tx pgx.Tx, caller workspace.Caller, name string, owners map[string]string) (string, error) {
	if name == "" || name != clean(name) || len(name) > 255 {
		return caller.UserID, nil
	}
	key := UsernameKey(name)
	if id := owners[key]; id != "" {
		return id, nil
	}
	var id string
	err := tx.QueryRow(ctx, `SELECT id FROM users WHERE username_key = $1`, key).Scan(&id)
	if missing(err) {
		var made User
		// No password matches this hash.
		made, err = insertUser(ctx, tx, caller, User{Username: name, PasswordHash: "none", Disabled: true})
		id = made.ID
	}
	owners[key] = id
	return id, err
}

func changedSince(id workspace.ID) error {
	return workspace.Errorf(workspace.CodeOperationInProgress, "The workspace %s has changed. Review the plan again.", id)
}

// rollBack changes an existing row.
func rollBack(ctx context.Context, tx pgx.Tx, caller workspace.Caller, s RollbackStep) error {
	home, err := jsonOf(&s.Seen.Home)
	if err != nil {
		return err
	}
	var owner string
	err = tx.QueryRow(ctx, `
		SELECT owner_user_id FROM workspaces
		WHERE id = $1 AND home_ctx = $2 AND archive_key IS NOT DISTINCT FROM $3 AND deleted_at IS NOT DISTINCT FROM $4
		FOR NO KEY UPDATE`, s.ID, home, nullable(s.Seen.ArchiveKey), s.Seen.DeletedAt).Scan(&owner)
	if missing(err) {
		return changedSince(s.ID)
	}
	if err != nil {
		return err
	}
	if s.Unchanged {
		// The controller must not treat a missing volume as one that has just vanished.
		_, err := tx.Exec(ctx, `UPDATE workspaces SET conditions = '{}' WHERE id = $1 AND operation = 'NONE'`, s.ID)
		return err
	}
	name := s.Seen.Name
	if s.Undelete {
		if name, err = freeName(ctx, tx, owner, name, nil); err != nil {
			return err
		}
	}
	return s.settle(ctx, tx, caller, name)
}

// settle sets the row to the state of the step, without an operation and without
// pending requests.
func (s RollbackStep) settle(ctx context.Context, tx pgx.Tx, caller workspace.Caller, name string) error {
	if err := recordFound(ctx, tx, s.Archives); err != nil {
		return err
	}
	home, err := jsonOf(&s.Home)
	if err != nil {
		return err
	}
	phase, conditions := workspace.PhasePending, workspace.Conditions{}
	if s.Runs {
		// A running container keeps running, with its open connections.
		now := time.Now().UTC()
		phase = workspace.PhaseRunning
		conditions = conditions.With(workspace.VolumeReady, true, workspace.ReasonVolumeReady, "", now).
			With(workspace.ContainerReady, true, workspace.ReasonContainerReady, "", now)
	}
	seen, err := jsonOf(&conditions)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `
		UPDATE workspaces SET name = $2, home_ctx = $3, desired_state = $4, desired_cause = NULL, next_desired_state = NULL,
			phase = $5, phase_changed_at = clock_timestamp(), conditions = $6, deleted_at = NULL,
			operation = 'NONE', op_id = NULL, op_started_at = NULL, progress = NULL, stop_reason = NULL,
			error_reason = NULL, error_message = NULL, error_count = 0, retry_at = NULL,
			recover_requested_at = CASE WHEN $7 THEN clock_timestamp() END, recover_action = CASE WHEN $7 THEN $8 END, recover_archive = NULL, restore_from = NULL, cancel_requested_at = NULL, force_stop_requested_at = NULL,
			updated_at = clock_timestamp()
		WHERE id = $1`, s.ID, name, home, s.Desired, phase, seen, s.SetAside, workspace.RecoverSetAside)
	if err != nil {
		return err
	}
	if c := s.Current; c != nil {
		if _, err := tx.Exec(ctx, `UPDATE archives SET superseded_at = clock_timestamp() WHERE workspace_id = $1 AND key <> $2 AND verified_at IS NOT NULL AND superseded_at IS NULL`, s.ID, c.Key); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			UPDATE workspaces SET archive_key = $2, archive_digest = $3, archive_size = $4, archive_op_id = $5 WHERE id = $1`,
			s.ID, c.Key, c.Digest, c.Size, c.OpID)
		if err != nil {
			return err
		}
	}
	details := map[string]any{"name": name, "home": s.Home.State, "undelete": s.Undelete}
	if s.Current != nil {
		details["archive_key"] = s.Current.Key
	}
	return audit(ctx, tx, caller, AuditRollback, string(s.ID), details)
}
