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

// ExitCode returns the exit code for err: that of a CodehubExitCode method in its
// chain, otherwise ExitError. The code of a program that codehub ran is not
// codehub's own, so an exec.ExitError does not count.
func ExitCode(err error) int {
	var coded interface{ CodehubExitCode() int }
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &coded):
		return coded.CodehubExitCode()
	}
	return ExitError
}

type notFound struct{ message string }

func (e *notFound) Error() string { return e.message }

// CodehubExitCode implements the method that ExitCode looks for.
func (e *notFound) CodehubExitCode() int { return ExitNotFound }

// NotFound returns an error whose exit code is ExitNotFound.
func NotFound(format string, args ...any) error {
	return &notFound{fmt.Sprintf(format, args...)}
}

type exit struct {
	code int
	err  error
}

func (e *exit) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exit) Unwrap() error { return e.err }

// CodehubExitCode implements the method that ExitCode looks for.
func (e *exit) CodehubExitCode() int { return e.code }

// Quiet reports whether err is an exit code alone, about which nothing is printed.
func Quiet(err error) bool {
	var e *exit
	return errors.As(err, &e) && e.err == nil
}

// Exit returns an error with that exit code, or nil for 0 without an error. If err is nil,
// the error is Quiet.
func Exit(code int, err error) error {
	if code == ExitOK && err == nil {
		return nil
	}
	return &exit{code, err}
}
