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
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, status)
}

func (s *server) restorePlan(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	if s.cfg.Restore == nil {
		return noRestore()
	}
	q := r.URL.Query()
	page, err := parsePage(q)
	if err != nil {
		return err
	}
	restore := inbound.Lift(w, r) // it lists the whole bucket
	plan, err := s.cfg.Restore.RestorePlan(r.Context(), id.Caller, api.ApplyRestore{Only: q["only"], KeepDatabase: q["keep_database"]}, page)
	restore()
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, plan)
}

func (s *server) applyRestore(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	if s.cfg.Restore == nil {
		return noRestore()
	}
	var in api.ApplyRestore
	if err := s.decode(w, r, &in); err != nil {
		return err
	}
	restore := inbound.Lift(w, r) // it lists the whole bucket
	done, err := s.cfg.Restore.ApplyRestore(r.Context(), id.Caller, in)
	restore()
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, done)
}

func noRestore() error {
	return workspace.Errorf(workspace.CodeNotSupported, "This server cannot compare its database with the volumes.")
}

func (s *server) listAccounts(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	f := postgres.AccountFilter{Query: r.URL.Query().Get("q")}
	if !utf8.ValidString(f.Query) || utf8.RuneCountInString(f.Query) > maxQuery || strings.ContainsFunc(f.Query, unprintable) {
		return fieldError("q", "must be at most 255 characters without control characters.")
	}
	var err error
	if f.Page, err = parsePage(r.URL.Query()); err != nil {
		return err
	}
	list, err := s.cfg.Admin.Accounts(r.Context(), id.Caller, f)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, list)
}

func (s *server) patchAccount(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	var in api.PatchAccount
	if err := s.decode(w, r, &in); err != nil {
		return err
	}
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
func (s *server) changePassword(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	var in api.ChangePassword
	if err := s.decode(w, r, &in); err != nil {
		return err
	}
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
