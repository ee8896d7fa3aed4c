package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"codehub/internal/archive/store"
	"codehub/internal/bucket"
	"codehub/internal/config"
	"codehub/internal/postgres"
)

// checkWithin bounds the first look at the bucket.
const checkWithin = 30 * time.Second

// checkBucket finds out at the start whether the bucket can be worked with.
// One that cannot stops the start, unless archives are in it already: then it
// is an outage, during which people must get to their homes all the same.
func checkBucket(ctx context.Context, b *bucket.Bucket, db *postgres.DB, log *slog.Logger) error {
	used, err := db.HasArchives(ctx)
	if err != nil {
		return fmt.Errorf("look for archives: %w", err)
	}
	err = answered(ctx, checkWithin, func(ctx context.Context) error { return b.Check(ctx, used) })
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case used && (errors.Is(err, store.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)):
		log.Error("bucket not reachable; archives and restores wait", "err", err)
		return nil
	}
	return &config.Problem{Setting: "CODEHUB_ARCHIVE_URL", Why: err.Error(), Do: "make the bucket reachable, or name another folder or bucket"}
}

// answered gives ask so long to answer. One that hangs whatever its context
// says is left behind: a folder on a disk that does not answer.
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
	select { // what it has to say about that
	case err := <-answer:
		return err
	case <-time.After(time.Second):
		return fmt.Errorf("it has not answered within %s: %w", within, ctx.Err())
	}
}
