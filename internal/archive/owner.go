package archive

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"codehub/internal/base/treewalk"
)

// OwnerMap replaces one uid, and the gid of the same number, by another. The zero value
// replaces nothing.
type OwnerMap struct{ From, To uint32 }

func (m OwnerMap) of(id uint32) uint32 {
	if id == m.From {
		return m.To
	}
	return id
}

// apply replaces the owner of an entry, also in its ACLs.
func (m OwnerMap) apply(e *entry) {
	if m.From == m.To {
		return
	}
	e.uid, e.gid = m.of(e.uid), m.of(e.gid)
	for _, x := range e.xattrs {
		if isACL(x.name) {
			mapACL(x.value, m.of, m.of)
		}
	}
}

func isACL(name string) bool { return strings.HasPrefix(name, "system.posix_acl_") }

// mapACL replaces the IDs in an ACL: 4 bytes of version, then entries of 2 bytes of tag,
// 2 of permissions and 4 of ID. It reports whether it changed one.
func mapACL(acl []byte, uid, gid func(uint32) uint32) (changed bool) {
	const user, group = 0x02, 0x08
	for at := 4; at+8 <= len(acl); at += 8 {
		tag, id := binary.LittleEndian.Uint16(acl[at:]), binary.LittleEndian.Uint32(acl[at+4:])
		next := id
		switch tag {
		case user:
			next = uid(id)
		case group:
			next = gid(id)
		}
		if next != id {
			binary.LittleEndian.PutUint32(acl[at+4:], next)
			changed = true
		}
	}
	return changed
}

// OwnerChange is a change of the owner of files; see ChangeOwner.
type OwnerChange struct {
	From []uint32 // users, and groups of the same numbers
	To   uint32   // user, and group
	// MaxPath limits the memory that a deep tree needs: a longer path is ErrTooDeep. 0: no
	// limit.
	MaxPath int
	// Progress is called for each entry with the number of entries so far; optional.
	Progress func(entries int64)
}

// ParseOwnerChange reads a change as the runtimes give it to the program in a container: the
// new uid, and those whose files it gets, separated by commas.
func ParseOwnerChange(to, from string) (c OwnerChange, err error) {
	if c.To, err = parseUID(to); err != nil {
		return c, err
	}
	for text := range strings.FieldsFuncSeq(from, func(r rune) bool { return r == ',' }) {
		uid, err := parseUID(text)
		if err != nil {
			return c, err
		}
		c.From = append(c.From, uid)
	}
	return c, nil
}

func parseUID(text string) (uint32, error) {
	uid, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is not a uid", text)
	}
	return uint32(uid), nil
}

// ErrTooDeep means that a tree is deeper than the caller allows.
var ErrTooDeep = errors.New("the folders are too deep")

// ChangeOwner gives everything in the folder dir that belongs to one of the users c.From to
// the user c.To; groups likewise, and the IDs in ACLs. If dir itself belongs to none of
// them, its owner and group count as well. All other owners stay, as do modes, set-user-ID
// bits, capabilities, attributes and modification times. The folder itself comes last and
// the result is durable, so that an interrupted call can be repeated. If the process is
// killed between the change of one file and the next system call, that file has lost its
// set-user-ID bits or capabilities: the kernel removes them with every change of an owner.
// Nothing may change the folder meanwhile. It needs OwnerCapabilities.
func ChangeOwner(ctx context.Context, dir string, c OwnerChange) error {
	var o opener
	top, err := o.open(unix.AT_FDCWD, dir, unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	defer unix.Close(top)
	var st unix.Stat_t
	if err := fstat(top, &st); err != nil {
		return err
	}
	v := &ownerChange{OwnerChange: c, opener: &o, uids: slices.Clone(c.From), gids: slices.Clone(c.From)}
	if st.Uid != c.To && !slices.Contains(c.From, st.Uid) {
		v.uids, v.gids = append(v.uids, st.Uid), append(v.gids, st.Gid)
	}
	if err := treewalk.Visit(ctx, top, v, treewalk.Options{Open: o.open, Failed: ownerFailed}); err != nil {
		return err
	}
	// What is below is durable before the folder's own owner says that it is complete.
	if err := unix.Syncfs(top); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	if err := v.open(top, &st); err != nil {
		return fmt.Errorf("change the owner of %s: %w", dir, err)
	}
	if err := unix.Fsync(top); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}

// OwnerCapabilities returns the capabilities that ChangeOwner needs, as unix.CAP_*.
func OwnerCapabilities() []int {
	return []int{unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_SETFCAP}
}

// ownerChange is the visitor of ChangeOwner.
type ownerChange struct {
	OwnerChange
	opener     *opener
	uids, gids []uint32
	entries    int64
}

func (c *ownerChange) uid(id uint32) uint32 { return c.mapped(c.uids, id) }
func (c *ownerChange) gid(id uint32) uint32 { return c.mapped(c.gids, id) }

func (c *ownerChange) mapped(from []uint32, id uint32) uint32 {
	if slices.Contains(from, id) {
		return c.To
	}
	return id
}

func (c *ownerChange) count() {
	c.entries++
	if c.Progress != nil {
		c.Progress(c.entries)
	}
}

// Folder accepts what cannot be archived: such a home gets its owner as well.
func (c *ownerChange) Folder(t *treewalk.Walk, dir *treewalk.Dir, st *unix.Stat_t) error {
	if c.MaxPath > 0 && t.PathLen() > c.MaxPath {
		return ownerFailed(t.Here(), ErrTooDeep)
	}
	c.count()
	if t.PathLen() == 0 {
		return nil // the last one
	}
	if err := c.open(dir.FD, st); err != nil {
		return ownerFailed(t.Here(), err)
	}
	// The walk compares it with the state when it leaves the folder.
	if err := fstat(dir.FD, st); err != nil {
		return ownerFailed(t.Here(), err)
	}
	return nil
}

func (c *ownerChange) Leave(*treewalk.Walk, *treewalk.Dir, string) error { return nil }

func (c *ownerChange) Leaf(t *treewalk.Walk, dir *treewalk.Dir, e treewalk.Entry) error {
	if err := c.name(dir.FD, e); err != nil {
		return ownerFailed(t.Name(e.Name), err)
	}
	c.count()
	return nil
}

func (c *ownerChange) name(dir int, e treewalk.Entry) error {
	var st unix.Stat_t
	if e.Kind != unix.DT_REG {
		if err := unix.Fstatat(dir, e.Name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return treewalk.Gone(err)
		}
		uid, gid := c.uid(st.Uid), c.gid(st.Gid)
		if uid == st.Uid && gid == st.Gid {
			return nil
		}
		return treewalk.Gone(unix.Fchownat(dir, e.Name, int(uid), int(gid), unix.AT_SYMLINK_NOFOLLOW))
	}
	fd, err := c.opener.open(dir, e.Name, 0)
	if err != nil {
		return treewalk.Gone(err)
	}
	defer unix.Close(fd)
	if err := fstat(fd, &st); err != nil {
		return err
	}
	return c.open(fd, &st)
}

// open changes the owner of an open file or folder.
func (c *ownerChange) open(fd int, st *unix.Stat_t) error {
	xs, err := readXattrs(fd)
	if err != nil {
		return err
	}
	uid, gid := c.uid(st.Uid), c.gid(st.Gid)
	owned := uid != st.Uid || gid != st.Gid
	if owned {
		if err := unix.Fchown(fd, int(uid), int(gid)); err != nil {
			return fmt.Errorf("set owner: %w", err)
		}
		// The kernel has removed these bits, and the capabilities.
		if st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
			if err := unix.Fchmod(fd, st.Mode&0o7777); err != nil {
				return fmt.Errorf("set mode: %w", err)
			}
		}
	}
	for _, x := range xs {
		if isACL(x.name) && mapACL(x.value, c.uid, c.gid) || owned && x.name == "security.capability" {
			if err := setXattrs(fd, []xattr{x}); err != nil {
				return err
			}
		}
	}
	return nil
}

func ownerFailed(name string, err error) error {
	return fmt.Errorf("change the owner of %s: %w", quoted(name), err)
}
