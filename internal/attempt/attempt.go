// Package attempt numbers the attempts to store one archive. Each attempt has a claim in
// the database, which is the archive_op_id of its objects, so a late attempt never
// completes a newer one, and the objects of an interrupted attempt are removed.
package attempt

import (
	"context"
	"fmt"

	"codehub/internal/bucket"
	"codehub/internal/workspace"
)

// Claims are the claims of one workspace in the database.
type Claims interface {
	// Claim begins the attempt opID, and returns the earlier attempts whose
	// objects may still exist. None of these can complete any more.
	Claim(ctx context.Context, opID string) (abandoned []string, err error)
	// Forget records that the objects of these attempts are removed.
	Forget(ctx context.Context, abandoned []string) error
}

// Begin begins the attempt opID for a workspace and removes the objects of earlier
// attempts. Garbage collection would never remove them, because no archive of theirs is
// recorded. step is called after each step, and its error ends Begin.
func Begin(ctx context.Context, b *bucket.Bucket, id workspace.ID, opID string, claims Claims, step func(string) error) error {
	abandoned, err := claims.Claim(ctx, opID)
	if err != nil {
		return err
	}
	if err := step("claimed"); err != nil {
		return err
	}
	if len(abandoned) == 0 {
		return nil
	}
	for _, op := range abandoned {
		if err := sweep(ctx, b, b.Key(id, op)); err != nil {
			return fmt.Errorf("remove an unfinished copy: %w", err)
		}
	}
	if err := step("swept"); err != nil {
		return err
	}
	return claims.Forget(ctx, abandoned)
}

func sweep(ctx context.Context, b *bucket.Bucket, key string) error {
	if err := b.Delete(ctx, key); err != nil {
		return err
	}
	_, err := b.Store.AbortIncomplete(ctx, key, 0, nil)
	return err
}
