package storagejob

import (
	"context"

	"codehub/internal/archive"
	"codehub/internal/base/treewipe"
)

// wipe removes the content of a home and leaves a folder of mode 0700 without
// attributes, so that nothing inherits its ACLs.
func wipe(ctx context.Context, home string) error {
	if err := archive.ClearAttributes(home); err != nil {
		return err
	}
	return treewipe.Empty(ctx, home, nil)
}
