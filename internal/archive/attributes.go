package archive

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ClearAttributes removes a folder's extended attributes and ACLs and sets mode
// 0700, so that new entries inherit nothing.
func ClearAttributes(dir string) error {
	var o opener
	fd, err := o.open(unix.AT_FDCWD, dir, unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	defer unix.Close(fd)
	return clearAttributes(fd)
}

func clearAttributes(fd int) error {
	if err := removeXattrs(fd); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, 0o700); err != nil {
		return fmt.Errorf("set mode: %w", err)
	}
	return nil
}

// removeXattrs removes the attributes of an open file that belong to a home.
func removeXattrs(fd int) error {
	xs, err := readXattrs(fd)
	if err != nil {
		return err
	}
	for _, x := range xs {
		if err := unix.Fremovexattr(fd, x.name); err != nil && !errors.Is(err, unix.ENODATA) {
			return fmt.Errorf("remove attribute %q: %w", x.name, err)
		}
	}
	return nil
}
