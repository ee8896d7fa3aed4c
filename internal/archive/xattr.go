package archive

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// setXattrs sets the attributes of an open file. Whether they fit may depend on
// the order: ext4 stores each in the inode or in one extra block, wherever it
// fits, and never moves it. If one does not fit, other orders are tried.
func setXattrs(fd int, xs []xattr) error {
	var first error
	for order := range xattrOrders(xs) {
		done, err := setInOrder(fd, order)
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
		if !lacksRoom(err) || len(xs) == 1 {
			return first
		}
		for _, x := range order[:done] {
			if err := unix.Fremovexattr(fd, x.name); err != nil && !errors.Is(err, unix.ENODATA) {
				return fmt.Errorf("remove attribute %q: %w", x.name, err)
			}
		}
	}
	return first
}

// setAllowedXattrs sets those attributes that the process may set and that fit. Capabilities, which
// only root may set, are left out.
func setAllowedXattrs(fd int, xs []xattr) {
	for _, x := range xs {
		if x.name != "security.capability" {
			_ = unix.Fsetxattr(fd, x.name, x.value, 0)
		}
	}
}

// setInOrder returns the number of attributes that were set.
func setInOrder(fd int, xs []xattr) (int, error) {
	for i, x := range xs {
		if err := unix.Fsetxattr(fd, x.name, x.value, 0); err != nil {
			return i, fmt.Errorf("set attribute %q of %d bytes: %w", x.name, len(x.value), err)
		}
	}
	return len(xs), nil
}

func lacksRoom(err error) bool {
	for _, e := range []error{unix.ENOSPC, unix.EDQUOT, unix.E2BIG, unix.ERANGE} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// orderedFirst is up to how many attributes each one, and each pair, is tried
// first.
const orderedFirst = 12

// xattrOrders yields the orders to try: as listed, in which the file system had
// stored them; by size; and each one or two first.
func xattrOrders(xs []xattr) iter.Seq[[]xattr] {
	return func(yield func([]xattr) bool) {
		if !yield(xs) || len(xs) < 2 {
			return
		}
		size := func(x xattr) int { return len(x.name) + len(x.value) }
		largest := slices.Clone(xs)
		slices.SortStableFunc(largest, func(a, b xattr) int { return cmp.Compare(size(b), size(a)) })
		smallest := slices.Clone(largest)
		slices.Reverse(smallest)
		reversed := slices.Clone(xs)
		slices.Reverse(reversed)
		named := slices.Clone(xs)
		slices.SortFunc(named, func(a, b xattr) int { return strings.Compare(a.name, b.name) })
		for _, order := range [][]xattr{largest, smallest, reversed, named} {
			if !yield(order) {
				return
			}
		}
		n := min(len(largest), orderedFirst)
		small := largest[len(largest)-n:] // these fit into the inode
		for i := range small {
			for j := i; j < len(small); j++ {
				order := append(make([]xattr, 0, len(xs)), small[i])
				if j > i {
					order = append(order, small[j])
				}
				for _, x := range largest {
					if x.name != small[i].name && x.name != small[j].name {
						order = append(order, x)
					}
				}
				if !yield(order) {
					return
				}
			}
		}
	}
}
