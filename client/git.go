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
func (c *Client) DisconnectGit(ctx context.Context, id string) (api.GitDisconnected, error) {
	return ask[api.GitDisconnected](ctx, c, http.MethodDelete, "/git-connections/"+url.PathEscape(id), nil, nil)
}

// GitCredential returns the credential of the workspace's owner for a host, in a workspace. rejected
// is empty, or the SHA-256 in hexadecimal of a password that the host has rejected.
func (c *Client) GitCredential(ctx context.Context, host, rejected string) (api.GitCredential, error) {
	query := url.Values{"host": {host}}
	if rejected != "" {
		query.Set("rejected", rejected)
	}
	return ask[api.GitCredential](ctx, c, http.MethodGet, "/git-credential", query, nil)
}
