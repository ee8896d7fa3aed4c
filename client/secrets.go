package client

import (
	"context"
	"net/http"
	"net/url"

	"codehub/api"
)

// Secrets lists the user's secrets and those of the user's groups, without their values.
func (c *Client) Secrets(ctx context.Context) (api.SecretList, error) {
	return ask[api.SecretList](ctx, c, http.MethodGet, "/secrets", nil, nil)
}

// GroupSecrets lists the secrets of a group.
func (c *Client) GroupSecrets(ctx context.Context, group string) (api.SecretList, error) {
	return ask[api.SecretList](ctx, c, http.MethodGet, "/groups/"+url.PathEscape(group)+"/secrets", nil, nil)
}

// CreateSecret stores a secret of the user, or of a group if one is given.
func (c *Client) CreateSecret(ctx context.Context, group string, in api.CreateSecret) (api.Secret, error) {
	path := "/secrets"
	if group != "" {
		path = "/groups/" + url.PathEscape(group) + path
	}
	return ask[api.Secret](ctx, c, http.MethodPost, path, nil, in)
}

// UpdateSecret changes a secret.
func (c *Client) UpdateSecret(ctx context.Context, id string, in api.UpdateSecret) (api.Secret, error) {
	return ask[api.Secret](ctx, c, http.MethodPatch, "/secrets/"+url.PathEscape(id), nil, in)
}

// DeleteSecret removes a secret.
func (c *Client) DeleteSecret(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/secrets/"+url.PathEscape(id), nil, nil, nil)
}
