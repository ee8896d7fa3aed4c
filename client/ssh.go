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
	var out api.SSHServer
	err := c.call(ctx, http.MethodGet, "/ssh", nil, nil, &out)
	return out, err
}

// SSHKeys lists the user's SSH keys, newest first.
func (c *Client) SSHKeys(ctx context.Context) ([]api.SSHKey, error) {
	list := []api.SSHKey{}
	err := pages(func(query url.Values) (string, error) {
		var page api.SSHKeyList
		err := c.call(ctx, http.MethodGet, "/keys", query, nil, &page)
		list = append(list, page.Keys...)
		return page.NextCursor, err
	})
	return list, err
}

// AddSSHKey registers a public key.
func (c *Client) AddSSHKey(ctx context.Context, in api.AddSSHKey) (api.SSHKey, error) {
	var out api.SSHKey
	err := c.call(ctx, http.MethodPost, "/keys", nil, in, &out)
	return out, err
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
