package httpapi

import (
	"net/http"

	"codehub/internal/users/auth"
)

func (s *server) listMembers(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	list, err := s.cfg.Admin.Members(r.Context(), id.Caller, r.PathValue("id"), pageOf(r))
	return reply(w, http.StatusOK, list, err)
}

func (s *server) removeMember(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	left, err := s.cfg.Admin.RemoveMember(r.Context(), id.Caller, r.PathValue("id"), r.PathValue("user"))
	return reply(w, http.StatusOK, left, err)
}
