package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"codehub/internal/base/setting"
	"codehub/internal/workspace"
)

// AuditHomeBackup is the action of a user who requests a backup of a home.
const AuditHomeBackup = "workspace.backup"

// Columns of a backup of a home, in the order of homeBackupTargets.
const homeBackupColumns = `id, workspace_id, state, cause, note, COALESCE(key, ''), digest, size, created_at, begun_at, ended_at, error, unchanged_at,
	verified_at, damage, entries, files, bytes, skipped, stored, changed, problems, added, modified, removed`

func homeBackupTargets(b *workspace.Backup) []any {
	return []any{
		&b.ID, &b.WorkspaceID, &b.State, &b.Cause, &b.Note, &b.Key, &b.Digest, &b.Size, &b.CreatedAt, &b.BegunAt, &b.EndedAt, &b.Error, &b.UnchangedAt,
		&b.VerifiedAt, &b.Damage, &b.Entries, &b.Files, &b.Bytes, &b.Skipped, &b.Stored, &b.Changed, &b.Problems, &b.Added, &b.Modified, &b.Removed,
	}
}

func scanHomeBackup(row pgx.CollectableRow) (b workspace.Backup, err error) {
	return b, row.Scan(homeBackupTargets(&b)...)
}

// HomeBackups lists the backups of a workspace's home, newest first, without expired ones, and
// returns the cursor of the next page, "" at the end.
func (db *DB) HomeBackups(ctx context.Context, caller workspace.Caller, id workspace.ID, page Page) (list []workspace.Backup, next string, err error) {
	if _, err := db.Workspace(ctx, caller, id); err != nil {
		return nil, "", err
	}
	var q where
	q.add(`workspace_id = ?`, id)
	q.add(`expired_at IS NULL`)
	if page.Cursor != "" {
		p, err := parseCursor(page.Cursor)
		if err != nil {
			return nil, "", err
		}
		q.add(`(created_at, id) < (?, ?)`, p.At, p.ID)
	}
	const verb = "list backups"
	rows, _ := db.pool.Query(ctx, fmt.Sprintf(`SELECT %s FROM home_backups WHERE %s ORDER BY created_at DESC, id DESC LIMIT %d`,
		homeBackupColumns, strings.Join(q.parts, ` AND `), page.Size()+1), q.args...)
	list, err = pgx.CollectRows(rows, scanHomeBackup)
	if err != nil {
		return nil, "", failed(verb, err)
	}
	list, next = cutPage(list, page.Size(), func(b workspace.Backup) place { return place{At: b.CreatedAt, ID: b.ID} })
	return list, next, nil
}

// HomeBackup reads one of the backups that HomeBackups lists. CodeNotFound.
func (db *DB) HomeBackup(ctx context.Context, caller workspace.Caller, id workspace.ID, backup string) (workspace.Backup, error) {
	if _, err := db.Workspace(ctx, caller, id); err != nil {
		return workspace.Backup{}, err
	}
	if !workspace.ValidID(backup) {
		return workspace.Backup{}, notFound("backup")
	}
	rows, _ := db.pool.Query(ctx, `SELECT `+homeBackupColumns+` FROM home_backups WHERE workspace_id = $1 AND id = $2 AND expired_at IS NULL`, id, backup)
	b, err := pgx.CollectExactlyOneRow(rows, scanHomeBackup)
	if missing(err) {
		return b, notFound("backup")
	}
	return b, failed("read a backup", err)
}

// HomeBackupBefore returns the last complete backup of the same home before this one. CodeNotFound if
// there is none.
func (db *DB) HomeBackupBefore(ctx context.Context, caller workspace.Caller, b workspace.Backup) (workspace.Backup, error) {
	if _, err := db.Workspace(ctx, caller, b.WorkspaceID); err != nil {
		return workspace.Backup{}, err
	}
	rows, _ := db.pool.Query(ctx, `
		SELECT `+homeBackupColumns+` FROM home_backups
		WHERE workspace_id = $1 AND state = 'done' AND expired_at IS NULL AND (created_at, id) < ($2, $3)
		ORDER BY created_at DESC, id DESC LIMIT 1`, b.WorkspaceID, b.CreatedAt, b.ID)
	before, err := pgx.CollectExactlyOneRow(rows, scanHomeBackup)
	if missing(err) {
		return before, notFound("backup")
	}
	return before, failed("read a backup", err)
}

// BackupSpace returns how much space the backups of the workspace and of its owner use. CodeNotFound.
func (db *DB) BackupSpace(ctx context.Context, caller workspace.Caller, id workspace.ID) (s workspace.BackupSpace, err error) {
	w, err := db.Workspace(ctx, caller, id)
	if err != nil {
		return s, err
	}
	s, err = db.backupSpace(ctx, db.pool, w)
	return s, failed("add up backups", err)
}

func (db *DB) backupSpace(ctx context.Context, in querier, w workspace.Workspace) (s workspace.BackupSpace, err error) {
	s.Limit = db.limits.BackupBytes
	err = in.QueryRow(ctx, `
		SELECT COALESCE(sum(b.stored + b.size) FILTER (WHERE w.id = $1), 0)::bigint, COALESCE(sum(b.stored + b.size), 0)::bigint
		FROM home_backups b JOIN workspaces w ON w.id = b.workspace_id WHERE w.owner_user_id = $2`, w.ID, w.OwnerID).Scan(&s.Workspace, &s.Used)
	return s, err
}

// checkBackupSpace returns CodeQuotaExceeded if the backups of the owner's homes use as much space as
// allowed.
func (db *DB) checkBackupSpace(ctx context.Context, tx pgx.Tx, w workspace.Workspace) error {
	if db.limits.BackupBytes == 0 {
		return nil
	}
	s, err := db.backupSpace(ctx, tx, w)
	if err != nil || !s.Full() {
		return err
	}
	e := workspace.Errorf(workspace.CodeQuotaExceeded, "The backups of your homes use %s, and at most %s are allowed. Keep fewer backups of each home, or ask an administrator for a higher limit.",
		setting.FormatBytes(s.Used), setting.FormatBytes(s.Limit))
	e.Details = map[string]any{"limit_type": "backup_bytes", "current": s.Used, "max": s.Limit}
	return e
}

// RequestHomeBackup requests a backup of the home of the caller's workspace, which the leader makes.
// If one waits already, it gets the note as well and is returned. CodeOperationInProgress while one
// is being made, because it may lack the latest changes; CodeNotRunning if the workspace has no home;
// CodeQuotaExceeded at the limit of BackupSpace.
func (db *DB) RequestHomeBackup(ctx context.Context, caller workspace.Caller, id workspace.ID, note string) (workspace.Backup, error) {
	return db.requestHomeBackup(ctx, caller, caller, id, note)
}

// AnyHomeBackups is HomeBackups for a workspace of any user. The content of the backups stays their
// owner's.
func (db *DB) AnyHomeBackups(ctx context.Context, caller workspace.Caller, id workspace.ID, page Page) (list []workspace.Backup, next string, err error) {
	if err := db.administers(ctx, caller); err != nil {
		return nil, "", err
	}
	return db.HomeBackups(ctx, workspace.System, id, page)
}

// RequestAnyHomeBackup is RequestHomeBackup for a workspace of any user, without the limit.
func (db *DB) RequestAnyHomeBackup(ctx context.Context, caller workspace.Caller, id workspace.ID, note string) (workspace.Backup, error) {
	if err := db.administers(ctx, caller); err != nil {
		return workspace.Backup{}, err
	}
	return db.requestHomeBackup(ctx, workspace.System, caller, id, note)
}

// requestHomeBackup is RequestHomeBackup with the rights of caller, recorded in the audit log as done
// by by.
func (db *DB) requestHomeBackup(ctx context.Context, caller, by workspace.Caller, id workspace.ID, note string) (b workspace.Backup, err error) {
	note = strings.TrimSpace(note)
	if err := CheckMessage("note", note); err != nil {
		return b, err
	}
	if len(note) > workspace.MaxBackupNote {
		return b, longNote()
	}
	made, err := uuid.NewRandom() // the beginning of an id tells backups apart
	if err != nil {
		return b, fmt.Errorf("make an id: %w", err)
	}
	return b, db.tx(ctx, "request a backup", func(tx pgx.Tx) error {
		w, _, err := lockWorkspace(ctx, tx, caller, id)
		if err != nil {
			return err
		}
		if err := hasHome(w); err != nil {
			return err
		}
		details := map[string]any{"note": note}
		if caller != by {
			owner, err := administered(ctx, tx, by, w)
			if err != nil {
				return err
			}
			details["owner"], details["name"] = owner, w.Name
		}
		rows, _ := tx.Query(ctx, `SELECT `+homeBackupColumns+` FROM home_backups WHERE workspace_id = $1 AND state IN ('waiting', 'running') FOR UPDATE`, id)
		b, err = pgx.CollectExactlyOneRow(rows, scanHomeBackup)
		switch {
		case missing(err):
			if caller == by {
				if err := db.checkBackupSpace(ctx, tx, w); err != nil {
					return err
				}
			}
			rows, _ = tx.Query(ctx, `
				INSERT INTO home_backups (id, workspace_id, cause, note) VALUES ($1, $2, $3, $4)
				RETURNING `+homeBackupColumns, made, id, workspace.BackupRequested, note)
		case err != nil:
			return err
		case b.State == workspace.BackupRunning:
			return workspace.Errorf(workspace.CodeOperationInProgress, "A backup of this workspace is being made. Try again when it is complete.")
		default:
			if note, err = joinNotes(b.Note, note); err != nil {
				return err
			}
			rows, _ = tx.Query(ctx, `
				UPDATE home_backups SET note = $2, cause = CASE cause WHEN 'schedule' THEN 'request' ELSE cause END WHERE id = $1
				RETURNING `+homeBackupColumns, b.ID, note)
		}
		if b, err = pgx.CollectExactlyOneRow(rows, scanHomeBackup); err != nil {
			return err
		}
		details["backup"] = b.ID
		if err := audit(ctx, tx, by, AuditHomeBackup, string(id), details); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			SELECT pg_notify(channel, json_build_object('id', $1::text, 'owner', $2::text)::text) FROM unnest($3::text[]) AS channel`,
			id, w.OwnerID, []string{ChannelWake, ChannelSSE})
		return err
	})
}

// backUpHandedOver requests a backup of the home of a workspace that gets another owner, who cannot
// have changed it before: the workspace is at rest. The hand-over does not wait for the backup.
func backUpHandedOver(ctx context.Context, tx pgx.Tx, w workspace.Workspace) error {
	if w.Home.State != workspace.HomeLive {
		return nil
	}
	made, err := uuid.NewRandom()
	if err != nil {
		return fmt.Errorf("make an id: %w", err)
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO home_backups (id, workspace_id, cause) VALUES ($1, $2, $3)
		ON CONFLICT (workspace_id) WHERE state IN ('waiting', 'running') DO NOTHING`, made, w.ID, workspace.BackupHandOver)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `SELECT pg_notify($1, json_build_object('id', $2::text, 'owner', $3::text)::text)`, ChannelWake, w.ID, w.OwnerID)
	return err
}

// hasHome returns an error for a workspace that has no home to back up.
func hasHome(w workspace.Workspace) error {
	switch {
	case w.DeletedAt != nil:
		return notFound("workspace")
	case w.Phase == workspace.PhaseArchived:
		return workspace.Errorf(workspace.CodeNotRunning, "The workspace is archived, and its archive has all its files. Start it to make a backup.")
	case w.Phase == workspace.PhasePending:
		return workspace.Errorf(workspace.CodeNotRunning, "The workspace was not started yet, so there is nothing to back up.")
	}
	return nil
}

// joinNotes adds a note to that of a backup, unless it has it.
func joinNotes(former, note string) (string, error) {
	switch {
	case note == "" || strings.Contains(former, note):
		return former, nil
	case former == "":
		return note, nil
	}
	if former += "; " + note; len(former) > workspace.MaxBackupNote {
		return "", longNote()
	}
	return former, nil
}

func longNote() error {
	return workspace.InvalidField("note", fmt.Sprintf("is too long: at most %d bytes.", workspace.MaxBackupNote))
}
