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

// openFolders is how many folders of the current path are open at a time. Others are reopened
// by "..".
const openFolders = 32

// target is a folder of the home that is being unpacked. Its mode, owner and
// times are set when its content is complete and no user of it is left.
type target struct {
	fd    int
	entry *entry // without its name; nil for the home of an empty archive
	users atomic.Int32
	name  int    // length of its name in the path
	id    fileID // of a folder that is closed temporarily; fd is -1 then
	// writer is the writer of the small files in it. Two writers would only
	// wait for each other, since the kernel locks a folder.
	writer int
}

// owner is the owner of files that the process creates.
type owner struct {
	uid, gid uint32
	root     bool
	// plain: the process is no restore of a home. Files stay its user's, and attributes that it may
	// not set are left out.
	plain bool
}

func currentOwner() owner {
	uid := os.Geteuid()
	return owner{uid: uint32(uid), gid: uint32(os.Getegid()), root: uid == 0}
}

// must reports whether the owner of a new file has to be set. Root always sets
// it, since the file system may have chosen another group.
func (o owner) must(e *entry) bool {
	return !o.plain && (o.root || e.uid != o.uid || e.gid != o.gid)
}

// apply sets the owner, mode, attributes and times of an open file, in this
// order: a new owner clears setuid and capabilities, a mode changes ACLs, and
// each of them changes the times.
func (o owner) apply(fd int, e *entry) error {
	if o.must(e) {
		if err := unix.Fchown(fd, int(e.uid), int(e.gid)); err != nil {
			return fmt.Errorf("set owner: %w", err)
		}
	}
	if err := unix.Fchmod(fd, e.mode); err != nil {
		return fmt.Errorf("set mode: %w", err)
	}
	if o.plain {
		setAllowedXattrs(fd, e.xattrs)
	} else if err := setXattrs(fd, e.xattrs); err != nil {
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

// timesOf returns access and modification time; an unknown access time is the
// modification time.
func timesOf(e *entry) [2]unix.Timespec {
	if e.atime == (unix.Timespec{}) {
		return [2]unix.Timespec{e.mtime, e.mtime}
	}
	return [2]unix.Timespec{e.atime, e.mtime}
}

// release drops one use of the folder.
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

// trail is the stack of folders from the home to the current entry. New entries are
// created only in these folders, which this Unpack has created itself, so that no
// lookup can follow a link out of the home. The innermost folders are held open;
// others are reopened by ".." and must be the same.
//
// A folder has mode 0700 and no ACL until it is left, and the home until the end, so
// that nothing is inherited.
type trail struct {
	path    []byte // of the innermost folder; empty for the home
	folders []*target
	owner   owner
	made    int
	settle  func() // waits for all small files
}

// parent leaves the completed folders and returns the folder of name and name's
// last component.
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
		return nil, "", corrupted("%s is out of tree order", quoted(name))
	}
	return p.folders[len(p.folders)-1], base, nil
}

// leave goes back to the parent folder.
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

// reopen reopens a closed folder from one of its subfolders.
func (p *trail) reopen(d *target, below int) error {
	if d.fd >= 0 {
		return nil
	}
	fd, err := unix.Openat(below, "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open parent folder: %w", err)
	}
	var st unix.Stat_t
	err = fstat(fd, &st)
	if err == nil && idOf(&st) != d.id {
		err = errors.New("the parent folder was replaced during unpacking")
	}
	if err != nil {
		unix.Close(fd)
		return err
	}
	d.fd = fd
	return nil
}

// enter creates a folder and goes into it. Its mode keeps other users out until
// it is left.
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
	kept.name = "" // the path has it; the names of a deep tree would need too much memory
	t := &target{fd: fd, entry: &kept, writer: p.made % writers, name: len(p.path) - before}
	t.users.Add(1)
	p.folders = append(p.folders, t)
	if far := len(p.folders) - 1 - openFolders; far > 0 {
		return p.shut(p.folders[far])
	}
	return nil
}

// shut closes a folder that is reopened later.
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

// abandon closes all folders and ignores errors, since the home is incomplete.
func (p *trail) abandon() {
	for _, d := range p.folders[1:] {
		if d.fd >= 0 {
			unix.Close(d.fd)
		}
	}
}

// link creates another name for an existing file of the home. It resolves the
// path from the nearest open folder without following links.
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

// nearest returns the innermost open folder on the path to a name, and the rest
// of the path.
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

// pathMax is the longest path that the kernel accepts in one call.
const pathMax = 4000

// cutPath splits off the folders of a path that one call can open; more reports
// whether there are any.
func cutPath(name string) (part, rest string, more bool) {
	at := strings.LastIndexByte(name[:min(len(name), pathMax)], '/')
	if at < 0 {
		return "", name, false
	}
	return name[:at], name[at+1:], true
}

// openPath opens a folder by its path from an open one, without following
// links.
func openPath(dir int, path string) (int, error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat2(dir, path, &unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH})
	if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) {
		return fd, err
	}
	// On an older kernel, or where openat2 is forbidden, open one folder after
	// another.
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
		return corrupted("hard link to %s, which is not in the archive: %w", quoted(to), err)
	}
	return fmt.Errorf("stat %s: %w", quoted(to), err)
}

// made classifies the error of creating a name: an existing name is an error of
// the archive.
func made(err error) error {
	if errors.Is(err, unix.EEXIST) {
		return corrupted("duplicate entry")
	}
	return fmt.Errorf("create: %w", err)
}
