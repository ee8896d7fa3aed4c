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
)

func corrupted(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrCorrupted, fmt.Errorf(format, args...))
}
