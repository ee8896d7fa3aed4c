package archive

import (
	"strings"

	"golang.org/x/sys/unix"
)

// The kinds of entry, as tar spells them.
const (
	kindFile     = '0'
	kindHardLink = '1'
	kindSymlink  = '2'
	kindFolder   = '5'
	kindPAX      = 'x'
	kindGlobal   = 'g'
	kindLongName = 'L'
	kindLongLink = 'K'
)

const (
	blockSize = 512
	// maxHeader bounds what one entry's records (names, attributes) may take.
	maxHeader = 4 << 20
	// maxName and maxLink are the kernel's own limits, for a name in a folder
	// and for what a symbolic link says.
	maxName = 255
	maxLink = 4095
)

// entry is one entry of the tar: what is known of a file but for its content.
type entry struct {
	// name is the path inside the home: "." for the home itself, else
	// components that are neither empty nor "." nor "..".
	name string
	kind byte
	// link is what a symbolic link says, or the path inside the home of the
	// file that a hard link is one more name of.
	link     string
	mode     uint32 // 07777
	uid, gid uint32
	size     int64 // of the file, holes included
	mtime    unix.Timespec
	atime    unix.Timespec // zero: not known
	xattrs   []xattr
	// extents are where a sparse file has data; nil for any other file.
	extents []extent
}

type xattr struct {
	name  string
	value []byte
}

// extent is a run of data in a sparse file.
type extent struct{ offset, length int64 }

func (e *entry) sparse() bool { return e.extents != nil }

// stored is how many bytes of content the archive holds of e.
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

// wantedXattr tells whether an attribute is part of a home. The others belong
// to the host that it was on (labels, overlay marks) or need more than a
// workspace may.
func wantedXattr(name string) bool {
	switch name {
	case "system.posix_acl_access", "system.posix_acl_default", "security.capability":
		return true
	}
	return strings.HasPrefix(name, "user.") && len(name) > len("user.")
}

func padding(n int64) int64 { return -n & (blockSize - 1) }
