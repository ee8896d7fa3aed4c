package httpapi

import (
	"net/http"
	"slices"
	"time"
	"unicode/utf8"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/users/auth"
	"codehub/internal/web/accesslog"
	"codehub/internal/workspace"
)

func (s *server) login(w http.ResponseWriter, r *http.Request, _ auth.Identity, in api.Login) error {
	session, err := s.cfg.Auth.Login(r.Context(), in.Username, in.Password, auth.ClientOf(r))
	if err != nil {
		return err
	}
	accesslog.SetUser(r.Context(), session.User.ID)
	http.SetCookie(w, s.cfg.Auth.Cookie(session))
	return writeJSON(w, http.StatusOK, userView(session.Caller, session.User.CreatedAt))
}

// beginDevice begins a login of a program, which a user allows by typing in a code.
func (s *server) beginDevice(w http.ResponseWriter, r *http.Request, _ auth.Identity, in api.BeginDevice) error {
	if in.TokenLifetime < 0 {
		return fieldError("token_lifetime_seconds", "must not be negative.")
	}
	lasts := min(time.Duration(in.TokenLifetime), auth.MaxProgramLogin/time.Second) * time.Second
	d, err := s.cfg.Auth.BeginDevice(r.Context(), in.Name, in.Username, lasts, auth.ClientOf(r))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusCreated, api.DeviceLogin{
		DeviceCode: d.DeviceCode, UserCode: d.UserCode, URL: s.base + "/device", ExpiresAt: d.Expires, Interval: int(d.Interval / time.Second),
	})
}

// redeemLogin gives a program its API token, after a user has allowed that.
func (s *server) redeemLogin(w http.ResponseWriter, r *http.Request, _ auth.Identity, in api.RedeemLogin) error {
	t, secret, caller, err := s.cfg.Auth.RedeemLogin(r.Context(), in.Code, in.Verifier, in.ExpiresAt, auth.ClientOf(r))
	if err != nil {
		return err
	}
	accesslog.SetUser(r.Context(), caller.UserID)
	out := api.RedeemedLogin{Username: caller.Username, Token: tokenView(t)}
	out.Token.Token = secret
	return writeJSON(w, http.StatusCreated, out)
}

func (s *server) logout(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	if err := s.cfg.Auth.Logout(r.Context(), id.Caller); err != nil {
		return err
	}
	http.SetCookie(w, s.cfg.Auth.ClearCookie())
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *server) session(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	out := api.Session{User: userView(id.Caller, id.CreatedAt), Kind: api.SessionCookie, URL: s.base}
	switch {
	case id.Caller.Inside:
		ws, err := s.cfg.Store.Workspace(r.Context(), id.Caller, id.Caller.Only)
		if err != nil {
			return err
		}
		out.Kind, out.Workspace = api.SessionWorkspace, &api.SessionOf{ID: string(ws.ID), Name: ws.Name}
	case id.Caller.Token != "":
		out.Kind = api.SessionToken
	}
	if !id.Expires.IsZero() {
		t := id.Expires.UTC()
		out.ExpiresAt = &t
	}
	return writeJSON(w, http.StatusOK, out)
}

func (s *server) me(w http.ResponseWriter, _ *http.Request, id auth.Identity) error {
	return writeJSON(w, http.StatusOK, userView(id.Caller, id.CreatedAt))
}

func userView(c workspace.Caller, created time.Time) api.User {
	return api.User{ID: c.UserID, Username: c.Username, Admin: c.Admin, CreatedAt: created.UTC()}
}

func (s *server) listSessions(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	list, next, err := s.cfg.Auth.Sessions(r.Context(), id.Caller, pageOf(r))
	return reply(w, http.StatusOK, api.SessionList{Sessions: each(list, func(o auth.OpenSession) api.OpenSession {
		return api.OpenSession{
			ID: o.ID, UserAgent: o.UserAgent, Address: o.Address, Current: o.Current,
			CreatedAt: o.CreatedAt.UTC(), ExpiresAt: o.ExpiresAt.UTC(), LastUsedAt: o.LastUsedAt,
		}
	}), NextCursor: next}, err)
}

func (s *server) endOtherSessions(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	ended, err := s.cfg.Auth.EndOtherSessions(r.Context(), id.Caller)
	return reply(w, http.StatusOK, api.SessionsEnded{Ended: ended}, err)
}

const maxTokenName = 100 // characters

func (s *server) createToken(w http.ResponseWriter, r *http.Request, id auth.Identity, in api.CreateToken) error {
	name, err := checkName(in.Name)
	if err != nil {
		return err
	}
	if utf8.RuneCountInString(name) > maxTokenName {
		return fieldError("name", "is too long: at most 100 characters.")
	}
	limits := auth.TokenLimits{Workspace: workspace.ID(in.WorkspaceID)}
	if in.Scope != "" {
		var ok bool
		if limits.Scope, ok = workspace.ParseScope(in.Scope); !ok {
			return fieldError("scope", "must be read, workspaces or admin.")
		}
	}
	t, secret, err := s.cfg.Auth.CreateToken(r.Context(), id, name, in.ExpiresAt, limits)
	if err != nil {
		return err
	}
	out := tokenView(t)
	out.Token = secret
	return writeJSON(w, http.StatusCreated, out)
}

func (s *server) listTokens(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	tokens, next, err := s.cfg.Auth.Tokens(r.Context(), id.Caller, pageOf(r))
	return reply(w, http.StatusOK, api.TokenList{Tokens: each(tokens, tokenView), NextCursor: next}, err)
}

func tokenView(t postgres.Token) api.Token {
	out := api.Token{ID: t.ID, Name: t.Name, CreatedAt: t.CreatedAt.UTC(), ExpiresAt: t.ExpiresAt, LastUsedAt: t.LastUsedAt, Scope: string(t.Scope)}
	if t.Workspace != "" {
		id := string(t.Workspace)
		out.WorkspaceID = &id
	}
	return out
}

func (s *server) listIdentities(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	list, err := s.cfg.Auth.Identities(r.Context(), id.Caller)
	return reply(w, http.StatusOK, api.IdentityList{Identities: each(list, func(l postgres.Identity) api.Identity {
		return api.Identity{
			ID: l.ID, Issuer: l.Issuer, Subject: l.Subject, Username: l.Username, Active: l.Active,
			CreatedAt: l.CreatedAt.UTC(), CheckedAt: l.CheckedAt.UTC(),
		}
	})}, err)
}

func (s *server) listPasskeys(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	have, err := s.cfg.Auth.Passkeys(r.Context(), id.Caller)
	return reply(w, http.StatusOK, api.PasskeyList{Passkeys: each(have.List, func(k postgres.Passkey) api.Passkey {
		return api.Passkey{ID: k.ID, Name: k.Name, Usable: !have.Elsewhere[k.ID], CreatedAt: k.CreatedAt.UTC(), LastUsedAt: k.LastUsedAt, ClonedAt: k.ClonedAt}
	}), RecoveryCodes: have.Codes}, err)
}

func (s *server) renamePasskey(w http.ResponseWriter, r *http.Request, id auth.Identity, in api.RenamePasskey) error {
	return replyNothing(w, s.cfg.Auth.RenamePasskey(r.Context(), id.Caller, r.PathValue("id"), in.Name))
}

func (s *server) unlinkIdentity(w http.ResponseWriter, r *http.Request, id auth.Identity, in api.UnlinkIdentity) error {
	if in.Current == "" {
		return fieldError("current", "is required.")
	}
	identity := r.PathValue("id")
	list, err := s.cfg.Auth.Identities(r.Context(), id.Caller)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(list, func(l postgres.Identity) bool { return l.ID == identity }) {
		return workspace.NotFound("identity")
	}
	proof, err := s.cfg.Auth.VerifyPassword(r.Context(), id.Caller, in.Current)
	if err != nil {
		return wrongPassword(err)
	}
	return replyNothing(w, s.cfg.Auth.UnlinkIdentity(r.Context(), id.Caller, proof, identity))
}
