package httpapi

import (
	"net/http"

	"codehub/api"
	"codehub/internal/users/auth"
)

func (s *server) getDotfiles(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	d, err := s.cfg.Store.Dotfiles(r.Context(), id.Caller)
	return reply(w, http.StatusOK, d, err)
}

func (s *server) setDotfiles(w http.ResponseWriter, r *http.Request, id auth.Identity, in api.Dotfiles) error {
	d, err := s.cfg.Store.SetDotfiles(r.Context(), id.Caller, in)
	return reply(w, http.StatusOK, d, err)
}

func (s *server) removeDotfiles(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	return replyNothing(w, s.cfg.Store.RemoveDotfiles(r.Context(), id.Caller))
}
