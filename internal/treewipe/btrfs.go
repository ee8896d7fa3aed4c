package treewipe

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests and flags of btrfs, from linux/btrfs.h.
const (
	subvolGetFlags = 0x80089419
	subvolSetFlags = 0x4008941a
	subvolReadOnly = 1 << 1

	firstInode = 256 // of the top of every subvolume
)

// isSubvolume reports whether a folder is the top of a subvolume.
func isSubvolume(dir *os.File, st *unix.Stat_t) bool {
	var fs unix.Statfs_t
	return st.Ino == firstInode && unix.Fstatfs(int(dir.Fd()), &fs) == nil && fs.Type == unix.BTRFS_SUPER_MAGIC
}

// mounted reports whether a folder is the top of a mount, or whether the kernel (before 5.8)
// cannot know.
func mounted(dir *os.File) bool {
	var st unix.Statx_t
	err := unix.Statx(int(dir.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_INO, &st)
	return err != nil || st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 || st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// makeWritable clears the flag by which a subvolume is read-only. The owner of its top can set it.
// Where that is not allowed, in a container for example, the removal of its content reports it.
func makeWritable(dir *os.File) {
	var flags uint64
	request := func(number uintptr) bool {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), number, uintptr(unsafe.Pointer(&flags)))
		return errno == 0
	}
	if request(subvolGetFlags) && flags&subvolReadOnly != 0 {
		flags &^= subvolReadOnly
		request(subvolSetFlags)
	}
}

// writableIn makes the subvolume writable that is an entry of a folder.
func writableIn(dir *os.File, name string) error {
	f, err := open(int(dir.Fd()), name)
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if !isSubvolume(f, &st) || mounted(f) {
		return unix.EROFS
	}
	makeWritable(f)
	return nil
}
