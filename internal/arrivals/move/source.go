package move

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"codehub/client"
)

// read calls the source, and repeats the call for a while: a source that restarts must not
// end a long move.
func read[T any](ctx context.Context, r *run, call func(context.Context) (T, error)) (T, error) {
	began := time.Now()
	for failures := 1; ; failures++ {
		out, err := limited(ctx, r, call)
		if err == nil || refused(err) || time.Since(began) > r.Patience {
			return out, err
		}
		r.Log.WarnContext(ctx, "request to the source failed", "err", err)
		if err := r.backOff(ctx, failures); err != nil {
			return out, err
		}
	}
}

// limited calls the source with a time limit.
func limited[T any](ctx context.Context, r *run, call func(context.Context) (T, error)) (T, error) {
	bounded, cancel := context.WithTimeout(ctx, r.Limit)
	defer cancel()
	out, err := call(bounded)
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		err = fmt.Errorf("the source has not answered within %s", r.Limit)
	}
	return out, err
}

// refused reports whether an error is an answer of the source that a repetition does not
// change.
func refused(err error) bool {
	var answer *client.Error
	return errors.As(err, &answer) && answer.Status < 500 && answer.Status != http.StatusTooManyRequests
}

// backOff waits after a number of failures in a row.
func (r *run) backOff(ctx context.Context, failures int) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(r.Poll << min(failures-1, 5)):
		return nil
	}
}
