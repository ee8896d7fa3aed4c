package terminal

import (
	"errors"
	"fmt"
)

// Exit codes of every command.
const (
	ExitOK       = 0
	ExitError    = 1
	ExitUsage    = 2
	ExitNotFound = 3 // no such workspace, archive, token or user
)

// ExitCode returns the exit code for err: that of an ExitCode method in its chain,
// otherwise ExitError.
func ExitCode(err error) int {
	var coded interface{ ExitCode() int }
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &coded):
		return coded.ExitCode()
	}
	return ExitError
}

type notFound struct{ message string }

func (e *notFound) Error() string { return e.message }

// ExitCode implements the method that ExitCode looks for.
func (e *notFound) ExitCode() int { return ExitNotFound }

// NotFound returns an error whose exit code is ExitNotFound.
func NotFound(format string, args ...any) error {
	return &notFound{fmt.Sprintf(format, args...)}
}
