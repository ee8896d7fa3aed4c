// Package gitaccess keeps the tokens of users for Git servers, and answers for the host that Git in
// a workspace asks about.
package gitaccess

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/users/sealed"
	"codehub/internal/workspace"
)

// Lengths in bytes. Git reads the lines of a credential helper up to 16 KiB.
const (
	MaxLogin = 255
	MaxToken = 8 << 10
)

// Tokens are what a Git server accepts.
type Tokens struct {
	Username  string // that Git sends with Access; empty: the login
	Access    string
	Refresh   string     // empty: none
	ExpiresAt *time.Time // of Access; nil: unknown
}

// Service stores connections to Git servers.
type Service struct {
	store *postgres.DB
	keys  *sealed.Ring

	// Apps has the connections of the kind api.GitOAuth. Optional; without it the stored tokens are
	// used.
	Apps Apps
}

// Apps are the OAuth2 apps by which users connect.
type Apps interface {
	// Primary returns the host whose connection is for a host.
	Primary(host string) string
	// Fresh returns the tokens of a connection, refreshed if they expire soon or the Git server has
	// rejected the access token with that digest.
	Fresh(ctx context.Context, c postgres.GitTokens, rejected string) (Tokens, error)
	// Ending returns what revokes the tokens of a connection of the caller, once it is removed, and
	// reports whether the provider did.
	Ending(ctx context.Context, caller workspace.Caller, id string) (func() bool, error)
}

// New returns a Service.
func New(store *postgres.DB, keys *sealed.Ring) *Service { return &Service{store: store, keys: keys} }

// List returns the caller's connections.
func (s *Service) List(ctx context.Context, caller workspace.Caller) ([]api.GitConnection, error) {
	return s.store.GitConnections(ctx, caller)
}

// Connect stores a token that the caller has entered.
func (s *Service) Connect(ctx context.Context, caller workspace.Caller, in api.NewGitConnection) (api.GitConnection, error) {
	return s.Store(ctx, caller, api.GitConnection{Host: in.Host, Kind: api.GitToken, Login: in.Login}, Tokens{Access: strings.TrimSpace(in.Token)})
}

// Store stores a connection of the caller in place of that to the same host. Of c it takes Host,
// Kind, Provider and Login.
func (s *Service) Store(ctx context.Context, caller workspace.Caller, c api.GitConnection, t Tokens) (api.GitConnection, error) {
	host, err := ParseHost(c.Host)
	if err != nil {
		return c, err
	}
	c.Host, c.Login = host, strings.TrimSpace(c.Login)
	switch {
	case c.Login == "" || len(c.Login) > MaxLogin || !printable(c.Login):
		return c, invalid("login", "A login has 1 to 255 characters, without line breaks.")
	case t.Access == "":
		return c, invalid("token", "The token is empty.")
	case len(t.Access) > MaxToken:
		return c, invalid("token", "The token is longer than 8 KiB.")
	case !printable(t.Access):
		return c, invalid("token", "A token is one line of text.")
	}
	id, err := uuid.NewV7()
	if err != nil {
		return c, err
	}
	n := postgres.GitTokens{GitConnection: c, UserID: caller.UserID}
	n.ID = id.String()
	if n, err = s.Seal(n, t); err != nil {
		return c, err
	}
	return s.store.ConnectGit(ctx, caller, n)
}

// printable reports whether s is text of one line.
func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// Disconnect removes a connection of the caller, also if the provider does not revoke its tokens.
func (s *Service) Disconnect(ctx context.Context, caller workspace.Caller, id string) (out api.GitDisconnected, err error) {
	end := func() bool { return false }
	if s.Apps != nil {
		if end, err = s.Apps.Ending(ctx, caller, id); err != nil {
			return out, err
		}
	}
	if _, err := s.store.DisconnectGit(ctx, caller, id); err != nil {
		return out, err
	}
	out.Revoked = end()
	return out, nil
}

// Digest identifies an access token, for Apps.Fresh.
func Digest(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// Seal returns the connection, of which it uses the id, user and host, with the tokens.
func (s *Service) Seal(c postgres.GitTokens, t Tokens) (_ postgres.GitTokens, err error) {
	c.ExpiresAt = t.ExpiresAt
	if c.Access, err = s.keys.Seal([]byte(t.Access), postgres.GitAccessOwner(c.ID, c.UserID, c.Host)); err != nil {
		return c, err
	}
	c.Refresh = nil
	if t.Refresh != "" {
		c.Refresh, err = s.keys.Seal([]byte(t.Refresh), postgres.GitRefreshOwner(c.ID, c.UserID, c.Host))
	}
	return c, err
}

// Open decrypts the tokens of a connection.
func (s *Service) Open(c postgres.GitTokens) (Tokens, error) {
	t := Tokens{ExpiresAt: c.ExpiresAt}
	access, err := s.keys.Open(c.Access, postgres.GitAccessOwner(c.ID, c.UserID, c.Host))
	if err != nil {
		return t, err
	}
	t.Access = string(access)
	if c.Refresh != nil {
		refresh, err := s.keys.Open(c.Refresh, postgres.GitRefreshOwner(c.ID, c.UserID, c.Host))
		if err != nil {
			return t, err
		}
		t.Refresh = string(refresh)
	}
	return t, nil
}

// Credential returns the credential of a workspace's owner for a host, for a program in the
// workspace: CodeForbidden for other callers, and while the workspace is shared for use with
// someone who may not use the owner's connections. CodeNotFound without a connection. rejected is
// the Digest of a token that the host has rejected, or empty.
func (s *Service) Credential(ctx context.Context, caller workspace.Caller, host, rejected string) (api.GitCredential, error) {
	if !caller.Inside {
		return api.GitCredential{}, workspace.Errorf(workspace.CodeForbidden, "Only a program in the workspace gets the credentials of its owner.")
	}
	host, err := ParseHost(host)
	if err != nil {
		return api.GitCredential{}, err
	}
	c, err := s.store.GitTokensFor(ctx, caller.UserID, host)
	if s.Apps != nil && workspace.CodeOf(err) == workspace.CodeNotFound {
		if primary := s.Apps.Primary(host); primary != host {
			// A token that the user entered is for its own host alone.
			if c, err = s.store.GitTokensFor(ctx, caller.UserID, primary); err == nil && c.Kind != api.GitOAuth {
				err = workspace.NotFound("connection")
			}
		}
	}
	if workspace.CodeOf(err) == workspace.CodeNotFound {
		return api.GitCredential{}, &workspace.Error{Code: workspace.CodeNotFound, Message: fmt.Sprintf("The owner of the workspace has no connection to %s.", host), Details: map[string]any{"host": host}, Err: err}
	}
	if err != nil {
		return api.GitCredential{}, err
	}
	switch refused, err := s.store.GitGuests(ctx, caller.Only); {
	case err != nil:
		return api.GitCredential{}, err
	case refused:
		return api.GitCredential{}, workspace.Errorf(workspace.CodeForbidden, "The workspace is shared with users who may not use the Git connections of its owner. The owner can allow it where the workspace is shared.")
	}
	var t Tokens
	if c.Kind == api.GitOAuth && s.Apps != nil {
		t, err = s.Apps.Fresh(ctx, c, rejected)
	} else {
		t, err = s.Open(c)
	}
	if err != nil {
		var coded *workspace.Error
		if !errors.As(err, &coded) { // the server's paths are not for users
			err = &workspace.Error{Code: workspace.CodeUnavailable, Message: fmt.Sprintf("The token for %s cannot be decrypted. Connect %s again.", host, host), Err: err}
		}
		return api.GitCredential{}, err
	}
	if t.Username == "" {
		t.Username = c.Login
	}
	return api.GitCredential{Username: t.Username, Password: t.Access}, nil
}

func invalid(field, message string) error {
	return &workspace.Error{Code: workspace.CodeInvalid, Message: message, Details: map[string]any{"field": field}}
}
