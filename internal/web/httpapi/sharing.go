package httpapi

import (
	"cmp"
	"net/http"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/running/service"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

func (s *server) listShares(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	list, err := s.cfg.Store.Shares(r.Context(), id.Caller, pathID(r))
	return reply(w, http.StatusOK, api.ShareList{Shares: each(list, shareOf)}, err)
}

func shareOf(sh workspace.Share) api.Share {
	return api.Share{ID: sh.ID, User: sh.User, UserID: sh.UserID, Group: sh.Group, GroupID: sh.GroupID, Access: string(sh.Access), Git: sh.Git, CreatedAt: sh.CreatedAt.UTC()}
}

func (s *server) share(w http.ResponseWriter, r *http.Request, id auth.Identity, in api.NewShare) error {
	made, err := s.cfg.Store.Share(r.Context(), id.Caller, pathID(r), postgres.NewShare{User: in.User, Group: in.Group, Access: workspace.Access(in.Access), Git: in.Git})
	return reply(w, http.StatusOK, shareOf(made), err)
}

func (s *server) unshare(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	return replyNothing(w, s.cfg.Store.Unshare(r.Context(), id.Caller, pathID(r), r.PathValue("share")))
}

// listShared lists what others share with the caller.
func (s *server) listShared(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	list, err := s.cfg.Store.SharedWith(r.Context(), id.Caller)
	return reply(w, http.StatusOK, api.SharedList{Workspaces: each(list, s.sharedOf)}, err)
}

// getShared shows one workspace that another user shares with the caller.
func (s *server) getShared(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	sw, err := s.cfg.Store.SharedWorkspace(r.Context(), id.Caller, pathID(r))
	return reply(w, http.StatusOK, s.sharedOf(sw), err)
}

func (s *server) sharedOf(sw postgres.SharedWorkspace) api.SharedWorkspace {
	ws := sw.Workspace
	shown := api.SharedWorkspace{
		ID: string(ws.ID), Name: ws.Name, Description: ws.Description, Owner: sw.Owner, Access: string(sw.Access), State: string(lifecycle.StateOf(ws)),
		ImageRef: ws.ImageRef, Size: cmp.Or(ws.Size, workspace.DefaultSize), CreatedAt: ws.CreatedAt.UTC(), LastAccessAt: ws.LastAccessAt, Shares: each(sw.Shares, shareOf),
	}
	if sw.Access == workspace.AccessUse {
		shown.URL = service.URL(s.base, ws.ID)
	}
	return shown
}

// leave ends the caller's own access to a workspace of another user.
func (s *server) leave(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	groups, err := s.cfg.Store.Leave(r.Context(), id.Caller, pathID(r))
	return reply(w, http.StatusOK, api.LeftShare{Groups: append([]string{}, groups...)}, err)
}
