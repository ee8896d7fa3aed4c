package httpapi

import (
	"net/http"

	"codehub/internal/users/auth"
)

func (s *server) listMembers(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	page, err := parsePage(r.URL.Query())
	if err != nil {
		return err
	}
	list, err := s.cfg.Admin.Members(r.Context(), id.Caller, r.PathValue("id"), page)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, list)
}

func (s *server) removeMember(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	left, err := s.cfg.Admin.RemoveMember(r.Context(), id.Caller, r.PathValue("id"), r.PathValue("user"))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, left)
}
