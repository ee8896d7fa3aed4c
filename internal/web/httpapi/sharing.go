package httpapi

import (
	"net/http"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/running/service"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

func (s *server) listShares(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	wsID, err := pathID(r)
	if err != nil {
		return err
	}
	list, err := s.cfg.Store.Shares(r.Context(), id.Caller, wsID)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, api.ShareList{Shares: sharesOf(list)})
}

func sharesOf(list []workspace.Share) []api.Share {
	out := make([]api.Share, 0, len(list))
	for _, sh := range list {
		out = append(out, shareOf(sh))
	}
	return out
}

func shareOf(sh workspace.Share) api.Share {
	return api.Share{ID: sh.ID, User: sh.User, UserID: sh.UserID, Group: sh.Group, GroupID: sh.GroupID, Access: string(sh.Access), CreatedAt: sh.CreatedAt.UTC()}
}

func (s *server) share(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	wsID, err := pathID(r)
	if err != nil {
		return err
	}
	var in api.NewShare
	if err := s.decode(w, r, &in); err != nil {
		return err
	}
	made, err := s.cfg.Store.Share(r.Context(), id.Caller, wsID, postgres.NewShare{User: in.User, Group: in.Group, Access: workspace.Access(in.Access)})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, shareOf(made))
}

func (s *server) unshare(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	wsID, err := pathID(r)
	if err != nil {
		return err
	}
	if err := s.cfg.Store.Unshare(r.Context(), id.Caller, wsID, r.PathValue("share")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// listShared lists what others share with the caller.
func (s *server) listShared(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	list, err := s.cfg.Store.SharedWith(r.Context(), id.Caller)
	if err != nil {
		return err
	}
	out := api.SharedList{Workspaces: make([]api.SharedWorkspace, 0, len(list))}
	for _, sw := range list {
		out.Workspaces = append(out.Workspaces, s.sharedOf(sw))
	}
	return writeJSON(w, http.StatusOK, out)
}

// getShared shows one workspace that another user shares with the caller.
func (s *server) getShared(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	wsID, err := pathID(r)
	if err != nil {
		return err
	}
	sw, err := s.cfg.Store.SharedWorkspace(r.Context(), id.Caller, wsID)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, s.sharedOf(sw))
}

func (s *server) sharedOf(sw postgres.SharedWorkspace) api.SharedWorkspace {
	ws := sw.Workspace
	size := ws.Size
	if size == "" {
		size = workspace.DefaultSize
	}
	shown := api.SharedWorkspace{
		ID: string(ws.ID), Name: ws.Name, Description: ws.Description, Owner: sw.Owner, Access: string(sw.Access), State: string(lifecycle.StateOf(ws)),
		ImageRef: ws.ImageRef, Size: size, CreatedAt: ws.CreatedAt.UTC(), LastAccessAt: ws.LastAccessAt, Shares: sharesOf(sw.Shares),
	}
	if sw.Access == workspace.AccessUse {
		shown.URL = service.URL(s.base, ws.ID)
	}
	return shown
}

// leave ends the caller's own access to a workspace of another user.
func (s *server) leave(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	wsID, err := pathID(r)
	if err != nil {
		return err
	}
	groups, err := s.cfg.Store.Leave(r.Context(), id.Caller, wsID)
	if err != nil {
		return err
	}
	if groups == nil {
		groups = []string{}
	}
	return writeJSON(w, http.StatusOK, api.LeftShare{Groups: groups})
}
