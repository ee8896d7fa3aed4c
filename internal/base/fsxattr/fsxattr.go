// Package fsxattr reads and sets the attributes of files and folders that Linux keeps in struct
// fsxattr: flags, and the project whose quota counts the file. golang.org/x/sys/unix lacks them.
package fsxattr

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests of linux/fs.h. They are the same for programs of 32 bits.
const (
	get = 0x801c581f // FS_IOC_FSGETXATTR
	set = 0x401c5820 // FS_IOC_FSSETXATTR
)

// ProjectInherit is the flag of a folder by which what is made in it gets its project and this
// flag, and by which nothing of another project can be moved into it (FS_XFLAG_PROJINHERIT).
const ProjectInherit = 0x200

// Attributes is struct fsxattr.
type Attributes struct {
	Flags, ExtentSize, Extents, Project, CowExtentSize uint32

	_ [8]byte
}

// Get reads the attributes of an open file.
func Get(f *os.File) (a Attributes, err error) {
	err = ioctl(f, get, &a)
	return a, err
}

// Set sets all attributes of an open file, so a should come from Get.
func Set(f *os.File, a Attributes) error { return ioctl(f, set, &a) }

// ioctl returns a unix.Errno: unix.ENOTTY for a file system without these attributes.
func ioctl(f *os.File, request uintptr, a *Attributes) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(unsafe.Pointer(a))); errno != 0 {
		return errno
	}
	return nil
}
