package transfer

import (
	"context"
	"errors"
	"fmt"
)

// The kinds of failure that callers tell apart with errors.Is.
var (
	// ErrNotFound: the bucket responded, and it has no such object.
	ErrNotFound = errors.New("object not found")
	// ErrUnavailable: the bucket did not respond properly: it is down, full,
	// removed, or denies access. Nothing can be concluded about its objects.
	ErrUnavailable = errors.New("bucket is unavailable")
	// ErrTooLarge: an object is larger than its upload allows.
	ErrTooLarge = errors.New("object is too large")
)

// unavailable wraps an error of the bucket, unless the caller's context ended.
func unavailable(ctx context.Context, doing string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", doing, context.Cause(ctx))
	}
	return fmt.Errorf("%s: %w: %w", doing, ErrUnavailable, err)
}
