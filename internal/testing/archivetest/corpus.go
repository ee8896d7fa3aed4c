// Package archivetest has the home with which archives are tested, with every kind of entry
// that a backup may lose, and snapshots of homes with everything that is visible in them.
package archivetest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Corpus fills an empty folder with every kind of entry that is hard to
// preserve. Entries that need root are included if the test runs as root.
func Corpus(tb testing.TB, home string) {
	tb.Helper()
	c := &corpusMaker{tb, home, os.Geteuid() == 0}
	c.folders()
	c.names()
	c.modes()
	c.links()
	c.sparse()
	c.attributes()
	c.special()
	c.sizes()
	c.times()
	c.owner(".", 1000, 1001)
	check(tb, os.Chmod(home, 0o750|os.ModeSetgid|os.ModeSticky))
	c.time(".", 1_500_000_000, 123_456_789)
}

type corpusMaker struct {
	testing.TB
	home string
	root bool
}

func (c *corpusMaker) path(name string) string { return filepath.Join(c.home, name) }

func (c *corpusMaker) file(name, content string) {
	check(c, os.MkdirAll(filepath.Dir(c.path(name)), 0o755))
	check(c, os.WriteFile(c.path(name), []byte(content), 0o644))
}

func (c *corpusMaker) owner(name string, uid, gid int) {
	if c.root {
		check(c, os.Lchown(c.path(name), uid, gid))
	}
}

func (c *corpusMaker) mode(name string, mode uint32) { check(c, unix.Chmod(c.path(name), mode)) }

func (c *corpusMaker) time(name string, sec, nsec int64) {
	ts := []unix.Timespec{{Sec: sec + 77, Nsec: nsec / 3}, {Sec: sec, Nsec: nsec}}
	check(c, unix.UtimesNanoAt(unix.AT_FDCWD, c.path(name), ts, unix.AT_SYMLINK_NOFOLLOW))
}

func (c *corpusMaker) folders() {
	check(c, os.MkdirAll(c.path("empty/of/all"), 0o755))
	check(c, os.MkdirAll(c.path(".config/.hidden"), 0o700))
	deep := strings.Repeat("d/", 150)
	c.file(deep+"bottom", "deep down")
	c.file(strings.Repeat(strings.Repeat("folder", 30)+"/", 12)+"far", "a path of more than two thousand bytes")
	for i := range 300 {
		c.file(fmt.Sprintf("many/file-%03d", i), strings.Repeat("x", i*7))
	}
}

func (c *corpusMaker) names() {
	for i, name := range []string{
		".bashrc", "-rf", "--help", "a b", " leading", "trailing ", "tab\there", "two\nlines", "\n", "quote'\"`$(x)",
		"back\\slash", "*", "...", "..a", "~", "한국어", "emoji🙂", "e\u0301", "\xff\xfe not utf-8 \x80", "\x01\x7f",
		strings.Repeat("n", 99), strings.Repeat("n", 100), strings.Repeat("n", 101), strings.Repeat("n", 255),
		strings.Repeat("\xe9", 255), "12 path=evil\n", "GNUSparseFile.0", "PaxHeaders", "x.meta", "=", "%3D",
	} {
		c.file("names/"+name, fmt.Sprint(i, name))
		c.file("names/in "+name[:min(len(name), 200)]+"/"+name, "again")
	}
}

func (c *corpusMaker) modes() {
	for _, mode := range []uint32{0, 0o400, 0o222, 0o111, 0o777, 0o4755, 0o2755, 0o1644, 0o7777, 0o6000} {
		name := fmt.Sprintf("modes/%04o", mode)
		c.file(name, "mode")
		c.owner(name, 12345, 54321)
		c.mode(name, mode)
		if mode&0o700 != 0o700 && !c.root {
			c.mode(name, mode|0o400) // otherwise the test could not read it
		}
		folder := fmt.Sprintf("modes/folder-%04o", mode)
		c.file(folder+"/in", "folder")
		c.owner(folder, 0, 7)
		c.mode(folder, mode|map[bool]uint32{true: 0, false: 0o700}[c.root])
	}
	for i, id := range []int{1000, 2097151, 2097152, 4294967294 >> 1} {
		name := fmt.Sprintf("owners/%d", i)
		c.file(name, "owner")
		c.owner(name, id, id-1)
	}
}

func (c *corpusMaker) links() {
	c.file("links/file", "a file of several names")
	check(c, os.Link(c.path("links/file"), c.path("links/another")))
	check(c, os.MkdirAll(c.path("links/aa"), 0o755))
	check(c, os.Link(c.path("links/file"), c.path("links/aa/before")))
	c.file("links/large", strings.Repeat("large and linked ", 20_000))
	check(c, os.Link(c.path("links/large"), c.path("links/large-too")))
	c.file("links/empty", "")
	check(c, os.Link(c.path("links/empty"), c.path("links/empty-too")))
	for name, to := range map[string]string{
		"dangling": "nowhere/at/all", "absolute": "/etc/passwd", "up": "../../../../etc", "self": "self", "dot": ".",
		"folder": "aa", "long": strings.Repeat("l/", 1000), "longest": strings.Repeat("x", 4095), "bytes": "\xff\n\x01",
		"hundred": strings.Repeat("h", 100), "more": strings.Repeat("h", 101),
	} {
		check(c, os.Symlink(to, c.path("links/"+name)))
		c.owner("links/"+name, 4000, 4001)
		c.time("links/"+name, 1_400_000_000, 987_654_321)
	}
	check(c, os.Link(c.path("links/dangling"), c.path("links/dangling-too")))
}

func (c *corpusMaker) sparse() {
	make := func(name string, size int64, at ...int64) {
		c.file(name, "")
		f, err := os.OpenFile(c.path(name), os.O_WRONLY, 0)
		check(c, err)
		for _, offset := range at {
			_, err := f.WriteAt(bytes.Repeat([]byte("data"), 1024), offset)
			check(c, err)
		}
		check(c, f.Truncate(size))
		check(c, f.Sync())
		check(c, f.Close())
	}
	make("sparse/all-hole", 10<<20)
	make("sparse/small-hole", 100<<10)
	make("sparse/begin", 1<<20, 0)
	make("sparse/end", 1<<20, 1<<20-4096)
	make("sparse/odd-end", 1<<20+123, 1<<19)
	make("sparse/over-8-gib", 9<<30+1, 0, 5<<30, 9<<30-8192)
	var every []int64
	for i := range int64(200) {
		every = append(every, i*16384)
	}
	make("sparse/every-other", 200*16384, every...)
	make("sparse/"+strings.Repeat("long", 60), 1<<20, 8192)
	make("sparse/linked", 3<<20, 1<<20)
	check(c, os.Link(c.path("sparse/linked"), c.path("sparse/linked-too")))
	c.file("sparse/zeros-but-not", strings.Repeat("\x00", 300_000))
	for _, size := range []int64{3, 200_000} { // allocated and never written
		name := fmt.Sprintf("sparse/allocated-%d", size)
		c.file(name, "")
		f, err := os.OpenFile(c.path(name), os.O_WRONLY, 0)
		check(c, err)
		check(c, unix.Fallocate(int(f.Fd()), 0, 0, size))
		check(c, f.Close())
	}
}

func (c *corpusMaker) attributes() {
	c.file("attributes/file", "with attributes")
	set := func(name, key string, value []byte) {
		check(c, unix.Lsetxattr(c.path(name), key, value, 0))
	}
	set("attributes/file", "user.plain", []byte("value"))
	set("attributes/file", "user.bytes", []byte("\x00\xff\n=\x00"))
	set("attributes/file", "user.empty", nil)
	set("attributes/file", "user.with=equals%3D%", []byte("odd"))
	set("attributes/file", "user.large", bytes.Repeat([]byte("v"), 2500))
	check(c, os.MkdirAll(c.path("attributes/folder"), 0o755))
	set("attributes/folder", "user.on-folder", []byte("yes"))
	c.file("attributes/acl", "acl")
	set("attributes/acl", "system.posix_acl_access", ACL(6, 5, 4, 1234))
	set("attributes/folder", "system.posix_acl_default", ACL(7, 5, 0, 4321))
	set("attributes/folder", "system.posix_acl_access", ACL(7, 7, 1, 99))
	c.file("attributes/folder/made-before-the-default-acl", "plain")
	check(c, unix.Lremovexattr(c.path("attributes/folder/made-before-the-default-acl"), "system.posix_acl_access"))
	if c.root {
		c.file("attributes/ping", "not really")
		c.owner("attributes/ping", 1000, 1000)
		capability := binary.LittleEndian.AppendUint32(nil, 0x02000001)
		capability = append(capability, 0, 0x20, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
		set("attributes/ping", "security.capability", capability)
	}
}

// ACL returns a POSIX ACL in the kernel's format, with one named user.
func ACL(user, mask, other uint16, id uint32) []byte {
	b := binary.LittleEndian.AppendUint32(nil, 2)
	const none = 0xffffffff
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{1, 7, none}, {2, user, id}, {4, 5, none}, {0x10, mask, none}, {0x20, other, none}} {
		b = binary.LittleEndian.AppendUint16(b, e.tag)
		b = binary.LittleEndian.AppendUint16(b, e.perm)
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return b
}

// Skipped is the number of entries of Corpus that are not archived.
const Skipped = 3

func (c *corpusMaker) special() {
	check(c, os.MkdirAll(c.path("special"), 0o755))
	check(c, unix.Mkfifo(c.path("special/fifo"), 0o644))
	// A socket's path must be short.
	short := filepath.Join(os.TempDir(), fmt.Sprintf("s%x", rand.Uint64()))
	l, err := net.Listen("unix", short)
	check(c, err)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	check(c, l.Close())
	err = os.Rename(short, c.path("special/socket"))
	if errors.Is(err, unix.EXDEV) {
		check(c, os.Remove(short))
		err = unix.Mkfifo(c.path("special/socket"), 0o644)
	}
	check(c, err)
	if err := unix.Mknod(c.path("special/device"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		check(c, unix.Mkfifo(c.path("special/device"), 0o644))
	}
}

func (c *corpusMaker) sizes() {
	random := rand.NewChaCha8([32]byte{7})
	// Sizes around the packer's limits: small files, frames.
	const small, frame = 64 << 10, 4 << 20
	for _, n := range []int{0, 1, 511, 512, 513, small - 1, small, small + 1, frame - 512, frame, frame + 1, 9 << 20} {
		b := make([]byte, n)
		random.Read(b)
		c.file(fmt.Sprintf("sizes/%d", n), string(b))
	}
}

func (c *corpusMaker) times() {
	for i, t := range [][2]int64{{0, 0}, {0, 1}, {1, 0}, {-1, 0}, {-1, 999_999_999}, {-2, 500_000_000}, {-86400 * 365 * 30, 1},
		{1<<31 - 1, 999_999_999}, {1 << 31, 5}, {1 << 32, 100_000_000}, {13_000_000_000, 120_000_000}} {
		name := fmt.Sprintf("times/%d", i)
		c.file(name, "time")
		c.time(name, t[0], t[1])
		check(c, os.MkdirAll(c.path(name+".d/sub"), 0o755))
		c.time(name+".d", t[0], t[1])
	}
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
