package auth

import (
	"context"
	"encoding/hex"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// OpenSession is a session as its user sees it.
type OpenSession struct {
	postgres.UserSession
	Current bool // the caller came with it
}

// Sessions lists the caller's sessions, the most recently used first.
func (a *Auth) Sessions(ctx context.Context, caller workspace.Caller) ([]OpenSession, error) {
	rows, err := a.store.UserSessions(ctx, caller)
	if err != nil {
		return nil, err
	}
	list := make([]OpenSession, len(rows))
	for i, s := range rows {
		list[i] = OpenSession{UserSession: s, Current: hex.EncodeToString(s.Hash) == caller.Session}
	}
	return list, nil
}

// EndSession ends one of the caller's sessions, and the connections that it has
// open. CodeNotFound; CodeForbidden for a session of another user.
func (a *Auth) EndSession(ctx context.Context, caller workspace.Caller, id string) error {
	if err := a.store.EndSession(ctx, caller, id); err != nil {
		return err
	}
	a.Invalidate(caller.UserID, "")
	return nil
}

// EndOtherSessions ends all of the caller's sessions except the one that the
// caller came with, and returns how many there were. API tokens stay.
func (a *Auth) EndOtherSessions(ctx context.Context, caller workspace.Caller) (int64, error) {
	ended, err := a.store.EndOtherSessions(ctx, caller)
	if err != nil {
		return 0, err
	}
	a.Invalidate(caller.UserID, "")
	return ended, nil
}
