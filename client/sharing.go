package client

import (
	"context"
	"net/http"
	"net/url"

	"codehub/api"
)

// Shares lists with whom the caller's workspace is shared.
func (c *Client) Shares(ctx context.Context, id string) ([]api.Share, error) {
	var out api.ShareList
	err := c.call(ctx, http.MethodGet, "/workspaces/"+url.PathEscape(id)+"/shares", nil, nil, &out)
	return out.Shares, err
}

// Share shares the caller's workspace with a user or a group, or changes the access.
func (c *Client) Share(ctx context.Context, id string, in api.NewShare) (api.Share, error) {
	return ask[api.Share](ctx, c, http.MethodPost, "/workspaces/"+url.PathEscape(id)+"/shares", nil, in)
}

// Unshare ends a share.
func (c *Client) Unshare(ctx context.Context, id, share string) error {
	return c.call(ctx, http.MethodDelete, "/workspaces/"+url.PathEscape(id)+"/shares/"+url.PathEscape(share), nil, nil, nil)
}

// Shared lists the workspaces that others share with the caller.
func (c *Client) Shared(ctx context.Context) ([]api.SharedWorkspace, error) {
	var out api.SharedList
	err := c.call(ctx, http.MethodGet, "/shared", nil, nil, &out)
	return out.Workspaces, err
}

// SharedWorkspace shows one workspace that another user shares with the caller.
func (c *Client) SharedWorkspace(ctx context.Context, id string) (api.SharedWorkspace, error) {
	return ask[api.SharedWorkspace](ctx, c, http.MethodGet, "/shared/"+url.PathEscape(id), nil, nil)
}

// Leave ends the caller's own access to a workspace that another user shares.
func (c *Client) Leave(ctx context.Context, id string) (api.LeftShare, error) {
	return ask[api.LeftShare](ctx, c, http.MethodDelete, "/shared/"+url.PathEscape(id), nil, nil)
}
