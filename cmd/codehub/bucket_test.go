package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"codehub/internal/config"
)

// What is kept free of a disk is kept by storage jobs, too.
func TestBucketKeepsTheReserve(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := &url.URL{Scheme: "file", Path: dir}
	b, err := openBucket(config.Config{Archives: at, ArchiveURL: at.String(), DataDir: dir, MinFreeShare: 0.07}, uuid.NewString(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if b.MinFree != 0.07 {
		t.Errorf("%g", b.MinFree)
	}
}

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
