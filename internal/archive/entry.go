package archive

import (
	"strings"

	"golang.org/x/sys/unix"
)

// The kinds of entry, as in tar.
const (
	kindFile     = '0'
	kindHardLink = '1'
	kindSymlink  = '2'
	kindFolder   = '5'
	kindPAX      = 'x'
)

const (
	blockSize = 512
	// maxHeader is the maximum size of one entry's records (names, attributes),
	// in bytes.
	maxHeader = 4 << 20
	// maxName and maxLink are the kernel's limits for a name in a folder and
	// for the target of a symbolic link.
	maxName = 255
	maxLink = 4095
	// maxFileSize is the largest size of a file that readers accept: the map of a
	// sparse file has numbers of at most 18 digits.
	maxFileSize = 1e18 - 1
)

// entry is an entry of the tar without its content.
type entry struct {
	// name is the path inside the home: "." for the home itself, otherwise
	// components that are neither empty nor "." nor "..".
	name string
	kind byte
	// link is the target of a symbolic link, or the path inside the home of a
	// hard link's file.
	link     string
	mode     uint32 // 07777
	uid, gid uint32
	size     int64 // of the file, holes included
	mtime    unix.Timespec
	atime    unix.Timespec // zero: unknown
	xattrs   []xattr
	// extents lists the data of a sparse file; nil for other files.
	extents []extent
}

type xattr struct {
	name  string
	value []byte
}

// extent is a range of data in a sparse file.
type extent struct{ offset, length int64 }

func (x extent) end() int64 { return x.offset + x.length }

func (e *entry) sparse() bool { return e.extents != nil }

// stored returns how many bytes of e's content are in the archive.
func (e *entry) stored() int64 {
	if e.kind != kindFile {
		return 0
	}
	if !e.sparse() {
		return e.size
	}
	var n int64
	for _, x := range e.extents {
		n += x.length
	}
	return n
}

// wantedXattr reports whether an attribute is part of a home. Others belong to
// the machine (labels, overlay marks) or need privileges that a workspace does
// not have.
func wantedXattr(name string) bool {
	switch name {
	case "system.posix_acl_access", "system.posix_acl_default", "security.capability":
		return true
	}
	return strings.HasPrefix(name, "user.") && len(name) > len("user.")
}

func padding(n int64) int64 { return -n & (blockSize - 1) }
