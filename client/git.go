package client

import (
	"context"
	"net/http"
	"net/url"

	"codehub/api"
)

// GitConnections lists the user's connections to Git servers.
func (c *Client) GitConnections(ctx context.Context) ([]api.GitConnection, error) {
	list, err := ask[api.GitConnectionList](ctx, c, http.MethodGet, "/git-connections", nil, nil)
	return list.Connections, err
}

// ConnectGit stores a token for a Git server, in place of the connection to that server.
func (c *Client) ConnectGit(ctx context.Context, in api.NewGitConnection) (api.GitConnection, error) {
	return ask[api.GitConnection](ctx, c, http.MethodPost, "/git-connections", nil, in)
}

// DisconnectGit removes a connection.
func (c *Client) DisconnectGit(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/git-connections/"+url.PathEscape(id), nil, nil, nil)
}

// GitCredential returns the credential of the workspace's owner for a host, in a workspace.
func (c *Client) GitCredential(ctx context.Context, host string) (api.GitCredential, error) {
	return ask[api.GitCredential](ctx, c, http.MethodGet, "/git-credential", url.Values{"host": {host}}, nil)
}
