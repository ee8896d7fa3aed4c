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
	entry *entry // without its name; nil for a home that the archive has no entry of
	users atomic.Int32
	name  int    // length of its name in the path
	id    fileID // of a folder that is closed for the time being: fd is -1
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
	if err := setXattrs(fd, e.xattrs); err != nil {
		return err
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
	return o.apply(d.fd, d.entry)
}

// trail is the stack of folders from the home to where the archive is. New
// entries are made in one of these and nowhere else: each was made here, by
// this very unpacking, so that no name is ever looked up in which a link could
// lead away. The last of them are held open; the others are reopened by "..",
// and have to be the same.
//
// A folder has mode 0700 and no ACL until it is left, and the home until the
// end: nothing is inherited from them.
type trail struct {
	path    []byte // of the last of the folders; empty for the home
	folders []*target
	owner   owner
	made    int
	settle  func() // returns when no small file is under way
}

// parent returns the folder in which name belongs and its last component,
// after it has left the folders that the archive is done with.
func (p *trail) parent(name string) (*target, string, error) {
	dir, base := "", name
	if at := strings.LastIndexByte(name, '/'); at >= 0 {
		dir, base = name[:at], name[at+1:]
	}
	for len(p.path) > len(dir) {
		if err := p.leave(); err != nil {
			return nil, "", err
		}
	}
	if string(p.path) != dir {
		return nil, "", corrupted("%s is not where the order of the tree has it", quoted(name))
	}
	return p.folders[len(p.folders)-1], base, nil
}

// leave goes back to the folder above.
func (p *trail) leave() error {
	n := len(p.folders) - 1
	last := p.folders[n]
	if err := p.reopen(p.folders[n-1], last.fd); err != nil {
		return fmt.Errorf("unpack %s: %w", quoted(string(p.path)), err)
	}
	at := len(p.path) - last.name
	path := p.path
	p.path, p.folders = p.path[:at], p.folders[:n]
	if err := last.release(p.owner); err != nil {
		return fmt.Errorf("unpack %s: %w", quoted(string(path)), err)
	}
	return nil
}

// leaveAll goes back to the home.
func (p *trail) leaveAll() error {
	for len(p.folders) > 1 {
		if err := p.leave(); err != nil {
			return err
		}
	}
	return nil
}

// reopen opens a folder that was closed from one that is in it.
func (p *trail) reopen(d *target, below int) error {
	if d.fd >= 0 {
		return nil
	}
	fd, err := unix.Openat(below, "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("go back to the folder above: %w", err)
	}
	var st unix.Stat_t
	err = fstat(fd, &st)
	if err == nil && idOf(&st) != d.id {
		err = errors.New("the folder above it was replaced while it was unpacked")
	}
	if err != nil {
		unix.Close(fd)
		return err
	}
	d.fd = fd
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
	before := len(p.path)
	if before > 0 {
		p.path = append(p.path, '/')
	}
	p.path = append(p.path, base...)
	kept := *e
	kept.name = "" // the path has it: of deep trees all names would take too much
	t := &target{fd: fd, entry: &kept, writer: p.made % writers, name: len(p.path) - before}
	t.users.Add(1)
	p.folders = append(p.folders, t)
	if far := len(p.folders) - 1 - openFolders; far > 0 {
		return p.shut(p.folders[far])
	}
	return nil
}

// shut closes a folder that is come back to.
func (p *trail) shut(d *target) error {
	if d.fd < 0 {
		return nil
	}
	if d.users.Load() > 1 {
		p.settle()
	}
	var st unix.Stat_t
	if err := fstat(d.fd, &st); err != nil {
		return err
	}
	d.id = idOf(&st)
	unix.Close(d.fd)
	d.fd = -1
	return nil
}

// abandon closes what is open without a word; the home is of no use.
func (p *trail) abandon() {
	for _, d := range p.folders[1:] {
		if d.fd >= 0 {
			unix.Close(d.fd)
		}
	}
}

// link makes one more name for a file that is in the home already. The way to
// the file is gone folder by folder, never through a link, from the nearest
// folder that is open.
func (p *trail) link(to string, dir *target, base string) error {
	from, name := p.nearest(to)
	fd := from
	defer func() {
		if fd != from {
			unix.Close(fd)
		}
	}()
	for {
		part, rest, more := cutPath(name)
		if !more {
			break
		}
		next, err := openPath(fd, part)
		if err != nil {
			return linkError(to, err)
		}
		if fd != from {
			unix.Close(fd)
		}
		fd, name = next, rest
	}
	var st unix.Stat_t
	if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return linkError(to, err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return corrupted("hard link to the folder %s", quoted(to))
	}
	if err := unix.Linkat(fd, name, dir.fd, base, 0); err != nil {
		return made(err)
	}
	return nil
}

// nearest returns the last open folder of the trail that is on the way to a
// name, and the rest of the way.
func (p *trail) nearest(name string) (fd int, rest string) {
	common := 0
	for common < len(p.path) && common < len(name) && p.path[common] == name[common] {
		common++
	}
	at := len(p.path)
	for i := len(p.folders) - 1; i > 0; i-- {
		if at <= common && at < len(name) && name[at] == '/' && p.folders[i].fd >= 0 {
			return p.folders[i].fd, name[at+1:]
		}
		at -= p.folders[i].name
	}
	return p.folders[0].fd, name
}

// pathMax is how much of a path the kernel takes in one call.
const pathMax = 4000

// cutPath splits the folders off a path that one call can open; more tells that
// there are any.
func cutPath(name string) (part, rest string, more bool) {
	at := strings.LastIndexByte(name[:min(len(name), pathMax)], '/')
	if at < 0 {
		return "", name, false
	}
	return name[:at], name[at+1:], true
}

// openPath opens the folder that a path leads to from an open one, through no link.
func openPath(dir int, path string) (int, error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat2(dir, path, &unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH})
	if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) {
		return fd, err
	}
	// An older kernel, or a container that may not: one folder after another.
	fd = dir
	for part := range strings.SplitSeq(path, "/") {
		next, err := unix.Openat(fd, part, flags, 0)
		if fd != dir {
			unix.Close(fd)
		}
		if err != nil {
			return -1, err
		}
		fd = next
	}
	return fd, nil
}

func linkError(to string, err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return corrupted("hard link to %s, which is no file of the archive: %w", quoted(to), err)
	}
	return fmt.Errorf("look at %s: %w", quoted(to), err)
}

// made tells what kind of failure it is that a name could not be made: one
// that was there before is the archive's fault.
func made(err error) error {
	if errors.Is(err, unix.EEXIST) {
		return corrupted("comes twice")
	}
	return fmt.Errorf("make: %w", err)
}
