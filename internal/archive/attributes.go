package archive

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// CopyAttributes gives a folder the owner, mode, attributes and times of
// another: for a home that was unpacked beside and whose content was then moved
// to where the home is mounted. What the folder carried before is replaced.
func CopyAttributes(from, to string) error {
	var o opener
	src, err := o.open(unix.AT_FDCWD, from, unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("open %s: %w", from, err)
	}
	defer unix.Close(src)
	dst, err := o.open(unix.AT_FDCWD, to, unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("open %s: %w", to, err)
	}
	defer unix.Close(dst)
	var st unix.Stat_t
	if err := fstat(src, &st); err != nil {
		return err
	}
	e := entry{name: ".", kind: kindFolder}
	describe(&e, &st)
	if e.xattrs, err = readXattrs(src); err != nil {
		return err
	}
	old, err := readXattrs(dst)
	if err != nil {
		return err
	}
	for _, x := range old {
		if err := unix.Fremovexattr(dst, x.name); err != nil {
			return fmt.Errorf("remove attribute %q: %w", x.name, err)
		}
	}
	if err := currentOwner().apply(dst, &e); err != nil {
		return err
	}
	if err := unix.Fsync(dst); err != nil {
		return fmt.Errorf("sync %s: %w", to, err)
	}
	return nil
}
