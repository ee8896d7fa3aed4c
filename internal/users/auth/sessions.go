package auth

import (
	"context"
	"encoding/hex"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// OpenSession is a session for display to its user.
type OpenSession struct {
	postgres.UserSession
	Current bool // the caller's own
}

// Sessions lists the caller's sessions, the most recently used first, and returns the
// cursor of the next page, "" at the end.
func (a *Auth) Sessions(ctx context.Context, caller workspace.Caller, page postgres.Page) (list []OpenSession, next string, err error) {
	rows, next, err := a.store.UserSessions(ctx, caller, page)
	if err != nil {
		return nil, "", err
	}
	list = make([]OpenSession, len(rows))
	for i, s := range rows {
		list[i] = OpenSession{UserSession: s, Current: hex.EncodeToString(s.Hash) == caller.Session}
	}
	return list, next, nil
}

// EndSession ends one of the caller's sessions and its open connections. Errors:
// CodeNotFound, and CodeForbidden for another user's session.
func (a *Auth) EndSession(ctx context.Context, caller workspace.Caller, id string) error {
	if err := a.store.EndSession(ctx, caller, id); err != nil {
		return err
	}
	a.Invalidate(caller.UserID, "")
	return nil
}

// EndOtherSessions ends all of the caller's sessions except the current one and
// returns their number. API tokens are kept.
func (a *Auth) EndOtherSessions(ctx context.Context, caller workspace.Caller) (int64, error) {
	ended, err := a.store.EndOtherSessions(ctx, caller)
	if err != nil {
		return 0, err
	}
	a.Invalidate(caller.UserID, "")
	return ended, nil
}
