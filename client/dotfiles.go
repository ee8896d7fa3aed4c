package client

import (
	"context"
	"net/http"

	"codehub/api"
)

// Dotfiles returns the user's dotfiles; without a URL there are none.
func (c *Client) Dotfiles(ctx context.Context) (api.Dotfiles, error) {
	return ask[api.Dotfiles](ctx, c, http.MethodGet, "/user/dotfiles", nil, nil)
}

// SetDotfiles replaces the user's dotfiles.
func (c *Client) SetDotfiles(ctx context.Context, in api.Dotfiles) (api.Dotfiles, error) {
	return ask[api.Dotfiles](ctx, c, http.MethodPut, "/user/dotfiles", nil, in)
}

// RemoveDotfiles removes the user's dotfiles.
func (c *Client) RemoveDotfiles(ctx context.Context) error {
	return c.call(ctx, http.MethodDelete, "/user/dotfiles", nil, nil, nil)
}

// ApplyDotfiles applies the owner's dotfiles to a running workspace, also if it has them.
func (c *Client) ApplyDotfiles(ctx context.Context, id string) (api.Setup, error) {
	return ask[api.Setup](ctx, c, http.MethodPost, path(id, "/dotfiles"), nil, nil)
}
