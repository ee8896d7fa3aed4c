package archive

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Attributes are the owner, mode, extended attributes and times of a folder.
type Attributes struct{ entry entry }

// ReadAttributes reads those of a folder, without leaving a trace.
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

// Apply gives them to a folder in place of its own, and syncs it: to a home whose
// content was unpacked beside and then moved to where it is mounted.
func (a *Attributes) Apply(dir string) error {
	var o opener
	fd, err := o.open(unix.AT_FDCWD, dir, unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	defer unix.Close(fd)
	old, err := readXattrs(fd)
	if err != nil {
		return err
	}
	for _, x := range old {
		if err := unix.Fremovexattr(fd, x.name); err != nil {
			return fmt.Errorf("remove attribute %q: %w", x.name, err)
		}
	}
	if err := currentOwner().apply(fd, &a.entry); err != nil {
		return err
	}
	if err := unix.Fsync(fd); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}
