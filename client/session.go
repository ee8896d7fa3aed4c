package client

import (
	"context"
	"net/http"
	"net/http/cookiejar"
	"net/url"

	"codehub/api"
)

// Login logs in with a password and returns a client that has the session.
// The session is not stored; to keep access, create a token with the client.
func Login(ctx context.Context, serverURL string, in api.Login, opts ...Option) (*Client, api.User, error) {
	c, err := New(serverURL, "", opts...)
	if err != nil {
		return nil, api.User{}, err
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, api.User{}, err
	}
	c.http.Jar = jar
	var u api.User
	err = c.call(ctx, http.MethodPost, "/login", nil, in, &u)
	return c, u, err
}

// BeginDevice begins a login that a user allows by typing in a code. name is that of this
// machine.
func BeginDevice(ctx context.Context, serverURL string, in api.BeginDevice, opts ...Option) (api.DeviceLogin, error) {
	var out api.DeviceLogin
	c, err := New(serverURL, "", opts...)
	if err != nil {
		return out, err
	}
	err = c.call(ctx, http.MethodPost, "/login/device", nil, in, &out)
	return out, err
}

// RedeemLogin takes the API token of a login that a user has allowed.
func RedeemLogin(ctx context.Context, serverURL string, in api.RedeemLogin, opts ...Option) (api.RedeemedLogin, error) {
	var out api.RedeemedLogin
	c, err := New(serverURL, "", opts...)
	if err != nil {
		return out, err
	}
	err = c.call(ctx, http.MethodPost, "/login/token", nil, in, &out)
	return out, err
}

// Logout ends the session that Login began.
func (c *Client) Logout(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, "/logout", nil, nil, nil)
}

// Session returns the client's user and its session or token.
func (c *Client) Session(ctx context.Context) (api.Session, error) {
	return ask[api.Session](ctx, c, http.MethodGet, "/session", nil, nil)
}

// Sessions lists the user's sessions, the most recently used first.
func (c *Client) Sessions(ctx context.Context) ([]api.OpenSession, error) {
	return all(ctx, c, "/sessions", func(page api.SessionList) ([]api.OpenSession, string) { return page.Sessions, page.NextCursor })
}

// EndSession ends one of the user's sessions.
func (c *Client) EndSession(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/sessions/"+url.PathEscape(id), nil, nil, nil)
}

// EndOtherSessions ends all of the user's sessions except the client's own, and
// returns how many there were.
func (c *Client) EndOtherSessions(ctx context.Context) (int64, error) {
	var out api.SessionsEnded
	err := c.call(ctx, http.MethodDelete, "/sessions", nil, nil, &out)
	return out.Ended, err
}

// Me returns the client's user.
func (c *Client) Me(ctx context.Context) (api.User, error) {
	return ask[api.User](ctx, c, http.MethodGet, "/users/me", nil, nil)
}

// CreateToken creates an API token. The secret is only in this response.
func (c *Client) CreateToken(ctx context.Context, in api.CreateToken) (api.Token, error) {
	return ask[api.Token](ctx, c, http.MethodPost, "/tokens", nil, in)
}

// Tokens lists the API tokens.
func (c *Client) Tokens(ctx context.Context) ([]api.Token, error) {
	return all(ctx, c, "/tokens", func(page api.TokenList) ([]api.Token, string) { return page.Tokens, page.NextCursor })
}

// DeleteToken revokes an API token.
func (c *Client) DeleteToken(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/tokens/"+url.PathEscape(id), nil, nil, nil)
}

// Identities lists the user's accounts at identity providers.
func (c *Client) Identities(ctx context.Context) ([]api.Identity, error) {
	var out api.IdentityList
	err := c.call(ctx, http.MethodGet, "/identities", nil, nil, &out)
	return out.Identities, err
}

// Passkeys lists the user's passkeys, the oldest first.
func (c *Client) Passkeys(ctx context.Context) (api.PasskeyList, error) {
	return ask[api.PasskeyList](ctx, c, http.MethodGet, "/passkeys", nil, nil)
}

// RenamePasskey renames one of them.
func (c *Client) RenamePasskey(ctx context.Context, id, name string) error {
	return c.call(ctx, http.MethodPatch, "/passkeys/"+url.PathEscape(id), nil, api.RenamePasskey{Name: name}, nil)
}

// UnlinkIdentity removes one of the user's accounts at identity providers, and ends its sessions. It takes the user's password.
func (c *Client) UnlinkIdentity(ctx context.Context, id, password string) error {
	return c.call(ctx, http.MethodPost, "/identities/"+url.PathEscape(id)+"/unlink", nil, api.UnlinkIdentity{Current: password}, nil)
}
