package treewipe

import (
	"fmt"
	"os"
	"strings"
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
func isSubvolume(dir int, st *unix.Stat_t) bool {
	var fs unix.Statfs_t
	return st.Ino == firstInode && unix.Fstatfs(dir, &fs) == nil && fs.Type == unix.BTRFS_SUPER_MAGIC
}

// mounted reports whether a folder is the top of a mount in the folder above.
func mounted(dir, above int) bool {
	var st unix.Statx_t
	err := unix.Statx(dir, "", unix.AT_EMPTY_PATH, unix.STATX_INO, &st)
	if err == nil && st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
	}
	id := mountID(dir) // before Linux 5.8
	return id == "" || id != mountID(above)
}

// mountID returns the kernel's number of the mount that an open folder is in; empty if it is
// unknown.
func mountID(dir int) string {
	info, _ := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", dir))
	_, rest, _ := strings.Cut(string(info), "mnt_id:")
	id, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(id)
}

// makeWritable clears the flag by which a subvolume is read-only. The owner of its top can set it.
// Where that is not allowed, in a container for example, the removal of its content reports it.
func makeWritable(dir int) {
	var flags uint64
	request := func(number uintptr) bool {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(dir), number, uintptr(unsafe.Pointer(&flags)))
		return errno == 0
	}
	if request(subvolGetFlags) && flags&subvolReadOnly != 0 {
		flags &^= subvolReadOnly
		request(subvolSetFlags)
	}
}
