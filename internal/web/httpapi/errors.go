package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"

	"codehub/api"
	"codehub/internal/web/accesslog"
	"codehub/internal/workspace"
)

// Codes that occur only in HTTP responses.
const (
	codeMethodNotAllowed workspace.Code = "method_not_allowed"
	codeUnsupportedMedia workspace.Code = "unsupported_media_type"
	codeCrossOrigin      workspace.Code = "cross_origin"
	codeTooManyStreams   workspace.Code = "too_many_streams"
	codeRange            workspace.Code = "range_not_satisfiable"
	codePrecondition     workspace.Code = "precondition_failed"
	codeUpgradeRequired  workspace.Code = "upgrade_required"
	codeNoAgent          workspace.Code = "no_agent"
	codeStopped          workspace.Code = "workspace_stopped"
	codeNotStarted       workspace.Code = "command_not_started"
	codeFileExists       workspace.Code = "file_exists" // in a workspace's home
	codeDiskFull         workspace.Code = "disk_full"   // that of a workspace's home
	codeInternal         workspace.Code = "internal"
)

// statuses maps error codes to HTTP statuses.
var statuses = map[workspace.Code]int{
	workspace.CodeInvalid:             http.StatusBadRequest,
	workspace.CodeUnauthenticated:     http.StatusUnauthorized,
	workspace.CodeBadCredentials:      http.StatusUnauthorized,
	workspace.CodeLoginPending:        http.StatusConflict,
	workspace.CodePasskeyRequired:     http.StatusForbidden,
	workspace.CodeLockedOut:           http.StatusTooManyRequests,
	workspace.CodeTooManyAttempts:     http.StatusTooManyRequests,
	workspace.CodeCookieConflict:      http.StatusBadRequest,
	workspace.CodeForbidden:           http.StatusForbidden,
	workspace.CodeSuspended:           http.StatusForbidden,
	workspace.CodeImageNotAllowed:     http.StatusForbidden,
	workspace.CodeNotFound:            http.StatusNotFound,
	workspace.CodeArchiveNotFound:     http.StatusNotFound,
	workspace.CodeNameTaken:           http.StatusConflict,
	workspace.CodeKeyTaken:            http.StatusConflict,
	workspace.CodeOperationInProgress: http.StatusConflict,
	workspace.CodeRecoveryRequired:    http.StatusConflict,
	workspace.CodeNotInError:          http.StatusConflict,
	workspace.CodeNotCancellable:      http.StatusConflict,
	workspace.CodeNotDeleted:          http.StatusConflict,
	workspace.CodeNotOnHold:           http.StatusConflict,
	workspace.CodeNotRunning:          http.StatusConflict,
	workspace.CodeNotStopped:          http.StatusConflict,
	workspace.CodeGone:                http.StatusGone,
	workspace.CodeLimitExceeded:       http.StatusTooManyRequests,
	workspace.CodeQuotaExceeded:       http.StatusConflict,
	workspace.CodeConfirmRequired:     http.StatusConflict,
	workspace.CodeNotSupported:        http.StatusConflict,
	workspace.CodeNotLost:             http.StatusConflict,
	workspace.CodeLastAdmin:           http.StatusConflict,
	workspace.CodeOneAccount:          http.StatusConflict,
	workspace.CodeTooLarge:            http.StatusRequestEntityTooLarge,
	workspace.CodeUnavailable:         http.StatusServiceUnavailable,

	codeMethodNotAllowed: http.StatusMethodNotAllowed,
	codeUnsupportedMedia: http.StatusUnsupportedMediaType,
	codeCrossOrigin:      http.StatusForbidden,
	codeTooManyStreams:   http.StatusTooManyRequests,
	codeRange:            http.StatusRequestedRangeNotSatisfiable,
	codePrecondition:     http.StatusPreconditionFailed,
	codeUpgradeRequired:  http.StatusUpgradeRequired,
	codeNoAgent:          http.StatusConflict,
	codeStopped:          http.StatusConflict,
	codeNotStarted:       http.StatusUnprocessableEntity,
	codeFileExists:       http.StatusConflict,
	codeDiskFull:         http.StatusConflict,
	codeInternal:         http.StatusInternalServerError,
}

// Status returns the HTTP status of an error code.
func Status(err error) int {
	if s, ok := statuses[workspace.CodeOf(err)]; ok {
		return s
	}
	return http.StatusInternalServerError
}

// errStarted ends a handler after it has begun its response.
var errStarted = errors.New("the answer had begun")

// errTruncated is errStarted for an answer whose end its reader could not tell from the complete
// one: the connection is broken off.
var errTruncated = errors.New("the answer is truncated")

// fail answers with an error, and logs an internal one.
func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case errors.Is(err, errTruncated):
		s.log.InfoContext(r.Context(), "answer truncated", "request_id", accesslog.ID(r.Context()), "err", err)
		panic(http.ErrAbortHandler)
	case errors.Is(err, errStarted):
		s.log.InfoContext(r.Context(), "answer broken off", "request_id", accesslog.ID(r.Context()), "err", err)
		return
	case errors.Is(err, context.Canceled) && r.Context().Err() != nil:
		return // the client is gone
	}
	WriteError(w, r, s.log, err)
}

// WriteError answers a request with an error in the API's form. An error without a
// code is internal: it is logged, and the response has only the request's id.
func WriteError(w http.ResponseWriter, r *http.Request, log *slog.Logger, err error) {
	status := Status(err)
	body := api.Error{Code: string(codeInternal), Message: "Something went wrong on the server. Request " + accesslog.ID(r.Context()) + "."}
	var e *workspace.Error
	if errors.As(err, &e) && statuses[e.Code] != 0 {
		body = api.Error{Code: string(e.Code), Message: e.Message, Details: e.Details}
	}
	if status >= 500 {
		log.ErrorContext(r.Context(), "request failed", "request_id", accesslog.ID(r.Context()), "method", r.Method,
			"path", bounded(r.URL.Path), "status", status, "err", err)
	}
	switch status {
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", `Bearer realm="codehub"`)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		if secs, ok := body.Details["retry_after_seconds"].(int); ok {
			w.Header().Set("Retry-After", strconv.Itoa(secs))
		} else if status == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", "5")
		}
	}
	writeJSON(w, status, body)
}

func writeJSON(w http.ResponseWriter, status int, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, err = w.Write(append(b, '\n'))
	if err != nil {
		return errors.Join(errStarted, err)
	}
	return nil
}
