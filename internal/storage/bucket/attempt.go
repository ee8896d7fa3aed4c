package bucket

import (
	"context"
	"fmt"

	"codehub/internal/workspace"
)

// Claims number the attempts to store one archive in the database. Each attempt has a claim,
// which is the archive_op_id of its objects, so a late attempt never completes a newer one, and
// the objects of an interrupted attempt are removed.
type Claims interface {
	// Claim begins the attempt opID, and returns the earlier attempts whose
	// objects may still exist. None of these can complete any more.
	Claim(ctx context.Context, opID string) (abandoned []string, err error)
	// Forget records that the objects of these attempts are removed.
	Forget(ctx context.Context, abandoned []string) error
}

// Attempt begins the attempt opID for a workspace and removes the objects of earlier
// attempts. Garbage collection would never remove them, because no archive of theirs is
// recorded. step is called after each step, and its error ends Attempt.
func (b *Bucket) Attempt(ctx context.Context, id workspace.ID, opID string, claims Claims, step func(string) error) error {
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
		if err := b.sweep(ctx, b.Key(id, op)); err != nil {
			return fmt.Errorf("remove an unfinished copy: %w", err)
		}
	}
	if err := step("swept"); err != nil {
		return err
	}
	return claims.Forget(ctx, abandoned)
}

func (b *Bucket) sweep(ctx context.Context, key string) error {
	if err := b.Delete(ctx, key); err != nil {
		return err
	}
	_, err := b.Store.AbortIncomplete(ctx, key, 0, nil)
	return err
}
