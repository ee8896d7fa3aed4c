package inside

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"codehub/internal/archive"
	"codehub/internal/base/treewipe"
)

// seed replaces the content of a home by that of the image's folder, and gives the home that
// folder's owner, mode and attributes. The result is durable. Without such a folder the home
// is empty. A call that was interrupted can be repeated.
func seed(ctx context.Context, from, home string, out io.Writer) error {
	if err := archive.ClearAttributes(home); err != nil {
		return fmt.Errorf("clear the home: %w", err)
	}
	if err := treewipe.Empty(ctx, home, nil); err != nil {
		return fmt.Errorf("clear the home: %w", err)
	}
	info, err := os.Stat(from)
	if errors.Is(err, fs.ErrNotExist) {
		return os.Chmod(home, 0o755)
	}
	if err == nil && !info.IsDir() {
		err = errors.New("it is not a folder")
	}
	if err != nil {
		return fmt.Errorf("read %s of the image: %w", from, err)
	}
	at := pace(out)
	if err := archive.Copy(ctx, from, home, func(_, entries int64) { at(entries) }); err != nil {
		return fmt.Errorf("copy %s of the image: %w", from, err)
	}
	return nil
}
