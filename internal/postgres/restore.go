package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"codehub/api"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// RequestRestore requests that a backup of the workspace replaces its home
// (lifecycle.RequestRestore). CodeNotFound for a backup that is not done or not kept any more;
// CodeNotSupported for a damaged one; CodeLimitExceeded and CodeImageNotAllowed if it is to start.
func (db *DB) RequestRestore(ctx context.Context, caller workspace.Caller, id workspace.ID, backup string, start bool) (workspace.Workspace, error) {
	w, _, err := db.apply(ctx, caller, id, "request a restore", mayNeedSlot, func(ctx context.Context, tx pgx.Tx, w workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
		return db.restore(ctx, tx, w, now, backup, start)
	})
	return w, err
}

// restore is the intent of RequestRestore.
func (db *DB) restore(ctx context.Context, tx pgx.Tx, w workspace.Workspace, now time.Time, backup string, start bool) (lifecycle.Intent, error) {
	if err := lifecycle.Present(w); err != nil {
		return lifecycle.Intent{}, err
	}
	from, err := chooseBackup(ctx, tx, w.ID, backup)
	if err != nil {
		return lifecycle.Intent{}, err
	}
	out, err := lifecycle.RequestRestore(w, now, &from, start)
	if err == nil && out.NeedsSlot {
		return db.startable(w, out, err)
	}
	return out, err
}

// chooseBackup reads a backup that is to be restored. Its row stays as it is until the transaction
// ends, so that it does not expire before a workspace names it. The transaction holds the
// workspace's row.
func chooseBackup(ctx context.Context, tx pgx.Tx, id workspace.ID, backup string) (workspace.Archive, error) {
	b := workspace.Backup{ID: backup, WorkspaceID: id}
	if !workspace.ValidID(backup) {
		return workspace.Archive{}, notFound("backup")
	}
	err := tx.QueryRow(ctx, `
		SELECT key, digest, size, entries, skipped, created_at, begun_at, damage FROM home_backups
		WHERE id = $1 AND workspace_id = $2 AND state = 'done' AND expired_at IS NULL FOR SHARE`, backup, id).
		Scan(&b.Key, &b.Digest, &b.Size, &b.Entries, &b.Skipped, &b.CreatedAt, &b.BegunAt, &b.Damage)
	switch {
	case missing(err):
		return workspace.Archive{}, notFound("backup")
	case err != nil:
		return workspace.Archive{}, err
	case b.Damage != "":
		return workspace.Archive{}, workspace.Errorf(workspace.CodeNotSupported, "This backup is damaged, so it cannot replace the home. Choose another one.")
	}
	return b.Archive(), nil
}

// AuditFork is the action of a workspace that is created from a backup of another one.
const AuditFork = "workspace.fork"

// maxForks is how many workspaces one request creates.
const maxForks = 20

// Fork creates workspaces of the caller whose homes are those of a backup or an archive of the workspace,
// with its settings: all of them or, on an error, none. Without one it is the archive of an archived
// workspace. Secrets, shares and notes of the workspace stay its own. CodeInvalid; CodeNotFound, CodeNotSupported for the backup as RequestRestore; the errors of
// CreateWorkspace.
func (db *DB) Fork(ctx context.Context, caller workspace.Caller, id workspace.ID, f api.Fork) (made []workspace.Workspace, err error) {
	if f.Count == 0 {
		f.Count = 1
	}
	if f.Count < 1 || f.Count > maxForks {
		return nil, workspace.InvalidField("count", fmt.Sprintf("must be 1 to %d.", maxForks))
	}
	before := addsToOwner
	err = db.tx(ctx, "fork a workspace", func(tx pgx.Tx) error {
		made = nil
		if err := before.take(ctx, tx, caller); err != nil {
			return err
		}
		w, _, err := lockWorkspace(ctx, tx, caller, id)
		if err != nil {
			return err
		}
		if err := db.forkable(w, caller, f.Start); err != nil {
			return err
		}
		from, err := forkedFrom(ctx, tx, w, f.Backup)
		if err != nil {
			return err
		}
		names, err := forkNames(ctx, tx, caller.UserID, w.Name, f)
		if err != nil {
			return err
		}
		for _, name := range names {
			fork, err := db.fork(ctx, tx, caller, w, from, name, f)
			if err != nil {
				return err
			}
			made = append(made, fork)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return made, nil
}

// forkedFrom returns the backup or the archive with this id, or the archive of an archived workspace. It is
// kept while a fork names it. The transaction holds the workspace's row.
func forkedFrom(ctx context.Context, tx pgx.Tx, w workspace.Workspace, id string) (workspace.Archive, error) {
	if id == "" {
		if w.Phase != workspace.PhaseArchived || w.ArchiveKey == "" {
			return workspace.Archive{}, workspace.InvalidField("backup", "is required unless the workspace is archived.")
		}
		return workspace.Archive{Key: w.ArchiveKey, Digest: w.ArchiveDigest, Size: w.ArchiveSize}, nil
	}
	from, err := chooseArchive(ctx, tx, w.ID, id)
	switch {
	case err != nil:
		return workspace.Archive{}, err
	case from == nil:
		return workspace.Archive{}, notFound("backup")
	}
	return *from, nil
}

// forkable refuses forks that could never start.
func (db *DB) forkable(w workspace.Workspace, caller workspace.Caller, start bool) error {
	if err := lifecycle.Present(w); err != nil {
		return err
	}
	if err := notAllowed(db.images.Check(w.ImageRef, caller.UserID)); err != nil {
		return err
	}
	if start {
		if err := notAllowed(db.images.CheckStart(w.ImageRef)); err != nil {
			return err
		}
	}
	return lifecycle.CheckSize(w.Size, db.sizes)
}

// fork adds one workspace. The transaction holds the locks of addsToOwner.
func (db *DB) fork(ctx context.Context, tx pgx.Tx, caller workspace.Caller, w workspace.Workspace, from workspace.Archive, name string, f api.Fork) (fork workspace.Workspace, err error) {
	made, err := uuid.NewV7()
	if err != nil {
		return fork, fmt.Errorf("make an id: %w", err)
	}
	id := workspace.ID(made.String())
	if err := db.checkWorkspaces(ctx, tx, caller.UserID); err != nil {
		return fork, err
	}
	desired := workspace.DesiredArchived
	if f.Start {
		desired = workspace.DesiredRunning
		if err := db.checkLimits(ctx, tx, caller.UserID, id); err != nil {
			return fork, err
		}
	}
	n := NewWorkspace{
		Name: name, Description: w.Description, ImageRef: w.ImageRef, Size: w.Size, StorageBackend: w.StorageBackend, Desired: desired,
		StandbyTTL: w.StandbyTTL, ArchiveTTL: w.ArchiveTTL, Env: w.Env, TimeZone: w.TimeZone, Project: w.Project, AwakeWhileWorking: w.AwakeWhileWorking,
		BackupInterval: w.BackupInterval, BackupKeep: w.BackupKeep,
	}
	if w.Template != nil {
		use := *w.Template
		use.Previous = nil
		n.Template = &use
	}
	if _, err = insertWorkspace(ctx, tx, caller, id, n); err != nil {
		return fork, err
	}
	err = tx.QueryRow(ctx, `
		UPDATE workspaces SET archive_key = $2, archive_digest = $3, archive_size = $4 WHERE id = $1 RETURNING `+workspaceColumns,
		id, from.Key, from.Digest, from.Size).Scan(workspaceTargets(&fork)...)
	if err != nil {
		return fork, err
	}
	// An earlier backup of the database must be recognized as one.
	if err := requestMark(ctx, tx); err != nil {
		return fork, err
	}
	return fork, audit(ctx, tx, caller, AuditFork, string(id), map[string]any{"name": name, "source": w.ID, "key": from.Key, "desired_state": desired})
}

// forkNames returns the names of the workspaces: the first one as requested, and numbers after the
// others, from 2. Names that the owner's workspaces have are left out.
func forkNames(ctx context.Context, tx pgx.Tx, owner, source string, f api.Fork) (names []string, err error) {
	rows, err := tx.Query(ctx, `SELECT name FROM workspaces WHERE owner_user_id = $1 AND deleted_at IS NULL`, owner)
	if err != nil {
		return nil, err
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	taken := map[string]bool{}
	for _, name := range list {
		taken[name] = true
	}
	base := source
	if f.Name != "" {
		base = f.Name
		if taken[base] {
			return nil, nameTaken(base, nil)
		}
		names = append(names, base)
	}
	for n := 2; len(names) < f.Count; n++ {
		suffix := fmt.Sprintf(" %d", n)
		if name := strings.TrimSpace(cut(base, workspace.MaxName-len(suffix))) + suffix; !taken[name] {
			names = append(names, name)
		}
	}
	return names, nil
}
