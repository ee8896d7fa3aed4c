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
func read[T any](ctx context.Context, s *source, call func(context.Context) (T, error)) (T, error) {
	began := time.Now()
	for failures := 1; ; failures++ {
		out, err := limited(ctx, s, call)
		if err == nil || refused(err) || time.Since(began) > s.Patience {
			return out, err
		}
		s.run.Log.WarnContext(ctx, "request to the source failed", "err", err)
		if err := s.backOff(ctx, failures); err != nil {
			return out, err
		}
	}
}

// limited calls the source with a time limit.
func limited[T any](ctx context.Context, s *source, call func(context.Context) (T, error)) (T, error) {
	bounded, cancel := context.WithTimeout(ctx, s.Limit)
	defer cancel()
	out, err := call(bounded)
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		err = fmt.Errorf("the source has not answered within %s", s.Limit)
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
func (s *source) backOff(ctx context.Context, failures int) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(s.Poll << min(failures-1, 5)):
		return nil
	}
}
