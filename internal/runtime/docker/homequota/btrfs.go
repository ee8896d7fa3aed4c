package homequota

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests of btrfs, from linux/btrfs.h.
const (
	subvolCreate = 0x5000940e
	snapDestroy  = 0x5000940f
	qgroupLimit  = 0x8030942b
)

// firstInode is the inode of the top of every subvolume.
const firstInode = 256

// volArgs is struct btrfs_ioctl_vol_args.
type volArgs struct {
	fd   int64
	name [4088]byte
}

// limitArgs is struct btrfs_ioctl_qgroup_limit_args. The quota group 0 is that of the subvolume
// of the file.
type limitArgs struct {
	group, flags, maxReferenced, maxExclusive, reservedReferenced, reservedExclusive uint64
}

const limitReferenced = 1 // flag: maxReferenced is set

func onBtrfs(path string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(path, &fs) == nil && fs.Type == unix.BTRFS_SUPER_MAGIC
}

func isSubvolume(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Ino == firstInode && onBtrfs(path)
}

func makeSubvolume(path string, limit int64) error {
	if err := onParent(path, subvolCreate); err != nil {
		return fmt.Errorf("make a subvolume: %w", err)
	}
	if err := os.Chmod(path, 0o755); err != nil {
		return err
	}
	if limit > 0 {
		if err := limitSubvolume(path, limit); err != nil {
			return errors.Join(err, removeSubvolume(path))
		}
	}
	return syncDir(filepath.Dir(path))
}

func removeSubvolume(path string) error { return onParent(path, snapDestroy) }

// onParent sends a request about an entry to its folder.
func onParent(path string, request uintptr) error {
	var args volArgs
	name := filepath.Base(path)
	if len(name) > 255 {
		return unix.ENAMETOOLONG
	}
	copy(args.name[:], name)
	return ioctl(filepath.Dir(path), request, unsafe.Pointer(&args))
}

func limitSubvolume(path string, limit int64) error {
	args := limitArgs{flags: limitReferenced, maxReferenced: uint64(limit)}
	if limit == 0 {
		args.maxReferenced = ^uint64(0) // clears it
	}
	err := ioctl(path, qgroupLimit, unsafe.Pointer(&args))
	if errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("quotas are turned off on this file system (btrfs quota enable turns them on): %w", err)
	}
	if err != nil {
		return fmt.Errorf("limit a subvolume: %w", err)
	}
	return nil
}

func ioctl(path string, request uintptr, arg unsafe.Pointer) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return ioctlFile(f, request, arg)
}

func ioctlFile(f *os.File, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}
