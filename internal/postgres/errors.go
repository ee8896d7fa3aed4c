package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"codehub/internal/workspace"
)

// SQLSTATE codes that codehub handles.
const (
	serialization        = "40001"
	deadlock             = "40P01"
	lockNotAvailable     = "55P03"
	adminShutdown        = "57P01"
	crashShutdown        = "57P02"
	cannotConnectNow     = "57P03"
	idleTransactionEnded = "25P03"

	insufficientResources = "53" // class: disk or memory full, too many connections
)

// failed wraps an error of the database. It returns coded errors unchanged; transient faults
// become CodeUnavailable.
func failed(verb string, err error) error {
	var coded *workspace.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &coded):
		return err
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("%s: %w", verb, err)
	case transient(err):
		return &workspace.Error{Code: workspace.CodeUnavailable, Message: workspace.MsgDatabase, Err: fmt.Errorf("%s: %w", verb, err)}
	case refusedData(err):
		return &workspace.Error{Code: workspace.CodeInvalid, Message: "A value is too long, out of range or has characters that cannot be stored.", Err: fmt.Errorf("%s: %w", verb, err)}
	}
	return fmt.Errorf("%s: %w", verb, err)
}

func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// violates reports whether err is a violation of the named constraint.
func violates(err error, constraint string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.ConstraintName == constraint
}

// abortedForAnother reports whether the database aborted the transaction because of another one, so
// that a repetition may succeed.
func abortedForAnother(err error) bool {
	switch sqlState(err) {
	case serialization, deadlock:
		return true
	}
	return false
}

// transient reports whether a repetition may succeed without a change.
func transient(err error) bool {
	state := sqlState(err)
	if strings.HasPrefix(state, insufficientResources) {
		return true
	}
	switch state {
	case serialization, deadlock, lockNotAvailable, adminShutdown, crashShutdown, cannotConnectNow, idleTransactionEnded:
		return true
	case "":
		// No response at all: the database is out of reach.
		var connect *pgconn.ConnectError
		var broken net.Error // the connection broke within a request or response
		return errors.As(err, &connect) || errors.As(err, &broken) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
			errors.Is(err, net.ErrClosed) || pgconn.Timeout(err) || pgconn.SafeToRetry(err)
	}
	return false
}

// refusedData reports whether the database refused a value: class 22, data exceptions, or 23, a
// violated constraint.
func refusedData(err error) bool {
	s := sqlState(err)
	return strings.HasPrefix(s, "22") || strings.HasPrefix(s, "23")
}

func missing(err error) bool { return errors.Is(err, pgx.ErrNoRows) }

func notFound(what string) error { return workspace.NotFound(what) }
