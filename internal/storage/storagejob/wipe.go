package storagejob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

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

// eachName calls take, which removes a name, for all names in a folder until it
// is empty. It reads a bounded number at a time.
func eachName(ctx context.Context, f *os.File, take func(name string) error) error {
	for {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		empty := true
		for {
			names, err := f.Readdirnames(4096)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			empty = false
			for _, name := range names {
				if err := ctx.Err(); err != nil {
					return context.Cause(ctx)
				}
				if err := take(name); err != nil {
					return fmt.Errorf("move %q: %w", name, err)
				}
			}
		}
		if empty {
			return nil
		}
	}
}
