package client

import (
	"context"
	"net"
	"net/http"
	"net/url"

	"github.com/coder/websocket"

	"codehub/api"
)

// SSHServer returns the address of the server's SSH listener and its host key.
func (c *Client) SSHServer(ctx context.Context) (api.SSHServer, error) {
	return ask[api.SSHServer](ctx, c, http.MethodGet, "/ssh", nil, nil)
}

// SSHKeys lists the user's SSH keys, newest first.
func (c *Client) SSHKeys(ctx context.Context) ([]api.SSHKey, error) {
	return all(ctx, c, "/keys", func(page api.SSHKeyList) ([]api.SSHKey, string) { return page.Keys, page.NextCursor })
}

// AddSSHKey registers a public key.
func (c *Client) AddSSHKey(ctx context.Context, in api.AddSSHKey) (api.SSHKey, error) {
	return ask[api.SSHKey](ctx, c, http.MethodPost, "/keys", nil, in)
}

// DeleteSSHKey removes an SSH key, and ends the connections that were opened with it.
func (c *Client) DeleteSSHKey(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/keys/"+url.PathEscape(id), nil, nil, nil)
}

// SSH opens a connection that carries SSH into a workspace. The server requests no key
// within it. ctx ends the connection.
func (c *Client) SSH(ctx context.Context, id string) (net.Conn, error) {
	ws, err := c.webSocket(ctx, path(id, "/ssh"), api.SSHProtocol)
	if err != nil {
		return nil, err
	}
	return websocket.NetConn(ctx, ws, websocket.MessageBinary), nil
}
