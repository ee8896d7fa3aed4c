package admin

import (
	"context"
	"errors"

	"codehub/api"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// lostNodes lists the nodes that do not respond, with their workspaces. It is empty where
// workspaces run on one machine, and while the cluster does not respond.
func (s *Service) lostNodes(ctx context.Context, caller workspace.Caller) ([]api.LostNode, error) {
	out := []api.LostNode{}
	if s.cfg.Nodes == nil {
		return out, nil
	}
	found, err := s.cfg.Nodes.LostNodes(ctx)
	if err != nil {
		return out, nil //nolint:nilerr // the conditions show that the cluster does not respond
	}
	for _, n := range found {
		names, err := s.cfg.Store.NamesOf(ctx, caller, n.Workspaces)
		if err != nil {
			return nil, err
		}
		node := api.LostNode{Name: n.Name, Since: n.Since, Workspaces: []api.LostNodeWorkspace{}}
		for _, w := range names {
			node.Workspaces = append(node.Workspaces, api.LostNodeWorkspace{WorkspaceID: string(w.ID), Name: w.Name, Owner: w.Owner})
		}
		out = append(out, node)
	}
	return out, nil
}

// ConfirmDeadNode removes what a node that does not respond has of this installation, because
// the caller confirms that none of its processes runs any more. Its workspaces then start
// elsewhere. It is recorded in the audit log first.
func (s *Service) ConfirmDeadNode(ctx context.Context, caller workspace.Caller, name string) (api.DeadNode, error) {
	if _, err := s.cfg.Store.NamesOf(ctx, caller, nil); err != nil { // CodeForbidden
		return api.DeadNode{}, err
	}
	if s.cfg.Nodes == nil {
		return api.DeadNode{}, workspace.Errorf(workspace.CodeNotSupported, "Workspaces of this server run on one machine.")
	}
	if err := s.cfg.Store.RecordDeadNode(ctx, caller, name); err != nil {
		return api.DeadNode{}, err
	}
	removed, err := s.cfg.Nodes.NodeIsDead(ctx, name)
	switch {
	case errors.Is(err, runtime.ErrNotFound):
		return api.DeadNode{}, workspace.Errorf(workspace.CodeNotFound, "No node %s has workspaces and does not respond.", name)
	case errors.Is(err, runtime.ErrBusy) && removed == 0:
		return api.DeadNode{}, &workspace.Error{Code: workspace.CodeUnavailable, Message: "The node stopped responding only a moment ago, and may come back. Confirm it again in a few minutes.", Err: err}
	case err != nil:
		return api.DeadNode{}, &workspace.Error{Code: workspace.CodeUnavailable, Message: "The cluster did not remove everything. Try again later.", Err: err}
	}
	return api.DeadNode{Name: name, Removed: removed}, nil
}
