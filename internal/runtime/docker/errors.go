package docker

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

	"codehub/internal/breaker"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// failed wraps an error of the engine. One that says that the engine did not
// answer, or was going down while it did, also wraps runtime.ErrUnreachable; a
// call that its caller gave up does not, one that ran into a deadline does.
// One that says that its disk is full also wraps runtime.ErrNoSpace, and one for
// a cause that passes by itself is runtime.ErrBusy.
func failed(ctx context.Context, what string, err error) error {
	if err == nil {
		return nil
	}
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	case ctx.Err() != nil || unreachable(err):
		return fmt.Errorf("%s: %w: %w", what, runtime.ErrUnreachable, shortened(err))
	case passes(err):
		return &passingError{fmt.Errorf("%s: %w", what, shortened(err))}
	case noSpace(err):
		return fmt.Errorf("%s: %w: %w", what, runtime.ErrNoSpace, shortened(err))
	}
	return fmt.Errorf("%s: %w", what, shortened(err))
}

// shortened is err with its message cut: Docker's answers may have any size.
func shortened(err error) error {
	if len(err.Error()) <= workspace.MaxMessage {
		return err
	}
	return longError{err}
}

type longError struct{ error }

func (e longError) Error() string { return workspace.Cut(e.error.Error()) }
func (e longError) Unwrap() error { return e.error }

// passingError is a refusal that passes by itself, in Docker's own words.
type passingError struct{ error }

func (e *passingError) Unwrap() error { return e.error }

func (e *passingError) Is(target error) bool { return target == runtime.ErrBusy }

// noSpace reports whether the engine failed because its disk is full. It has no
// code for that, only the kernel's words at the end of its own; in the middle
// they may be a name that somebody has chosen.
func noSpace(err error) bool {
	if errdefs.IsInvalidArgument(err) || errdefs.IsNotFound(err) || errdefs.IsConflict(err) || errdefs.IsPermissionDenied(err) {
		return false
	}
	said := strings.TrimRight(strings.TrimSuffix(strings.TrimSpace(err.Error()), ": unknown"), " \n\"'.")
	words := syscall.ENOSPC.Error()
	return errors.Is(err, syscall.ENOSPC) || said == words || strings.HasSuffix(said, ": "+words)
}

// fillsDisk reports whether a pull failed because the engine's disk is full. A
// registry's own words say nothing of that.
func fillsDisk(err error) bool {
	own := false
	for _, begins := range []string{"write /", "mkdir /", "open /", "failed to register layer: ", "failed to extract layer "} {
		own = own || strings.HasPrefix(err.Error(), begins)
	}
	return own && noSpace(err)
}

func unreachable(err error) bool {
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
	// An engine that is stopping, or whose containerd is, answers with an
	// internal error; nothing but its words tells it apart.
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
