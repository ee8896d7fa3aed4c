package treewipe

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests and flags of linux/fs.h.
const (
	getAttributes  = 0x801c581f // FS_IOC_FSGETXATTR
	setAttributes  = 0x401c5820 // FS_IOC_FSSETXATTR
	projectInherit = 0x200      // FS_XFLAG_PROJINHERIT
)

// endInheritance clears the flag by which what is made in a folder gets its project, and by which
// nothing of another project can be moved into it. The owner of the folder can set it. It returns
// false if the flag is not set or cannot be cleared, in a container for example.
func endInheritance(dir *os.File) bool {
	var attributes struct { // struct fsxattr
		flags uint32
		_     [24]byte
	}
	request := func(number uintptr) bool {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), number, uintptr(unsafe.Pointer(&attributes)))
		return errno == 0
	}
	if !request(getAttributes) || attributes.flags&projectInherit == 0 {
		return false
	}
	attributes.flags &^= projectInherit
	return request(setAttributes)
}
