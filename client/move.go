package client

import (
	"context"
	"net/http"
	"net/url"

	"codehub/api"
)

// The methods of this file serve moves to another installation. They need an
// administrator's API token, and all but MoveSource fail with 403 unless moves are allowed
// on the server.

// MoveSource returns the server's installation.
func (c *Client) MoveSource(ctx context.Context) (api.MoveSource, error) {
	return ask[api.MoveSource](ctx, c, http.MethodGet, "/admin/move", nil, nil)
}

// WorkspacesToMove lists the workspaces of all users, newest first.
func (c *Client) WorkspacesToMove(ctx context.Context) ([]api.MoveWorkspace, error) {
	return all(ctx, c, "/admin/move/workspaces", func(page api.MoveWorkspaceList) ([]api.MoveWorkspace, string) {
		return page.Workspaces, page.NextCursor
	})
}

// WorkspaceToMove reads a workspace of any user.
func (c *Client) WorkspaceToMove(ctx context.Context, id string) (api.MoveWorkspace, error) {
	return ask[api.MoveWorkspace](ctx, c, http.MethodGet, movePath(id, ""), nil, nil)
}

// ArchiveToMove requests that a workspace is archived, after a running operation.
func (c *Client) ArchiveToMove(ctx context.Context, id string) (api.MoveWorkspace, error) {
	return ask[api.MoveWorkspace](ctx, c, http.MethodPost, movePath(id, "/archive"), nil, nil)
}

// ReadToMove returns what a move takes of an archived workspace, except its files.
func (c *Client) ReadToMove(ctx context.Context, id string) (api.MoveRecord, error) {
	return ask[api.MoveRecord](ctx, c, http.MethodGet, movePath(id, "/record"), nil, nil)
}

// FetchToMove opens the archive of a version of a workspace. The offset and the ETag are
// those of Download.
func (c *Client) FetchToMove(ctx context.Context, id, version string, offset int64, etag string) (*Download, error) {
	return c.download(ctx, movePath(id, "/archive"), url.Values{"version": {version}}, partFrom(offset, etag))
}

// DeleteMoved deletes a workspace if it still has this version.
func (c *Client) DeleteMoved(ctx context.Context, id, version string) error {
	return c.call(ctx, http.MethodDelete, movePath(id, ""), url.Values{"version": {version}}, nil, nil)
}

// MoveUser returns what a move takes of a user besides Accounts, and the server records that.
// not_found, also from a server of an earlier version.
func (c *Client) MoveUser(ctx context.Context, id string) (api.MoveUser, error) {
	return ask[api.MoveUser](ctx, c, http.MethodGet, "/admin/move/users/"+url.PathEscape(id), nil, nil)
}

func movePath(id, rest string) string {
	return "/admin/move/workspaces/" + url.PathEscape(id) + rest
}
