package httpapi

import (
	"net/http"

	"codehub/api"
	"codehub/internal/users/auth"
)

func (s *server) listGroups(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	page, err := parsePage(r.URL.Query())
	if err != nil {
		return err
	}
	list, err := s.cfg.Admin.Groups(r.Context(), id.Caller, page)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, list)
}

func (s *server) createGroup(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	var in api.CreateGroup
	if err := s.decode(w, r, &in); err != nil {
		return err
	}
	made, err := s.cfg.Admin.CreateGroup(r.Context(), id.Caller, in)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusCreated, made)
}

func (s *server) getGroup(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	g, err := s.cfg.Admin.Group(r.Context(), id.Caller, r.PathValue("id"))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, g)
}

func (s *server) patchGroup(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	var in api.PatchGroup
	if err := s.decode(w, r, &in); err != nil {
		return err
	}
	changed, err := s.cfg.Admin.PatchGroup(r.Context(), id.Caller, r.PathValue("id"), in)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, changed)
}

func (s *server) deleteGroup(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	if err := s.cfg.Store.DeleteGroup(r.Context(), id.Caller, r.PathValue("id")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

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

func (s *server) setMember(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	var in api.SetMember
	if err := s.decode(w, r, &in); err != nil {
		return err
	}
	m, err := s.cfg.Admin.SetMember(r.Context(), id.Caller, r.PathValue("id"), in)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, m)
}

func (s *server) removeMember(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	left, err := s.cfg.Admin.RemoveMember(r.Context(), id.Caller, r.PathValue("id"), r.PathValue("user"))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, left)
}
