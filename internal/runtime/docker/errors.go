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

	"codehub/internal/runtime"
)

// failed wraps an error of the engine. One that says that the engine did not
// answer, or was going down while it did, also wraps runtime.ErrUnreachable; a
// call that its caller gave up does not, one that ran into a deadline does.
func failed(ctx context.Context, what string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(ctx.Err(), context.Canceled):
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	case ctx.Err() != nil || unreachable(err):
		return fmt.Errorf("%s: %w: %w", what, runtime.ErrUnreachable, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

func unreachable(err error) bool {
	if client.IsErrConnectionFailed(err) {
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
