package archive

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
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

// ChangeOwner gives everything in the folder dir that belongs to one of the users from to
// the user to; groups likewise, and the IDs in ACLs. If dir itself belongs to none of them,
// its owner and group count as well. All other owners stay, as do modes, set-user-ID bits, capabilities, attributes and
// modification times. The folder itself comes last, so that an interrupted call can be
// repeated, and is synced. Nothing may change the folder meanwhile. It needs CAP_CHOWN,
// CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID and CAP_SETFCAP.
func ChangeOwner(ctx context.Context, dir string, from []uint32, to uint32) error {
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
	c := &ownerChange{opener: &o, uids: slices.Clone(from), gids: slices.Clone(from), to: to}
	if st.Uid != to && !slices.Contains(from, st.Uid) {
		c.uids, c.gids = append(c.uids, st.Uid), append(c.gids, st.Gid)
	}
	if err := traverse(ctx, &o, top, c); err != nil {
		return err
	}
	if err := c.open(top, &st); err != nil {
		return fmt.Errorf("change the owner of %s: %w", dir, err)
	}
	if err := unix.Fsync(top); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}

// ownerChange is the visitor of ChangeOwner.
type ownerChange struct {
	opener     *opener
	uids, gids []uint32
	to         uint32
}

func (c *ownerChange) uid(id uint32) uint32 { return c.mapped(c.uids, id) }
func (c *ownerChange) gid(id uint32) uint32 { return c.mapped(c.gids, id) }

func (c *ownerChange) mapped(from []uint32, id uint32) uint32 {
	if slices.Contains(from, id) {
		return c.to
	}
	return id
}

// longest: also a home that cannot be archived gets its owner.
func (c *ownerChange) longest() int { return math.MaxInt }

func (c *ownerChange) folder(dir *folder, t *traverser, st *unix.Stat_t) (int, error) {
	if len(t.path) == 0 {
		return 0, nil // the last one
	}
	if err := c.open(dir.fd, st); err != nil {
		return 0, ownerFailed(t.here(), err)
	}
	// The traversal compares it with the state when it leaves the folder.
	if err := fstat(dir.fd, st); err != nil {
		return 0, ownerFailed(t.here(), err)
	}
	return 0, nil
}

func (c *ownerChange) leaf(dir *folder, t *traverser, d dirent) error {
	if err := c.name(dir.fd, d); err != nil {
		return ownerFailed(t.name(d.name), err)
	}
	return nil
}

func (c *ownerChange) name(dir int, d dirent) error {
	var st unix.Stat_t
	if d.kind != unix.DT_REG {
		if err := unix.Fstatat(dir, d.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return gone(err)
		}
		uid, gid := c.uid(st.Uid), c.gid(st.Gid)
		if uid == st.Uid && gid == st.Gid {
			return nil
		}
		return gone(unix.Fchownat(dir, d.name, int(uid), int(gid), unix.AT_SYMLINK_NOFOLLOW))
	}
	fd, err := c.opener.open(dir, d.name, 0)
	if err != nil {
		return gone(err)
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
