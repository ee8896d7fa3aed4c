package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"codehub/internal/runtime"
)

// wrapError wraps an error of Kubernetes. If it did not respond, the result also wraps
// runtime.ErrUnreachable; that includes a deadline, but not a cancellation by the caller. A
// transient refusal, such as too many requests, is runtime.ErrBusy.
func wrapError(ctx context.Context, what string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(ctx.Err(), context.Canceled):
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	case ctx.Err() != nil || unreachable(err):
		return fmt.Errorf("%s: %w: %w", what, errAway, err)
	case quotaError(err) != nil:
		return fmt.Errorf("%s: %w", what, quotaError(err))
	case apierrors.IsTooManyRequests(err), apierrors.IsConflict(err):
		return &transientError{fmt.Errorf("%s: %w", what, err)}
	}
	return fmt.Errorf("%s: %w", what, err)
}

// errAway is runtime.ErrUnreachable, with the name of this runtime.
var errAway error = awayError{}

type awayError struct{}

func (awayError) Error() string { return "no response from Kubernetes" }

func (awayError) Is(target error) bool { return target == runtime.ErrUnreachable }

// transientError is a transient refusal with the cluster's message.
type transientError struct{ error }

func (e *transientError) Unwrap() error { return e.error }

func (e *transientError) Is(target error) bool { return target == runtime.ErrBusy }

func unreachable(err error) bool {
	var transport *url.Error
	var network net.Error
	return errors.As(err, &transport) || errors.As(err, &network) || errors.Is(err, context.DeadlineExceeded) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsInternalError(err)
}

// errUsed is the refusal of a call on a home that a Pod uses.
func errUsed(volume, pod string) error {
	return &runtime.BusyError{Reason: fmt.Sprintf("volume %s is in use by Pod %s", volume, pod), Container: pod}
}
