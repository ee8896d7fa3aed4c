package archive

import (
	"errors"
	"fmt"

	"codehub/internal/base/treewalk"
)

// The kinds of failure that callers distinguish with errors.Is. Other errors
// are failures of the machine (a full disk, an unreadable file) or the end of
// the context.
var (
	// ErrCorrupted: the archive is damaged, truncated, hostile or not the one
	// that the .meta describes. Reading it again gives the same result.
	ErrCorrupted = errors.New("archive is corrupted")
	// ErrChanged: a file changed while it was packed. A process still writes to
	// the home, so the archive would be inconsistent.
	ErrChanged = treewalk.ErrChanged
	// ErrUnrestorable: the home has an entry that no restore could recreate, or that
	// takes far more space in an archive.
	// The error names it. Packing it again gives the same result.
	ErrUnrestorable = errors.New("home cannot be archived")
)

func corrupted(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrCorrupted, fmt.Errorf(format, args...))
}
