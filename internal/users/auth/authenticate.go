package auth

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/http"
	"time"

	"codehub/internal/gateway/front"
	"codehub/internal/workspace"
)

// Identity is the sender of a request.
type Identity struct {
	Caller    workspace.Caller
	CreatedAt time.Time // of the account
	Expires   time.Time // of the session or token; zero: no end

	host  workspace.Host // of a session on a workspace's host; zero otherwise
	login string         // the session, as in Caller.Session, that a session on a workspace's host was made from
}

// Bound returns when something that the sender adds expires, if the sender asks for
// expires; nil: never. What was added with an expiring API token does not outlive the token.
func (id Identity) Bound(expires *time.Time) *time.Time {
	if id.Caller.Token == "" || id.Expires.IsZero() || expires != nil && !expires.After(id.Expires) {
		return expires
	}
	return &id.Expires
}

// credential is a kind of credential. None is accepted in the place of another.
type credential int

const (
	sessionCredential credential = iota
	tokenCredential
	workspaceCredential
)

func (id Identity) kind() credential {
	switch {
	case id.Caller.Token != "":
		return tokenCredential
	case id.host.ID != "":
		return workspaceCredential
	}
	return sessionCredential
}

// loadTimeout limits a query. The query does not end with the request that started
// it, because others wait for its result.
const loadTimeout = 10 * time.Second

// Authenticate returns the sender of a request, by the API token in
// Codehub-Session-Token, with bearer (only for /api) also by the one in
// Authorization, or else by the session cookie. The error is CodeUnauthenticated if
// there is no valid credential, and CodeCookieConflict if there are several session
// cookies; CodeForbidden for a token that may not enter workspaces. Whether it may enter
// the one that is meant is what Caller.Uses reports. Results are cached for at most 60 s.
func (a *Auth) Authenticate(r *http.Request, bearer bool) (workspace.Caller, error) {
	id, err := a.identity(r, bearer)
	if err == nil {
		err = id.Caller.Permits(workspace.ScopeWorkspaces, id.Caller.Only)
	}
	if err != nil {
		return workspace.Caller{}, err
	}
	return id.Caller, nil
}

// Identify is Authenticate with more details, for what needs a token without limits.
func (a *Auth) Identify(r *http.Request, bearer bool) (Identity, error) {
	return a.IdentifyFor(r, bearer, workspace.ScopeAdmin, "")
}

// IdentifyFor is Identify for an action that needs this scope, on this workspace, if any; see
// Caller.Permits.
func (a *Auth) IdentifyFor(r *http.Request, bearer bool, need workspace.Scope, on workspace.ID) (Identity, error) {
	id, err := a.identity(r, bearer)
	if err == nil {
		err = id.Caller.Permits(need, on)
	}
	if err != nil {
		return Identity{}, err
	}
	return id, nil
}

func (a *Auth) identity(r *http.Request, bearer bool) (Identity, error) {
	if id, inside := Inside(r.Context()); inside {
		return a.insider(r.Context(), id)
	}
	secret, kind, err := a.credentials(r, bearer)
	if err != nil {
		return Identity{}, err
	}
	id, err := a.identify(r.Context(), hashSecret(secret), kind)
	return id.at(r), err
}

// at adds where the request comes from.
func (id Identity) at(r *http.Request) Identity {
	if id.Caller.UserID != "" {
		id.Caller.Address = front.Address(r)
	}
	return id
}

func (a *Auth) identify(ctx context.Context, hash secretHash, kind credential) (Identity, error) {
	id, ok := a.cache.get(hash, a.now())
	if !ok {
		ch := a.loads.DoChan(string(hash[:]), func() (any, error) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadTimeout)
			defer cancel()
			return a.load(ctx, hash, kind)
		})
		select {
		case r := <-ch:
			if r.Err != nil {
				return Identity{}, r.Err
			}
			id = r.Val.(Identity)
		case <-ctx.Done():
			return Identity{}, ctx.Err()
		}
	}
	if id.kind() != kind {
		return Identity{}, unauthenticated()
	}
	return id, nil
}

func (a *Auth) load(ctx context.Context, hash secretHash, kind credential) (Identity, error) {
	// An invalidation during the query must not be lost.
	seen := a.cache.generation()
	var id Identity
	switch kind {
	case tokenCredential:
		u, t, err := a.store.TokenUser(ctx, hash[:])
		if err != nil {
			return Identity{}, notAuthenticated(err)
		}
		if u.Disabled {
			return Identity{}, unauthenticated()
		}
		id = Identity{Caller: callerOf(u, hash, t.ID), CreatedAt: u.CreatedAt}
		id.Caller.Scope, id.Caller.Only = t.Scope, t.Workspace
		if t.ExpiresAt != nil {
			id.Expires = *t.ExpiresAt
		}
		if err := a.store.TouchToken(ctx, t.ID, a.now()); err != nil {
			a.log.DebugContext(ctx, "record token use failed", "user", u.ID, "err", err)
		}
	case workspaceCredential:
		s, err := a.store.WorkspaceSession(ctx, hash[:])
		if err != nil {
			return Identity{}, notAuthenticated(err)
		}
		id = Identity{Caller: callerOf(s.User, hash, ""), CreatedAt: s.User.CreatedAt, Expires: s.Expires, host: s.Host, login: hex.EncodeToString(s.Session)}
		if err := a.store.TouchSession(ctx, s.Session, a.now()); err != nil {
			a.log.DebugContext(ctx, "recording the use of a session failed", "user", s.User.ID, "err", err)
		}
	default:
		u, expires, err := a.store.SessionUser(ctx, hash[:])
		if err != nil {
			return Identity{}, notAuthenticated(err)
		}
		if u.Disabled {
			return Identity{}, unauthenticated()
		}
		id = Identity{Caller: callerOf(u, hash, ""), CreatedAt: u.CreatedAt, Expires: expires}
		if err := a.store.TouchSession(ctx, hash[:], a.now()); err != nil {
			a.log.DebugContext(ctx, "recording the use of a session failed", "user", u.ID, "err", err)
		}
	}
	now := a.now()
	if !id.Expires.IsZero() && !id.Expires.After(now) {
		return Identity{}, unauthenticated()
	}
	a.cache.put(hash, id, now, seen)
	return id, nil
}

func notAuthenticated(err error) error {
	switch workspace.CodeOf(err) {
	case workspace.CodeNotFound, workspace.CodeUnauthenticated, workspace.CodeForbidden:
		return unauthenticated()
	}
	return fmt.Errorf("look up the credential: %w", err)
}

// Valid reports which of these sessions and tokens (Caller.Session) are valid, with
// one query. With an error nothing is known about them.
func (a *Auth) Valid(ctx context.Context, sessions []string) (map[string]bool, error) {
	hashes := make([][]byte, 0, len(sessions))
	for _, s := range sessions {
		if h, ok := decodeSession(s); ok {
			hashes = append(hashes, h[:])
		}
	}
	valid := make(map[string]bool, len(hashes))
	if len(hashes) == 0 {
		return valid, nil
	}
	held, err := a.store.ValidSessions(ctx, hashes)
	if err != nil {
		return nil, fmt.Errorf("look up the valid sessions: %w", err)
	}
	for _, h := range held {
		valid[hex.EncodeToString(h)] = true
	}
	return valid, nil
}
