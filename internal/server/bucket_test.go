package server

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// A bucket that hangs does not keep the server from starting, and one that
// gives up in time says why itself.
func TestAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hangs := make(chan struct{})
		defer close(hangs)
		why := errors.New("connection refused")
		for name, c := range map[string]struct {
			ask  func(context.Context) error
			want error
		}{
			"answers":  {func(context.Context) error { return nil }, nil},
			"fails":    {func(context.Context) error { return why }, why},
			"gives up": {func(ctx context.Context) error { <-ctx.Done(); return fmt.Errorf("%w: %w", why, ctx.Err()) }, why},
			"hangs":    {func(context.Context) error { <-hangs; return nil }, context.DeadlineExceeded},
		} {
			if err := answered(t.Context(), time.Minute, c.ask); !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %v", name, err, c.want)
			}
		}
	})
}
