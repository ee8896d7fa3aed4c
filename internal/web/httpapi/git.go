package httpapi

import (
	"errors"
	"net/http"
	"net/url"

	"codehub/api"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

func (s *server) listGitConnections(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	list, err := s.cfg.Git.List(r.Context(), id.Caller)
	return reply(w, http.StatusOK, api.GitConnectionList{Connections: append([]api.GitConnection{}, list...)}, err)
}

func (s *server) disconnectGit(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	out, err := s.cfg.Git.Disconnect(r.Context(), id.Caller, r.PathValue("id"))
	return reply(w, http.StatusOK, out, err)
}

// gitCredential answers Git in a workspace. If there is no connection, the details have the address
// of the page that makes one.
func (s *server) gitCredential(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	c, err := s.cfg.Git.Credential(r.Context(), id.Caller, r.URL.Query().Get("host"), r.URL.Query().Get("rejected"))
	var e *workspace.Error
	if errors.As(err, &e) && e.Code == workspace.CodeNotFound {
		e.Details["url"] = s.base + "/settings/git/new?host=" + url.QueryEscape(e.Details["host"].(string))
	}
	return reply(w, http.StatusOK, c, err)
}
