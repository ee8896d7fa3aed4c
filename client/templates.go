package client

import (
	"context"
	"net/http"
	"net/url"

	"codehub/api"
)

// Templates lists the templates that the user may use; for administrators all.
func (c *Client) Templates(ctx context.Context) (api.TemplateList, error) {
	return ask[api.TemplateList](ctx, c, http.MethodGet, "/templates", nil, nil)
}

// Template reads a template.
func (c *Client) Template(ctx context.Context, name string) (api.Template, error) {
	return ask[api.Template](ctx, c, http.MethodGet, "/templates/"+url.PathEscape(name), nil, nil)
}

// SaveTemplate saves a template, or checks it; for administrators.
func (c *Client) SaveTemplate(ctx context.Context, name string, in api.SaveTemplate) (api.SavedTemplate, error) {
	return ask[api.SavedTemplate](ctx, c, http.MethodPut, "/templates/"+url.PathEscape(name), nil, in)
}

// DeleteTemplate deletes a saved template; for administrators.
func (c *Client) DeleteTemplate(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, "/templates/"+url.PathEscape(name), nil, nil, nil)
}

// TemplateOf returns a template with the settings of a workspace.
func (c *Client) TemplateOf(ctx context.Context, id string) (api.TemplateText, error) {
	return ask[api.TemplateText](ctx, c, http.MethodGet, "/workspaces/"+url.PathEscape(id)+"/template", nil, nil)
}

// UpdateTemplate updates a workspace to the present version of its template.
func (c *Client) UpdateTemplate(ctx context.Context, id string, in api.UpdateTemplate) (api.Workspace, error) {
	return ask[api.Workspace](ctx, c, http.MethodPost, "/workspaces/"+url.PathEscape(id)+"/update-template", nil, in)
}
