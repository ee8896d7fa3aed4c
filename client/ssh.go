package client

import (
	"context"
	"fmt"
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
	h := http.Header{"User-Agent": {c.agent}}
	if c.token != "" {
		h.Set(api.TokenHeader, c.token)
	}
	ws, resp, err := websocket.Dial(ctx, c.base+path(id, "/ssh"), &websocket.DialOptions{
		HTTPClient: c.http, HTTPHeader: h, Subprotocols: []string{api.SSHProtocol}, CompressionMode: websocket.CompressionDisabled,
	})
	switch {
	case err == nil:
		return websocket.NetConn(ctx, ws, websocket.MessageBinary), nil
	case resp != nil && resp.StatusCode >= 400:
		return nil, readError(resp)
	case resp != nil:
		return nil, fmt.Errorf("the server did not open a WebSocket (%s); does a reverse proxy in front of it relay them?", resp.Status)
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return nil, c.unreachable(err)
}
