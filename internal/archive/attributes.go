package archive

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Attributes are the owner, mode, extended attributes and times of a folder.
type Attributes struct{ entry entry }

// ReadAttributes reads the attributes of a folder without changing its access
// time.
func ReadAttributes(dir string) (*Attributes, error) {
	var o opener
	fd, err := o.open(unix.AT_FDCWD, dir, unix.O_DIRECTORY)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := fstat(fd, &st); err != nil {
		return nil, err
	}
	a := &Attributes{entry{name: ".", kind: kindFolder}}
	describe(&a.entry, &st)
	if a.entry.xattrs, err = readXattrs(fd); err != nil {
		return nil, err
	}
	return a, nil
}

// Apply replaces the attributes of a folder and syncs it. It is for a home
// whose content was unpacked in a staging folder and moved to its mount point.
func (a *Attributes) Apply(dir string) error {
	var o opener
	fd, err := o.open(unix.AT_FDCWD, dir, unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	defer unix.Close(fd)
	if err := removeXattrs(fd); err != nil {
		return err
	}
	if err := currentOwner().apply(fd, &a.entry); err != nil {
		return err
	}
	if err := unix.Fsync(fd); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}

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
