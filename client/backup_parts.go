package client

import (
	"context"
	"io"
	"net/http"
	"net/url"

	"codehub/api"
)

// DownloadBackupTar reads a file or folder of a backup as a tar. The caller closes it. A read fails
// if the tar is cut short.
func (c *Client) DownloadBackupTar(ctx context.Context, id, backup, name string) (io.ReadCloser, error) {
	resp, err := c.request(ctx, http.MethodGet, path(id, "/backups/"+url.PathEscape(backup)+"/tar"), url.Values{"path": {name}}, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// PutBack puts a file or folder of a backup into the running workspace.
func (c *Client) PutBack(ctx context.Context, id, backup string, in api.PutBack) (api.PutBackResult, error) {
	return ask[api.PutBackResult](ctx, c, http.MethodPost, path(id, "/backups/"+url.PathEscape(backup)+"/put"), nil, in)
}
