package httpapi

import (
	"net/http"

	"codehub/api"
	"codehub/internal/users/auth"
)

func (s *server) listSecrets(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	list, err := s.cfg.Secrets.List(r.Context(), id.Caller)
	return reply(w, http.StatusOK, list, err)
}

func (s *server) createGroupSecret(w http.ResponseWriter, r *http.Request, id auth.Identity, in api.CreateSecret) error {
	made, err := s.cfg.Secrets.CreateGroup(r.Context(), id.Caller, r.PathValue("id"), in)
	return reply(w, http.StatusCreated, made, err)
}
