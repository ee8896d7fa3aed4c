package homequota

import (
	"errors"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel copies as many bytes as its own structure has.
func TestAttributesStructure(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ got, want uintptr }{
		"struct fsxattr":              {unsafe.Sizeof(attributes{}), 28},
		"fsxattr.fsx_projid":          {unsafe.Offsetof(attributes{}.project), 12},
		"size in FS_IOC_FSGETXATTR":   {getFSXAttr >> 16 & 0x3fff, unsafe.Sizeof(attributes{})},
		"size in FS_IOC_FSSETXATTR":   {setFSXAttr >> 16 & 0x3fff, unsafe.Sizeof(attributes{})},
		"number of FS_IOC_FSGETXATTR": {getFSXAttr & 0xffff, 'X'<<8 | 31},
		"number of FS_IOC_FSSETXATTR": {setFSXAttr & 0xffff, 'X'<<8 | 32},
	} {
		if c.got != c.want {
			t.Errorf("%s is %#x, want %#x", name, c.got, c.want)
		}
	}
}

// A flag that is set is read back.
func TestSetAndReadAttributes(t *testing.T) {
	t.Parallel()
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const noDump = 0x80 // FS_XFLAG_NODUMP, which the owner of a file may set
	a, err := readAttributes(f)
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) {
		t.Skipf("the file system of %s has no such attributes", f.Name())
	}
	if err != nil {
		t.Fatal(err)
	}
	a.flags |= noDump
	if err := setAttributes(f, a); err != nil {
		t.Fatal(err)
	}
	if now, err := readAttributes(f); err != nil || now.flags&noDump == 0 {
		t.Errorf("flags %#x, %v", now.flags, err)
	}
}
