package client

import (
	"context"
	"net/http"
	"net/url"

	"codehub/api"
)

// AdminStatus returns the state of servers and workspaces; for administrators.
func (c *Client) AdminStatus(ctx context.Context) (api.AdminStatus, error) {
	var out api.AdminStatus
	err := c.call(ctx, http.MethodGet, "/admin/status", nil, nil, &out)
	return out, err
}

// ConfirmDeadNode confirms that none of a node's processes runs any more, so that its workspaces
// start elsewhere; for administrators.
func (c *Client) ConfirmDeadNode(ctx context.Context, name string) (api.DeadNode, error) {
	var out api.DeadNode
	err := c.call(ctx, http.MethodPost, "/admin/nodes/"+url.PathEscape(name)+"/dead", nil, nil, &out)
	return out, err
}

// RetryImage makes an image again whose build on the server failed; for administrators.
func (c *Client) RetryImage(ctx context.Context, name string) (api.ImageBuild, error) {
	var out api.ImageBuild
	err := c.call(ctx, http.MethodPost, "/admin/images/"+url.PathEscape(name)+"/retry", nil, nil, &out)
	return out, err
}

// Orphans lists Docker resources without a workspace; for administrators.
func (c *Client) Orphans(ctx context.Context) ([]api.Orphan, error) {
	list := []api.Orphan{}
	err := pages(func(query url.Values) (string, error) {
		var page api.OrphanList
		err := c.call(ctx, http.MethodGet, "/admin/orphans", query, nil, &page)
		list = append(list, page.Orphans...)
		return page.NextCursor, err
	})
	return list, err
}

// Accounts lists all users by name; for administrators.
func (c *Client) Accounts(ctx context.Context) ([]api.Account, error) {
	list := []api.Account{}
	err := pages(func(query url.Values) (string, error) {
		var page api.AccountList
		err := c.call(ctx, http.MethodGet, "/users", query, nil, &page)
		list = append(list, page.Users...)
		return page.NextCursor, err
	})
	return list, err
}

// CreateAccount adds a user, without a password with an invitation; for administrators.
func (c *Client) CreateAccount(ctx context.Context, in api.CreateAccount) (api.Account, error) {
	var out api.Account
	err := c.call(ctx, http.MethodPost, "/users", nil, in, &out)
	return out, err
}

// InviteAccount gives a user a new invitation, with its link in the answer; for administrators.
func (c *Client) InviteAccount(ctx context.Context, id string) (api.Account, error) {
	var out api.Account
	err := c.call(ctx, http.MethodPost, "/users/"+url.PathEscape(id)+"/invitation", nil, nil, &out)
	return out, err
}

// ImportAccounts adds the users of a list, with invitations; for administrators.
func (c *Client) ImportAccounts(ctx context.Context, in api.ImportAccounts) (api.ImportedAccounts, error) {
	var out api.ImportedAccounts
	err := c.call(ctx, http.MethodPost, "/users/import", nil, in, &out)
	return out, err
}

// PatchAccount changes a user; for administrators.
func (c *Client) PatchAccount(ctx context.Context, id string, in api.PatchAccount) (api.Account, error) {
	var out api.Account
	err := c.call(ctx, http.MethodPatch, "/users/"+url.PathEscape(id), nil, in, &out)
	return out, err
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
	var out api.RestoreResult
	err := c.call(ctx, http.MethodPost, "/admin/restore", nil, in, &out)
	return out, err
}

// RemovePasskeys removes the passkeys and recovery codes of a user; for administrators.
func (c *Client) RemovePasskeys(ctx context.Context, id string) (api.Account, error) {
	var out api.Account
	err := c.call(ctx, http.MethodDelete, "/users/"+url.PathEscape(id)+"/passkeys", nil, nil, &out)
	return out, err
}
