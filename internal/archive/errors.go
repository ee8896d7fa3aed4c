package archive

import (
	"errors"
	"fmt"
)

// The kinds of failure that callers tell apart with errors.Is. What is none of
// these is a fault of the machine (a full disk, a file that cannot be read) or
// the end of the context.
var (
	// ErrCorrupted: the archive is not what it should be, whoever is to blame:
	// damaged, cut short, not the one that the .meta speaks of, or hostile.
	// Reading it again gives the same answer.
	ErrCorrupted = errors.New("archive is corrupted")
	// ErrChanged: a file changed while it was packed. Something still writes to
	// the home, so that no archive of it can be right.
	ErrChanged = errors.New("home changed while it was packed")
	// ErrUnrestorable: the home holds an entry that no restore could make again.
	// The error names it. Packing it again gives the same answer.
	ErrUnrestorable = errors.New("home cannot be archived")
	// ErrNotFound: the bucket answered, and it has no such object.
	ErrNotFound = errors.New("object not found")
	// ErrUnavailable: the bucket did not answer as a bucket should: it is down,
	// gone, full, or refuses us. Nothing follows about what it holds.
	ErrUnavailable = errors.New("bucket is unavailable")
	// ErrTooLarge: an object is larger than its upload was made for.
	ErrTooLarge = errors.New("object is too large")
)

func corrupted(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrCorrupted, fmt.Errorf(format, args...))
}
