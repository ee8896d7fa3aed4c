package httpapi

import (
	"net/http"
	"strings"
	"unicode/utf8"

	"codehub/api"
	"codehub/internal/gateway/inbound"
	"codehub/internal/postgres"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

func (s *server) adminStatus(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	status, err := s.cfg.Admin.AdminStatus(r.Context(), id.Caller)
	return reply(w, http.StatusOK, status, err)
}

func (s *server) settings(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	settings, err := s.cfg.Admin.Settings(r.Context(), id.Caller)
	return reply(w, http.StatusOK, settings, err)
}

func (s *server) restorePlan(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	if s.cfg.Restore == nil {
		return noRestore()
	}
	q := r.URL.Query()
	restore := inbound.Lift(w, r) // it lists the whole bucket
	plan, err := s.cfg.Restore.RestorePlan(r.Context(), id.Caller, api.ApplyRestore{Only: q["only"], KeepDatabase: q["keep_database"]}, pageOf(r))
	restore()
	return reply(w, http.StatusOK, plan, err)
}

func (s *server) applyRestore(w http.ResponseWriter, r *http.Request, id auth.Identity, in api.ApplyRestore) error {
	if s.cfg.Restore == nil {
		return noRestore()
	}
	restore := inbound.Lift(w, r) // it lists the whole bucket
	done, err := s.cfg.Restore.ApplyRestore(r.Context(), id.Caller, in)
	restore()
	return reply(w, http.StatusOK, done, err)
}

func noRestore() error {
	return workspace.Errorf(workspace.CodeNotSupported, "This server cannot compare its database with the volumes.")
}

func (s *server) listAccounts(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	f := postgres.AccountFilter{Query: r.URL.Query().Get("q"), Page: pageOf(r)}
	if !utf8.ValidString(f.Query) || utf8.RuneCountInString(f.Query) > maxQuery || strings.ContainsFunc(f.Query, workspace.Unprintable) {
		return fieldError("q", "must be at most 255 characters without control characters.")
	}
	list, err := s.cfg.Store.Accounts(r.Context(), id.Caller, f)
	return reply(w, http.StatusOK, list, err)
}

func (s *server) patchAccount(w http.ResponseWriter, r *http.Request, id auth.Identity, in api.PatchAccount) error {
	user := r.PathValue("id")
	changed, err := s.cfg.Admin.PatchAccount(r.Context(), id.Caller, user, in)
	if err != nil {
		return err
	}
	// The database notifies every server; this one need not wait for that.
	s.cfg.Auth.Invalidate(user, "")
	return writeJSON(w, http.StatusOK, changed)
}

// changePassword answers 204. A browser gets a new session with it.
func (s *server) changePassword(w http.ResponseWriter, r *http.Request, id auth.Identity, in api.ChangePassword) error {
	switch {
	case in.Current == "":
		return fieldError("current", "is required.")
	case in.New == "":
		return fieldError("new", "is required.")
	}
	session, err := s.cfg.Auth.ChangePassword(r.Context(), id.Caller, in.Current, in.New, auth.ClientOf(r))
	if err != nil {
		return wrongPassword(err)
	}
	if session.ID != "" {
		http.SetCookie(w, s.cfg.Auth.Cookie(session))
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// wrongPassword is the error of a check of the caller's password: not 401, since the caller
// stays logged in.
func wrongPassword(err error) error {
	if workspace.CodeOf(err) == workspace.CodeBadCredentials {
		return workspace.Errorf(workspace.CodeForbidden, "The current password is incorrect.")
	}
	return err
}
