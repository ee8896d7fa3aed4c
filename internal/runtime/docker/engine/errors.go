package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"codehub/internal/base/breaker"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// WrapError wraps an error of Docker. If Docker did not respond or was shutting
// down, the result also wraps runtime.ErrUnreachable; that includes a deadline, but
// not a cancellation by the caller. If Docker's disk is full it wraps
// runtime.ErrNoSpace, and for a transient cause it is runtime.ErrBusy.
func WrapError(ctx context.Context, what string, err error) error {
	if err == nil {
		return nil
	}
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	case ctx.Err() != nil || Unreachable(err):
		return fmt.Errorf("%s: %w: %w", what, runtime.ErrUnreachable, truncated(err))
	case isTransient(err):
		return &transientError{fmt.Errorf("%s: %w", what, truncated(err))}
	case NoSpace(err):
		return fmt.Errorf("%s: %w: %w", what, runtime.ErrNoSpace, truncated(err))
	}
	return fmt.Errorf("%s: %w", what, truncated(err))
}

// truncated limits the length of err's message, because Docker's messages may have
// any size.
func truncated(err error) error {
	if len(err.Error()) <= workspace.MaxMessage {
		return err
	}
	return truncatedError{err}
}

type truncatedError struct{ error }

func (e truncatedError) Error() string { return workspace.Cut(e.error.Error()) }
func (e truncatedError) Unwrap() error { return e.error }

// transientError is a transient refusal with Docker's message.
type transientError struct{ error }

func (e *transientError) Unwrap() error { return e.error }

func (e *transientError) Is(target error) bool { return target == runtime.ErrBusy }

// NoSpace reports whether Docker failed because its disk is full. There is no error
// code for that, only the kernel's text at the end of the message; in the middle it
// could be part of a name.
func NoSpace(err error) bool {
	if errdefs.IsInvalidArgument(err) || errdefs.IsNotFound(err) || errdefs.IsConflict(err) || errdefs.IsPermissionDenied(err) {
		return false
	}
	message := strings.TrimRight(strings.TrimSuffix(strings.TrimSpace(err.Error()), ": unknown"), " \n\"'.")
	words := syscall.ENOSPC.Error()
	return errors.Is(err, syscall.ENOSPC) || message == words || strings.HasSuffix(message, ": "+words)
}

// Unreachable reports whether Docker did not respond, or was shutting down.
func Unreachable(err error) bool {
	if client.IsErrConnectionFailed(err) || errors.Is(err, breaker.ErrOpen) {
		return true
	}
	var transport *url.Error
	var network net.Error
	switch {
	case errors.As(err, &transport), errors.As(err, &network),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE),
		errors.Is(err, context.DeadlineExceeded),
		errdefs.IsUnavailable(err):
		return true
	}
	// A stopping Docker or containerd returns an internal error that only its
	// message identifies.
	if errdefs.IsInternal(err) || errdefs.IsUnknown(err) || errdefs.IsCanceled(err) {
		for _, words := range []string{
			"transport is closing", "containerd.sock", "ttrpc: closed", "connection error: desc",
			"context canceled", "daemon is shutting down", "grpc: the client connection is closing",
		} {
			if strings.Contains(err.Error(), words) {
				return true
			}
		}
	}
	return false
}

// AddressTaken reports whether Docker refused an address because it is in use.
func AddressTaken(err error) bool {
	for _, words := range []string{"Address already in use", "address already in use", "requested address is not available"} {
		if strings.Contains(err.Error(), words) {
			return true
		}
	}
	return false
}

// ErrRecreated is the error for a name that another server takes whenever it is
// freed.
func ErrRecreated(what string) error {
	return &runtime.BusyError{Reason: what + " was created again after every removal"}
}

// ErrConcurrent is the error for a conflicting change by another server.
func ErrConcurrent(format string, args ...any) error {
	return &runtime.BusyError{Reason: fmt.Sprintf(format, args...)}
}

// transientMessages are parts of Docker's messages for transient errors, which have
// no code of their own. Lower case; Docker 20.10 and later.
var transientMessages = []string{
	// no free address in a network, or no free network
	"no available ipv4 addresses on this network's address pools",
	"no available addresses on this pool",
	"could not find an available, non-overlapping ipv4 address pool",
	"all predefined address pools have been fully subnetted",
	"pool overlaps with other one on this address space",
	"exchange full", // a bridge takes 1,024 containers
	// no free port (CODEHUB_PUBLISH)
	"all ports are allocated",
	"port is already allocated",
	// another process is about to release it
	"device or resource busy",
	"volume is in use",
	"is already in progress",
	"holding the xtables lock",
}

// isTransient reports whether Docker refused for a transient cause.
func isTransient(err error) bool {
	if errdefs.IsInvalidArgument(err) || errdefs.IsNotFound(err) {
		return false
	}
	message := strings.ToLower(err.Error())
	for _, words := range transientMessages {
		if strings.Contains(message, words) {
			return true
		}
	}
	return AddressTaken(err)
}

// MaxTries limits how often a call starts over after an error that a new attempt
// may avoid.
const MaxTries = 4
