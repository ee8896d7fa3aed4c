package archive

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// target is a folder of the home that is unpacked. Its own mode, owner and
// times are set when nobody needs it any more: the archive's order left it, and
// all that is in it is written.
type target struct {
	fd    int
	entry *entry // nil for a home that the archive has no entry of
	users atomic.Int32
	// writer is which of the writers makes the small files in it: two at a time
	// would only wait for each other, since the kernel locks a folder.
	writer int
}

// owner says whose files the process makes by itself.
type owner struct {
	uid, gid uint32
	root     bool
}

func currentOwner() owner {
	uid := os.Geteuid()
	return owner{uint32(uid), uint32(os.Getegid()), uid == 0}
}

// must tells whether a new file has to be given away. Root always does: the
// file system may have chosen another group than its own.
func (o owner) must(e *entry) bool { return o.root || e.uid != o.uid || e.gid != o.gid }

// apply gives an open file its owner, mode, attributes and times, in this
// order: a new owner takes away setuid and capabilities, a mode changes ACLs,
// and all of them the times.
func (o owner) apply(fd int, e *entry) error {
	if o.must(e) {
		if err := unix.Fchown(fd, int(e.uid), int(e.gid)); err != nil {
			return fmt.Errorf("set owner: %w", err)
		}
	}
	if err := unix.Fchmod(fd, e.mode); err != nil {
		return fmt.Errorf("set mode: %w", err)
	}
	for _, x := range e.xattrs {
		if err := unix.Fsetxattr(fd, x.name, x.value, 0); err != nil {
			return fmt.Errorf("set attribute %q: %w", x.name, err)
		}
	}
	if err := setTimes(fd, e); err != nil {
		return fmt.Errorf("set times: %w", err)
	}
	return nil
}

// setTimes sets the times of an open file, for which x/sys has no function.
func setTimes(fd int, e *entry) error {
	times := timesOf(e)
	_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&times[0])), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// timesOf: where the access time is not known, it is that of the change.
func timesOf(e *entry) [2]unix.Timespec {
	if e.atime == (unix.Timespec{}) {
		return [2]unix.Timespec{e.mtime, e.mtime}
	}
	return [2]unix.Timespec{e.atime, e.mtime}
}

// release gives up one use of the folder.
func (d *target) release(o owner) error {
	if d.users.Add(-1) > 0 {
		return nil
	}
	defer unix.Close(d.fd)
	if d.entry == nil {
		return nil
	}
	if err := o.apply(d.fd, d.entry); err != nil {
		return fmt.Errorf("unpack %q: %w", d.entry.name, err)
	}
	return nil
}

// trail is the stack of folders from the home to where the archive is. New
// entries are made in one of these and nowhere else: each was made here, by
// this very unpacking, and is held open, so that no name is ever looked up in
// which a link could lead away.
type trail struct {
	names   []string // of the folders below the home
	folders []*target
	owner   owner
	made    int
}

// parent returns the folder in which name belongs and its last component,
// after it has left the folders that the archive is done with.
func (p *trail) parent(name string) (*target, string, error) {
	depth := 0
	for {
		part, rest, more := strings.Cut(name, "/")
		if !more {
			break
		}
		if depth >= len(p.names) || p.names[depth] != part {
			return nil, "", corrupted("%q is not where the order of the tree has it", name)
		}
		name = rest
		depth++
	}
	return p.folders[depth], name, p.leave(depth)
}

// leave goes back up to this depth.
func (p *trail) leave(depth int) error {
	for len(p.names) > depth {
		last := p.folders[len(p.folders)-1]
		p.names = p.names[:len(p.names)-1]
		p.folders = p.folders[:len(p.folders)-1]
		if err := last.release(p.owner); err != nil {
			return err
		}
	}
	return nil
}

// enter makes a folder and goes into it. Until it is left nobody else may.
func (p *trail) enter(dir *target, base string, e *entry) error {
	if err := unix.Mkdirat(dir.fd, base, 0o700); err != nil {
		return made(err)
	}
	fd, err := unix.Openat(dir.fd, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open folder: %w", err)
	}
	p.made++
	t := &target{fd: fd, entry: e, writer: p.made % writers}
	t.users.Add(1)
	p.names = append(p.names, base)
	p.folders = append(p.folders, t)
	return nil
}

// abandon closes what is open without a word; the home is of no use.
func (p *trail) abandon() {
	for _, d := range p.folders[1:] {
		unix.Close(d.fd)
	}
}

// link makes one more name for a file that is in the home already. The way to
// the file is gone component by component, never through a link.
func (p *trail) link(to string, dir *target, base string) error {
	home := p.folders[0].fd
	fd := home
	defer func() {
		if fd != home {
			unix.Close(fd)
		}
	}()
	name := to
	for {
		part, rest, more := strings.Cut(name, "/")
		if !more {
			break
		}
		next, err := unix.Openat(fd, part, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return linkError(to, err)
		}
		if fd != home {
			unix.Close(fd)
		}
		fd, name = next, rest
	}
	var st unix.Stat_t
	if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return linkError(to, err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return corrupted("hard link to the folder %q", to)
	}
	if err := unix.Linkat(fd, name, dir.fd, base, 0); err != nil {
		return made(err)
	}
	return nil
}

func linkError(to string, err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return corrupted("hard link to %q, which is no file of the archive: %w", to, err)
	}
	return fmt.Errorf("look at %q: %w", to, err)
}

// made tells what kind of failure it is that a name could not be made: one
// that was there before is the archive's fault.
func made(err error) error {
	if errors.Is(err, unix.EEXIST) {
		return corrupted("comes twice")
	}
	return fmt.Errorf("make: %w", err)
}
