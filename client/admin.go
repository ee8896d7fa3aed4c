package client

import (
	"context"
	"net/http"
	"net/url"

	"codehub/api"
)

// AdminStatus returns the state of servers and workspaces; for administrators.
func (c *Client) AdminStatus(ctx context.Context) (api.AdminStatus, error) {
	return ask[api.AdminStatus](ctx, c, http.MethodGet, "/admin/status", nil, nil)
}

// Settings returns the settings of the server that answers, without secrets; for administrators.
func (c *Client) Settings(ctx context.Context) (api.Settings, error) {
	return ask[api.Settings](ctx, c, http.MethodGet, "/admin/settings", nil, nil)
}

// ConfirmDeadNode confirms that none of a node's processes runs any more, so that its workspaces
// start elsewhere; for administrators.
func (c *Client) ConfirmDeadNode(ctx context.Context, name string) (api.DeadNode, error) {
	return ask[api.DeadNode](ctx, c, http.MethodPost, "/admin/nodes/"+url.PathEscape(name)+"/dead", nil, nil)
}

// RetryImage makes an image again whose build on the server failed; for administrators.
func (c *Client) RetryImage(ctx context.Context, name string) (api.ImageBuild, error) {
	return ask[api.ImageBuild](ctx, c, http.MethodPost, "/admin/images/"+url.PathEscape(name)+"/retry", nil, nil)
}

// Orphans lists Docker resources without a workspace; for administrators.
func (c *Client) Orphans(ctx context.Context) ([]api.Orphan, error) {
	return all(ctx, c, "/admin/orphans", func(page api.OrphanList) ([]api.Orphan, string) { return page.Orphans, page.NextCursor })
}

// Accounts lists all users by name; for administrators.
func (c *Client) Accounts(ctx context.Context) ([]api.Account, error) {
	return all(ctx, c, "/users", func(page api.AccountList) ([]api.Account, string) { return page.Users, page.NextCursor })
}

// CreateAccount adds a user, without a password with an invitation; for administrators.
func (c *Client) CreateAccount(ctx context.Context, in api.CreateAccount) (api.Account, error) {
	return ask[api.Account](ctx, c, http.MethodPost, "/users", nil, in)
}

// InviteAccount gives a user a new invitation, with its link in the answer; for administrators.
func (c *Client) InviteAccount(ctx context.Context, id string) (api.Account, error) {
	return ask[api.Account](ctx, c, http.MethodPost, "/users/"+url.PathEscape(id)+"/invitation", nil, nil)
}

// ImportAccounts adds the users of a list, with invitations; for administrators.
func (c *Client) ImportAccounts(ctx context.Context, in api.ImportAccounts) (api.ImportedAccounts, error) {
	return ask[api.ImportedAccounts](ctx, c, http.MethodPost, "/users/import", nil, in)
}

// PatchAccount changes a user; for administrators.
func (c *Client) PatchAccount(ctx context.Context, id string, in api.PatchAccount) (api.Account, error) {
	return ask[api.Account](ctx, c, http.MethodPatch, "/users/"+url.PathEscape(id), nil, in)
}

// ChangePassword changes the client's own password. This ends all sessions and
// revokes all API tokens, including the client's.
func (c *Client) ChangePassword(ctx context.Context, current, password string) error {
	return c.call(ctx, http.MethodPost, "/users/me/password", nil, api.ChangePassword{Current: current, New: password}, nil)
}

// RestorePlan returns what ApplyRestore with the same choices would do; for administrators. It
// reads all pages.
func (c *Client) RestorePlan(ctx context.Context, in api.ApplyRestore) (api.RestorePlan, error) {
	var out api.RestorePlan
	list := []api.RestoreStep{}
	err := pages(func(query url.Values) (string, error) {
		query["only"], query["keep_database"] = in.Only, in.KeepDatabase
		out = api.RestorePlan{}
		err := c.call(ctx, http.MethodGet, "/admin/restore", query, nil, &out)
		list = append(list, out.Workspaces...)
		return out.NextCursor, err
	})
	out.Workspaces = list
	return out, err
}

// ApplyRestore takes over after a restore; for administrators.
func (c *Client) ApplyRestore(ctx context.Context, in api.ApplyRestore) (api.RestoreResult, error) {
	return ask[api.RestoreResult](ctx, c, http.MethodPost, "/admin/restore", nil, in)
}

// RemovePasskeys removes the passkeys and recovery codes of a user; for administrators.
func (c *Client) RemovePasskeys(ctx context.Context, id string) (api.Account, error) {
	return ask[api.Account](ctx, c, http.MethodDelete, "/users/"+url.PathEscape(id)+"/passkeys", nil, nil)
}
