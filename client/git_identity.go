package client

import (
	"context"
	"net/http"
	"net/url"

	"codehub/api"
)

// GitIdentity returns the author of the user's commits and the public SSH key.
func (c *Client) GitIdentity(ctx context.Context) (api.GitIdentity, error) {
	return ask[api.GitIdentity](ctx, c, http.MethodGet, "/user/git-identity", nil, nil)
}

// SetGitIdentity replaces the author of the user's commits.
func (c *Client) SetGitIdentity(ctx context.Context, in api.SetGitIdentity) (api.GitIdentity, error) {
	return ask[api.GitIdentity](ctx, c, http.MethodPut, "/user/git-identity", nil, in)
}

// NewGitKey makes a new SSH key, which replaces the former one.
func (c *Client) NewGitKey(ctx context.Context) (api.GitIdentity, error) {
	return ask[api.GitIdentity](ctx, c, http.MethodPost, "/user/git-identity/key", nil, nil)
}

// SignWithGitKey signs with the SSH key of a workspace's owner. Only the workspace itself may do so.
func (c *Client) SignWithGitKey(ctx context.Context, workspaceID string, in api.GitSignatureRequest) (api.GitSignature, error) {
	return ask[api.GitSignature](ctx, c, http.MethodPost, "/workspaces/"+url.PathEscape(workspaceID)+"/git-signature", nil, in)
}
