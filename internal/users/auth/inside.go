package auth

import (
	"context"
	"fmt"

	"codehub/internal/workspace"
)

type insideKey struct{}

// FromInside returns the context of requests that come from a program inside a workspace, by
// its agent. Their sender is the workspace itself, whatever credential they have.
func FromInside(ctx context.Context, id workspace.ID) context.Context {
	return context.WithValue(ctx, insideKey{}, id)
}

// Inside returns the workspace that a request comes from; false for all other requests.
func Inside(ctx context.Context) (workspace.ID, bool) {
	id, ok := ctx.Value(insideKey{}).(workspace.ID)
	return id, ok
}

// insider returns the sender of the requests of a workspace: its owner, with no more rights
// than Caller.Inside has, and never as an administrator.
func (a *Auth) insider(ctx context.Context, id workspace.ID) (Identity, error) {
	owner, err := a.store.OwnerOf(ctx, id)
	switch {
	case workspace.CodeOf(err) == workspace.CodeNotFound:
		return Identity{}, workspace.Errorf(workspace.CodeForbidden, "The workspace or the account of its owner cannot be used any more.")
	case err != nil:
		return Identity{}, fmt.Errorf("look up the owner of a workspace: %w", err)
	}
	return Identity{CreatedAt: owner.CreatedAt, Caller: workspace.Caller{
		UserID: owner.ID, Username: owner.Username, Scope: workspace.ScopeWorkspaces, Only: id, Inside: true,
	}}, nil
}
