package service

import (
	"codehub/api"
	"codehub/internal/workspace"
)

// Backup is a backup of a home as the API shows it to the workspace's owner.
func Backup(b workspace.Backup) api.Backup {
	return api.Backup{
		ID: b.ID, State: string(b.State), Cause: b.Cause, Note: b.Note,
		CreatedAt: b.CreatedAt.UTC(), BegunAt: utc(b.BegunAt), EndedAt: utc(b.EndedAt), UnchangedAt: utc(b.UnchangedAt), VerifiedAt: utc(b.VerifiedAt),
		Damage: b.Damage, Error: b.Error,
		Entries: b.Entries, Files: b.Files, Bytes: b.Bytes, StoredBytes: b.Stored, Skipped: b.Skipped,
		Changed: b.Changed, Problems: b.Problems, Added: b.Added, Modified: b.Modified, Removed: b.Removed,
	}
}

// Backups are a page of the backups of a home, newest first, as the API shows them.
func Backups(list []workspace.Backup, s workspace.BackupSpace, next string) api.BackupList {
	out := api.BackupList{
		Backups: make([]api.Backup, 0, len(list)), NextCursor: next,
		Space: api.BackupSpace{WorkspaceBytes: s.Workspace, UserBytes: s.Used, MaxUserBytes: s.Limit},
	}
	for _, b := range list {
		out.Backups = append(out.Backups, Backup(b))
	}
	return out
}

// restoreFrom returns the id of the backup that is to replace the home; nil: none.
func restoreFrom(w workspace.Workspace) *string {
	if w.RestoreFrom == nil {
		return nil
	}
	return &w.RestoreFrom.OpID
}
