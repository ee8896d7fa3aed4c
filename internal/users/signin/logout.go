package signin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

const (
	// logoutAge is how old a logout token may be.
	logoutAge = 10 * time.Minute
	// logoutMemory is how long a logout token and the session that it names are remembered:
	// longer than the token and a login in progress are accepted.
	logoutMemory   = 30 * time.Minute
	maxLogoutToken = 16 << 10
	maxTokenID     = 255
)

// errLogoutToken: the logout token is not valid.
var errLogoutToken = errors.New("the logout token is not valid")

// Logout handles a back-channel logout: it verifies a provider's logout token and ends the
// sessions that it names. CodeInvalid if the token is not valid or was sent before;
// CodeNotFound for an unknown provider.
func (s *Service) Logout(ctx context.Context, id, token string) error {
	p, ok := s.provider(id)
	if !ok {
		return workspace.NotFound("identity provider")
	}
	l, err := p.verifyLogout(ctx, token)
	if errors.Is(err, errLogoutToken) {
		s.log.WarnContext(ctx, "logout of an identity provider refused", "provider", id, "err", err)
		return workspace.Errorf(workspace.CodeInvalid, "The logout token is not valid.")
	}
	if err != nil {
		return &workspace.Error{Code: workspace.CodeUnavailable, Message: "The logout token cannot be verified at the moment.", Err: err}
	}
	ended, first, err := s.cfg.Store.ProviderLogout(ctx, l)
	switch {
	case err != nil:
		return err
	case !first:
		s.log.WarnContext(ctx, "logout of an identity provider refused", "provider", id, "err", "the token was sent before")
		return workspace.Errorf(workspace.CodeInvalid, "The logout token was sent before.")
	}
	s.log.InfoContext(ctx, "logged out by an identity provider", "provider", id, "sessions", ended)
	return nil
}

func (p *provider) verifyLogout(ctx context.Context, token string) (l postgres.ProviderLogout, err error) {
	if token == "" || len(token) > maxLogoutToken {
		return l, errLogoutToken
	}
	d, err := p.discover(ctx)
	if err != nil {
		return l, err
	}
	t, err := d.verifier.VerifyLogout(p.with(ctx), token)
	switch {
	case err == nil:
	case ctx.Err() != nil || strings.Contains(err.Error(), errKeys.Error()): // go-oidc does not wrap it
		return l, errors.New(bounded(err.Error(), maxError))
	default:
		return l, fmt.Errorf("%w: %s", errLogoutToken, bounded(err.Error(), maxError))
	}
	now := p.now()
	switch {
	case len(t.TokenID) > maxTokenID || len(t.SessionID) > maxTokenID || len(t.Subject) > maxTokenID:
		return l, fmt.Errorf("%w: a value is too long", errLogoutToken)
	case t.IssuedAt.Before(now.Add(-logoutAge)) || t.IssuedAt.After(now.Add(skew)):
		return l, fmt.Errorf("%w: it was issued at another time", errLogoutToken)
	}
	return postgres.ProviderLogout{Issuer: p.Issuer, TokenID: t.TokenID, Subject: t.Subject, Session: t.SessionID, Expires: t.IssuedAt.Add(logoutMemory)}, nil
}

// ServeLogout serves a provider's request to its back-channel logout address.
func (s *Service) ServeLogout(w http.ResponseWriter, r *http.Request, id string) {
	w.Header().Set("Cache-Control", "no-store")
	err := s.Logout(r.Context(), id, r.PostFormValue("logout_token"))
	switch workspace.CodeOf(err) {
	case "":
		if err == nil {
			w.WriteHeader(http.StatusOK)
			return
		}
	case workspace.CodeInvalid:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"error":"invalid_request"}` + "\n"))
		return
	case workspace.CodeNotFound:
		w.WriteHeader(http.StatusNotFound)
		return
	}
	s.log.ErrorContext(r.Context(), "logout of an identity provider failed", "provider", id, "err", err)
	w.WriteHeader(http.StatusServiceUnavailable)
}
