package client

import (
	"context"
	"net/http"
	"strconv"

	"codehub/api"
	"codehub/internal/gateway/tunnel"
)

// Ports lists the ports of a workspace that are shared or that a program listens on.
func (c *Client) Ports(ctx context.Context, id string) (api.PortList, error) {
	return ask[api.PortList](ctx, c, http.MethodGet, path(id, "/ports"), nil, nil)
}

// SharePort shares a port of a workspace.
func (c *Client) SharePort(ctx context.Context, id string, port int, in api.SharePort) (api.Port, error) {
	return ask[api.Port](ctx, c, http.MethodPut, path(id, "/ports/"+strconv.Itoa(port)+"/share"), nil, in)
}

// UnsharePort ends the share of a port.
func (c *Client) UnsharePort(ctx context.Context, id string, port int) error {
	return c.call(ctx, http.MethodDelete, path(id, "/ports/"+strconv.Itoa(port)+"/share"), nil, nil, nil)
}

// ConnectPort connects to a port of a running workspace, as its programs reach it on
// 127.0.0.1. The connection ends with ctx, and the caller must close it.
func (c *Client) ConnectPort(ctx context.Context, id string, port int) (*tunnel.Conn, error) {
	ws, err := c.webSocket(ctx, path(id, "/ports/"+strconv.Itoa(port)+"/connect"), tunnel.Protocol)
	if err != nil {
		return nil, err
	}
	conn := tunnel.New(ctx, ws)
	go conn.KeepAlive()
	return conn, nil
}
