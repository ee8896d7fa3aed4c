package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"codehub/internal/workspace"
)

// Columns of a workspace in the order of their targets: those that the
// controller needs on every tick, and the rest.
const (
	coreColumns = `id, owner_user_id, name, image_ref, instance_backend, storage_backend, home_store_key,
		home_ctx, conditions, phase, phase_changed_at, observed_at, operation, op_id, op_started_at, progress,
		archive_op_id, archive_key, archive_digest, archive_size, archive_entries,
		error_reason, error_message, error_count, retry_at, stop_reason,
		desired_state, desired_cause, next_desired_state, deleted_at,
		recover_requested_at, recover_action, recover_archive, cancel_requested_at, force_stop_requested_at, created_at`
	peopleColumns = `description, memo, last_access_at, last_access_kind, keep_awake_until,
		standby_ttl_seconds, archive_ttl_seconds, updated_at,
		unwatched_since(` + idleSince + `), ` + graceBegan
	workspaceColumns = coreColumns + `, ` + peopleColumns
)

func coreTargets(w *workspace.Workspace) []any {
	return []any{
		&w.ID, &w.OwnerID, &w.Name, &w.ImageRef, &w.InstanceBackend, &w.StorageBackend, &w.HomeStoreKey,
		&w.Home, &w.Conditions, &w.Phase, &w.PhaseChangedAt, &w.ObservedAt, &w.Operation, orEmpty(&w.OpID), &w.OpStartedAt, &w.Progress,
		orEmpty(&w.ArchiveOpID), orEmpty(&w.ArchiveKey), &w.ArchiveDigest, &w.ArchiveSize, &w.ArchiveEntries,
		(*zeronull.Text)(&w.ErrorReason), orEmpty(&w.ErrorMessage), &w.ErrorCount, &w.RetryAt, orEmpty(&w.StopReason),
		&w.DesiredState, orEmpty(&w.DesiredCause), (*zeronull.Text)(&w.NextDesired), &w.DeletedAt,
		&w.RecoverRequestedAt, orEmpty(&w.RecoverAction), &w.RecoverFrom, &w.CancelRequestedAt, &w.ForceStopRequestedAt, &w.CreatedAt,
	}
}

func workspaceTargets(w *workspace.Workspace) []any {
	return append(coreTargets(w),
		&w.Description, &w.Memo, &w.LastAccessAt, orEmpty(&w.LastAccess), &w.KeepAwakeTil,
		&w.StandbyTTL, &w.ArchiveTTL, &w.UpdatedAt, &w.Unwatched, &w.GraceBegan)
}

// orEmpty scans NULL as "".
func orEmpty(s *string) *zeronull.Text { return (*zeronull.Text)(s) }

func toWorkspace(row pgx.CollectableRow) (w workspace.Workspace, err error) {
	return w, row.Scan(workspaceTargets(&w)...)
}

// jsonOf encodes v for a jsonb column; nil becomes NULL.
func jsonOf[T any](v *T) ([]byte, error) {
	if v == nil {
		return nil, nil
	}
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	return storableJSON(b), nil
}

// lockWorkspace reads a workspace for a change, with the database's time, and
// checks that the caller may change it. It holds the row until the
// transaction ends.
func lockWorkspace(ctx context.Context, tx pgx.Tx, caller workspace.Caller, id workspace.ID) (w workspace.Workspace, now time.Time, err error) {
	if !workspace.ValidID(string(id)) {
		return w, now, notFound("workspace")
	}
	err = tx.QueryRow(ctx, `
		SELECT clock_timestamp(), `+workspaceColumns+` FROM workspaces WHERE id = $1 FOR NO KEY UPDATE`, id).
		Scan(append([]any{&now}, workspaceTargets(&w)...)...)
	switch {
	case missing(err):
		return w, now, notFound("workspace")
	case err != nil:
		return w, now, err
	case !caller.Owns(w.OwnerID):
		return w, now, forbidden()
	}
	return w, now, nil
}

// saveWorkspace writes what the API layer owns (design §3.3), and nothing
// else, from w, whose row the transaction holds.
func saveWorkspace(ctx context.Context, tx pgx.Tx, w workspace.Workspace, updated bool) (saved workspace.Workspace, err error) {
	from, err := jsonOf(w.RecoverFrom)
	if err != nil {
		return saved, err
	}
	err = tx.QueryRow(ctx, `
		UPDATE workspaces SET
			name = $2, description = $3, memo = $4, standby_ttl_seconds = $5, archive_ttl_seconds = $6, keep_awake_until = $7,
			desired_state = $8, desired_cause = CASE WHEN desired_state = $8 THEN desired_cause END, next_desired_state = $9, deleted_at = $10, last_access_at = $11, last_access_kind = $12,
			recover_requested_at = $13, recover_action = $14, cancel_requested_at = $15, force_stop_requested_at = $16, recover_archive = $17,
			updated_at = CASE WHEN $18 THEN clock_timestamp() ELSE updated_at END
		WHERE id = $1 RETURNING `+workspaceColumns,
		w.ID, w.Name, w.Description, w.Memo, w.StandbyTTL, w.ArchiveTTL, w.KeepAwakeTil,
		w.DesiredState, nullable(w.NextDesired), w.DeletedAt, w.LastAccessAt, nullable(w.LastAccess),
		w.RecoverRequestedAt, nullable(w.RecoverAction), w.CancelRequestedAt, w.ForceStopRequestedAt, from, updated).
		Scan(workspaceTargets(&saved)...)
	if violates(err, "workspaces_name") {
		return saved, nameTaken(w.Name, err)
	}
	return saved, err
}

func nameTaken(name string, err error) error {
	return &workspace.Error{Code: workspace.CodeNameTaken, Message: fmt.Sprintf("you already have a workspace named %q", name), Err: err}
}
