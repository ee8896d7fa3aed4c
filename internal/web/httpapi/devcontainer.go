package httpapi

import (
	"context"
	"net/http"

	"codehub/api"
	"codehub/internal/users/auth"
)

// devcontainers lists the files by which the repositories of a running workspace describe their
// environment. It neither counts as activity nor starts a workspace.
func (s *server) devcontainers(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	ctx, cancel := context.WithTimeout(r.Context(), usageTimeout)
	defer cancel()
	list, err := s.cfg.Devcontainers.List(ctx, id.Caller, pathID(r))
	return reply(w, http.StatusOK, list, err)
}

func (s *server) useDevcontainer(w http.ResponseWriter, r *http.Request, id auth.Identity, in api.UseDevcontainer) error {
	ctx, cancel := context.WithTimeout(r.Context(), usageTimeout)
	defer cancel()
	ws, builds, err := s.cfg.Devcontainers.Use(ctx, id.Caller, pathID(r), in.File, in.Digest)
	status := http.StatusOK
	if builds {
		status = http.StatusAccepted
	}
	return s.answer(w, status, ws, err)
}

func (s *server) stopDevcontainer(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	ws, err := s.cfg.Devcontainers.Stop(r.Context(), id.Caller, pathID(r))
	return s.answer(w, http.StatusOK, ws, err)
}

func (s *server) devcontainerBuild(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	b, err := s.cfg.Devcontainers.Build(r.Context(), id.Caller, pathID(r))
	return reply(w, http.StatusOK, b, err)
}

func (s *server) cancelDevcontainerBuild(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	b, err := s.cfg.Devcontainers.CancelBuild(r.Context(), id.Caller, pathID(r))
	return reply(w, http.StatusAccepted, b, err)
}
