package client

import (
	"context"
	"net/http"
	"net/url"

	"codehub/api"
)

// Backups lists the backups of a workspace's home, newest first. It reads all pages.
func (c *Client) Backups(ctx context.Context, id string) ([]api.Backup, error) {
	return all(ctx, c, path(id, "/backups"), func(page api.BackupList) ([]api.Backup, string) { return page.Backups, page.NextCursor })
}

// BackupSpace reads how much space the backups of a workspace and of its owner use.
func (c *Client) BackupSpace(ctx context.Context, id string) (api.BackupSpace, error) {
	page, err := ask[api.BackupList](ctx, c, http.MethodGet, path(id, "/backups"), url.Values{"limit": {"1"}}, nil)
	return page.Space, err
}

// Backup reads a backup of a workspace.
func (c *Client) Backup(ctx context.Context, id, backup string) (api.Backup, error) {
	return ask[api.Backup](ctx, c, http.MethodGet, backupPath(id, backup, ""), nil, nil)
}

// RequestBackup requests a backup of a workspace's home, or adds a note to the one that waits.
func (c *Client) RequestBackup(ctx context.Context, id, note string) (api.Backup, error) {
	return ask[api.Backup](ctx, c, http.MethodPost, path(id, "/backups"), nil, api.NewBackup{Note: note})
}

// BackupFiles is ArchiveFiles for a backup.
func (c *Client) BackupFiles(ctx context.Context, id, backup, name string) ([]api.ArchiveFile, error) {
	return c.files(ctx, backupPath(id, backup, "/files"), url.Values{"path": {name}})
}

// DownloadBackupFile is DownloadFile for a backup.
func (c *Client) DownloadBackupFile(ctx context.Context, id, backup, name string) (*Download, error) {
	return c.download(ctx, backupPath(id, backup, "/file"), url.Values{"path": {name}}, http.Header{})
}

// BackupChanges lists what changed between a backup and an earlier one; an empty since is the one
// before.
func (c *Client) BackupChanges(ctx context.Context, id, backup, since string) (api.BackupChanges, error) {
	q := url.Values{}
	if since != "" {
		q.Set("since", since)
	}
	return ask[api.BackupChanges](ctx, c, http.MethodGet, backupPath(id, backup, "/changes"), q, nil)
}

// FileVersions lists the versions of a file or link in the backups of a workspace's home, newest first. It reads
// all pages.
func (c *Client) FileVersions(ctx context.Context, id, name string) ([]api.FileVersion, error) {
	versions := []api.FileVersion{}
	for q := (url.Values{"path": {name}}); ; {
		page, err := ask[api.FileVersions](ctx, c, http.MethodGet, path(id, "/backups/versions"), q, nil)
		versions = append(versions, page.Versions...)
		if err != nil || page.NextCursor == "" {
			return versions, err
		}
		q.Set("cursor", page.NextCursor)
	}
}

// RestoreBackup archives the home of a workspace, and replaces it by that of a backup.
func (c *Client) RestoreBackup(ctx context.Context, id string, in api.RestoreBackup) (api.Workspace, error) {
	return c.workspace(ctx, http.MethodPost, path(id, "/restore"), nil, in)
}

// Fork creates workspaces whose homes are that of a backup.
func (c *Client) Fork(ctx context.Context, id string, in api.Fork) ([]api.Workspace, error) {
	made, err := ask[api.WorkspaceList](ctx, c, http.MethodPost, path(id, "/fork"), nil, in)
	return made.Workspaces, err
}

func backupPath(id, backup, rest string) string {
	return path(id, "/backups/"+url.PathEscape(backup)+rest)
}
