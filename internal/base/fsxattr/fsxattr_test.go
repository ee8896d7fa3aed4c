package fsxattr

import (
	"errors"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel copies as many bytes as its own structure has.
func TestStructure(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ got, want uintptr }{
		"struct fsxattr":              {unsafe.Sizeof(Attributes{}), 28},
		"fsxattr.fsx_projid":          {unsafe.Offsetof(Attributes{}.Project), 12},
		"size in FS_IOC_FSGETXATTR":   {get >> 16 & 0x3fff, unsafe.Sizeof(Attributes{})},
		"size in FS_IOC_FSSETXATTR":   {set >> 16 & 0x3fff, unsafe.Sizeof(Attributes{})},
		"number of FS_IOC_FSGETXATTR": {get & 0xffff, 'X'<<8 | 31},
		"number of FS_IOC_FSSETXATTR": {set & 0xffff, 'X'<<8 | 32},
	} {
		if c.got != c.want {
			t.Errorf("%s is %#x, want %#x", name, c.got, c.want)
		}
	}
}

// A flag that is set is read back.
func TestSetAndGet(t *testing.T) {
	t.Parallel()
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const noDump = 0x80 // FS_XFLAG_NODUMP, which the owner of a file may set
	a, err := Get(f)
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) {
		t.Skipf("the file system of %s has no such attributes", f.Name())
	}
	if err != nil {
		t.Fatal(err)
	}
	a.Flags |= noDump
	if err := Set(f, a); err != nil {
		t.Fatal(err)
	}
	if now, err := Get(f); err != nil || now.Flags&noDump == 0 {
		t.Errorf("flags %#x, %v", now.Flags, err)
	}
}
