package client

import (
	"context"
	"net/http"

	"codehub/api"
)

// Sizes lists the sizes that workspaces may have, beginning with the default one.
func (c *Client) Sizes(ctx context.Context) ([]api.Size, error) {
	var out api.SizeList
	err := c.call(ctx, http.MethodGet, "/sizes", nil, nil, &out)
	return out.Sizes, err
}
