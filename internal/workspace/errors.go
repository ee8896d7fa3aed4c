package workspace

import (
	"errors"
	"fmt"
)

// Code names an error for machines; it is the "error" of the API's answers.
type Code string

const (
	CodeInvalid             Code = "invalid_request"
	CodeUnauthenticated     Code = "unauthenticated"
	CodeBadCredentials      Code = "bad_credentials"
	CodeLoginPending        Code = "login_pending"
	CodePasskeyRequired     Code = "passkey_required"
	CodeLockedOut           Code = "locked_out"
	CodeTooManyAttempts     Code = "too_many_attempts"
	CodeCookieConflict      Code = "cookie_conflict"
	CodeForbidden           Code = "forbidden"
	CodeSuspended           Code = "suspended"
	CodeNotFound            Code = "not_found"
	CodeArchiveNotFound     Code = "archive_not_found"
	CodeNameTaken           Code = "name_taken"
	CodeKeyTaken            Code = "key_taken"
	CodeOperationInProgress Code = "operation_in_progress"
	CodeRecoveryRequired    Code = "recovery_required"
	CodeNotInError          Code = "not_in_error"
	CodeNotLost             Code = "not_lost"
	CodeNotCancellable      Code = "not_cancellable"
	CodeNotDeleted          Code = "not_deleted"
	CodeNotRunning          Code = "not_running"
	CodeNotStopped          Code = "not_stopped"
	CodeNotOnHold           Code = "not_on_hold"
	CodeGone                Code = "gone"
	CodeLimitExceeded       Code = "workspace_limit_exceeded"
	CodeQuotaExceeded       Code = "quota_exceeded"
	CodeConfirmRequired     Code = "confirmation_required"
	CodeNotSupported        Code = "not_supported"
	CodeImageNotAllowed     Code = "image_not_allowed"
	CodeLastAdmin           Code = "last_admin"
	CodeOneAccount          Code = "one_account"
	CodeTooLarge            Code = "too_large"
	CodeUnavailable         Code = "unavailable"
)

// MsgDatabase is the message of errors of a database that does not respond.
const MsgDatabase = "The database is not responding. Try again in a moment."

// Error is an error with a code for machines and a message for people. What
// it wraps is for the log alone.
type Error struct {
	Code    Code
	Message string
	Details map[string]any
	Err     error
}

func (e *Error) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s: %s: %v", e.Code, e.Message, e.Err)
	}
	return fmt.Sprintf("%s: %s", e.Code, e.Message)
}

func (e *Error) Unwrap() error { return e.Err }

// Errorf makes a coded error with a message for people.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// NotFound is the CodeNotFound error for a kind of thing, such as "workspace".
func NotFound(what string) *Error { return Errorf(CodeNotFound, "There is no such %s.", what) }

// CodeOf returns the code of the first coded error in err's chain, or "".
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}
