package server

import (
	"log/slog"
	"net/http"

	"codehub/internal/users/auth"
	"codehub/internal/web/httpapi"
	"codehub/internal/workspace"
)

// knows returns a function that reports whether a request has a session or token.
func knows(a *auth.Auth) func(*http.Request) bool {
	return func(r *http.Request) bool {
		_, err := a.Identify(r, true)
		return err == nil || workspace.CodeOf(err) == workspace.CodeForbidden // a token with limits
	}
}

// refuseStream responds to requests above the limit of a connection without a login.
func refuseStream(log *slog.Logger) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		e := workspace.Errorf(workspace.CodeTooManyAttempts, "Too many requests without a login are open on this connection. Try again.")
		e.Details = map[string]any{"retry_after_seconds": 1}
		httpapi.WriteError(w, r, log, e)
	}
}
