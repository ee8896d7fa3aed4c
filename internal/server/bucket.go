package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"codehub/internal/base/setting"
	"codehub/internal/postgres"
	"codehub/internal/storage/bucket"
	"codehub/internal/storage/store"
)

// checkWithin bounds the check of the bucket at the start.
const checkWithin = 30 * time.Second

// checkBucket checks the bucket at the start. A bucket that fails stops the start,
// unless there are archives already: then it is an outage, during which users still
// need their homes.
func checkBucket(ctx context.Context, b *bucket.Bucket, db *postgres.DB, log *slog.Logger) error {
	used, err := db.HasArchives(ctx)
	if err != nil {
		return fmt.Errorf("look for archives: %w", err)
	}
	var problem *setting.Problem
	err = answered(ctx, checkWithin, func(ctx context.Context) error { return b.Check(ctx, used) })
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &problem):
		return problem
	case used && (errors.Is(err, store.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)):
		log.Error("bucket not reachable; archives and restores wait", "err", err)
		return nil
	}
	return &setting.Problem{Setting: "CODEHUB_ARCHIVE_URL", Why: err.Error(), Do: "make the bucket reachable, or name another folder or bucket"}
}

// answered bounds the time of ask. If ask ignores its context, as on a disk that is
// not responding, its goroutine is abandoned.
func answered(ctx context.Context, within time.Duration, ask func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	answer := make(chan error, 1)
	go func() { answer <- ask(ctx) }()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
	}
	select { // prefer its own error
	case err := <-answer:
		return err
	case <-time.After(time.Second):
		return fmt.Errorf("no response within %s: %w", within, ctx.Err())
	}
}
