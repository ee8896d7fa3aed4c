package auth

import (
	"context"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// TokenLimits are what an API token may do; the zero value is everything that its user may do.
type TokenLimits struct {
	Scope     workspace.Scope // empty: ScopeAdmin
	Workspace workspace.ID    // the only one that it is for; empty: all
}

// CreateToken creates an API token and returns it with its secret, which is not
// stored. Identity.Bound limits its expiry. CodeInvalid for limits that do not fit;
// CodeForbidden for a caller whose own token is limited.
func (a *Auth) CreateToken(ctx context.Context, by Identity, name string, expires *time.Time, limits TokenLimits) (postgres.Token, string, error) {
	if err := by.Caller.Permits(workspace.ScopeAdmin, ""); err != nil {
		return postgres.Token{}, "", err
	}
	if limits.Workspace != "" && (limits.Scope == "" || limits.Scope == workspace.ScopeAdmin) {
		return postgres.Token{}, "", workspace.Errorf(workspace.CodeInvalid, "A token for one workspace needs the scope read or workspaces.")
	}
	if expires != nil {
		if !expires.After(a.now()) {
			return postgres.Token{}, "", workspace.InvalidField("expires_at", "must be in the future.")
		}
		utc := expires.UTC().Truncate(time.Microsecond)
		if utc.Year() > 9999 { // which no JSON can say
			return postgres.Token{}, "", workspace.InvalidField("expires_at", "must be before the year 10000.")
		}
		expires = &utc
	}
	secret := newToken()
	hash := hashSecret(secret)
	t, err := a.store.CreateToken(ctx, by.Caller, postgres.Token{Name: name, Hash: hash[:], ExpiresAt: by.Bound(expires), Scope: limits.Scope, Workspace: limits.Workspace})
	return t, secret, err
}

// Tokens lists the caller's API tokens, newest first, and returns the cursor of the next
// page, "" at the end.
func (a *Auth) Tokens(ctx context.Context, caller workspace.Caller, page postgres.Page) (list []postgres.Token, next string, err error) {
	return a.store.Tokens(ctx, caller, page)
}

// Token returns one of the caller's API tokens.
func (a *Auth) Token(ctx context.Context, caller workspace.Caller, id string) (postgres.Token, error) {
	return a.store.Token(ctx, caller, id)
}

// DeleteToken deletes one of the caller's API tokens.
func (a *Auth) DeleteToken(ctx context.Context, caller workspace.Caller, id string) error {
	if err := a.store.DeleteToken(ctx, caller, id); err != nil {
		return err
	}
	a.Invalidate(caller.UserID, "")
	return nil
}
