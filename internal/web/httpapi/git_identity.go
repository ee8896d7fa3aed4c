package httpapi

import (
	"net/http"

	"codehub/api"
	"codehub/internal/users/auth"
)

func (s *server) gitIdentity(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	g, err := s.cfg.GitIdentities.Get(r.Context(), id.Caller)
	return reply(w, http.StatusOK, g, err)
}

func (s *server) setGitIdentity(w http.ResponseWriter, r *http.Request, id auth.Identity, in api.SetGitIdentity) error {
	g, err := s.cfg.GitIdentities.Set(r.Context(), id.Caller, in)
	return reply(w, http.StatusOK, g, err)
}

func (s *server) newGitKey(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	g, err := s.cfg.GitIdentities.NewKey(r.Context(), id.Caller)
	return reply(w, http.StatusCreated, g, err)
}

// signForGit signs for a program in the workspace of the request.
func (s *server) signForGit(w http.ResponseWriter, r *http.Request, id auth.Identity, in api.GitSignatureRequest) error {
	signed, err := s.cfg.GitIdentities.Sign(r.Context(), id.Caller, in)
	return reply(w, http.StatusOK, signed, err)
}
