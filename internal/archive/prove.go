package archive

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

const (
	// easyXattrs is the size of attributes that any file system with attributes
	// accepts, roughly: half of a block of 1 KiB.
	easyXattrs = 512
	// easyName and easyLink are lengths of a name and of a symbolic link's
	// target that any file system accepts.
	easyName = 143
	easyLink = 1000
	// provenMax is the number of remembered trials.
	provenMax = 64 << 10
)

// prover creates entries that a file system may refuse in a scratch folder on
// the file system of a restore, and removes them. Most homes have no such
// entries, and the folder is never opened.
type prover struct {
	dir string // empty: no trials

	mu     sync.Mutex
	opened bool
	fd     int
	err    error
	proven map[[32]byte]struct{}
	owner  owner
}

func (p *prover) close() {
	if p.opened && p.err == nil {
		unix.Close(p.fd)
	}
}

// delicate reports whether a file system may refuse the entry for its name,
// attributes or link target.
func delicate(e *entry, base string) bool {
	return delicateXattrs(e) || !plainName(base) || len(base) > easyName || len(e.link) > easyLink
}

func delicateXattrs(e *entry) bool {
	room := 0
	for _, x := range e.xattrs {
		if !strings.HasPrefix(x.name, "user.") { // ACLs and capabilities
			return true
		}
		room += len(x.name) + len(x.value) + 24
	}
	return room > easyXattrs
}

// plainName reports whether every Linux file system accepts a name; some
// require UTF-8, some refuse control characters.
func plainName(base string) bool {
	for i := range len(base) {
		if c := base[i]; c < ' ' || c == 0x7f || c == '\\' || c >= 0x80 {
			return utf8.ValidString(base) && strings.IndexFunc(base, func(r rune) bool {
				return r < ' ' || r == 0x7f || r == '\\'
			}) < 0
		}
	}
	return true
}

// prove returns ErrUnrestorable if the entry cannot be created in the scratch
// folder.
func (p *prover) prove(e *entry, base string) error {
	if p.dir == "" || !delicate(e, base) {
		return nil
	}
	// Each property is tried once; a name that is only long by another name of
	// its length.
	if plainName(base) {
		base = strings.Repeat("n", max(1, len(base)))
		if len(base) <= easyName {
			base = "n"
		}
	}
	key := proofKey(e, base)
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, done := p.proven[key]; done {
		return nil
	}
	if err := p.open(); err != nil {
		return err
	}
	if err := p.make(e, base); err != nil {
		return err
	}
	if len(p.proven) >= provenMax {
		clear(p.proven)
	}
	p.proven[key] = struct{}{}
	return nil
}

func proofKey(e *entry, base string) [32]byte {
	h := sha256.New()
	put := func(b []byte) {
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(b))))
		h.Write(b)
	}
	var fixed []byte
	for _, n := range []uint32{uint32(e.kind), e.mode, e.uid, e.gid, uint32(len(e.link))} {
		fixed = binary.LittleEndian.AppendUint32(fixed, n)
	}
	put(fixed)
	put([]byte(base))
	for _, x := range e.xattrs {
		put([]byte(x.name))
		put(x.value)
	}
	return [32]byte(h.Sum(nil))
}

func (p *prover) open() error {
	if p.opened {
		return p.err
	}
	p.opened, p.proven, p.owner = true, map[[32]byte]struct{}{}, currentOwner()
	p.fd, p.err = unix.Open(p.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if p.err != nil {
		p.err = fmt.Errorf("open scratch folder: %w", p.err)
		return p.err
	}
	if p.err = clearAttributes(p.fd); p.err != nil {
		unix.Close(p.fd)
		p.err = fmt.Errorf("prepare scratch folder: %w", p.err)
	}
	return p.err
}

// make creates the entry as Unpack would, and removes it.
func (p *prover) make(e *entry, base string) error {
	// A killed process may have left it.
	p.remove(base)
	defer p.remove(base)
	if e.kind == kindSymlink {
		err := unix.Symlinkat(e.link, p.fd, base)
		if err == nil && p.owner.must(e) {
			err = unix.Fchownat(p.fd, base, int(e.uid), int(e.gid), unix.AT_SYMLINK_NOFOLLOW)
		}
		return p.refused(err)
	}
	flags, err := unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, error(nil)
	if e.kind == kindFolder {
		flags, err = unix.O_RDONLY|unix.O_DIRECTORY, unix.Mkdirat(p.fd, base, 0o700)
	}
	if err != nil {
		return p.refused(fmt.Errorf("create: %w", err))
	}
	fd, err := unix.Openat(p.fd, base, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return p.refused(fmt.Errorf("create: %w", err))
	}
	defer unix.Close(fd)
	if err := p.owner.apply(fd, e); err != nil {
		return p.refused(err)
	}
	return p.compare(fd, e)
}

func (p *prover) remove(base string) {
	if err := unix.Unlinkat(p.fd, base, 0); err != nil {
		_ = unix.Unlinkat(p.fd, base, unix.AT_REMOVEDIR)
	}
}

// compare checks that the file system kept the attributes.
func (p *prover) compare(fd int, e *entry) error {
	var st unix.Stat_t
	if err := fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&0o7777 != e.mode || st.Uid != e.uid || st.Gid != e.gid {
		return fmt.Errorf("%w: a restore would change its mode or owner (%04o, %d, %d)", ErrUnrestorable, st.Mode&0o7777, st.Uid, st.Gid)
	}
	got, err := readXattrs(fd)
	if err != nil {
		return err
	}
	for _, x := range e.xattrs {
		kept := false
		for _, y := range got {
			kept = kept || x.name == y.name && bytes.Equal(x.value, y.value)
		}
		if !kept {
			return fmt.Errorf("%w: a restore would lose its attribute %q", ErrUnrestorable, x.name)
		}
	}
	return nil
}

// refused returns ErrUnrestorable for a refused entry. A full or broken disk,
// or a removed scratch folder, proves nothing about the entry.
func (p *prover) refused(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESTALE), errors.Is(err, unix.EIO), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EROFS), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return fmt.Errorf("trial restore: %w", err)
	case errors.Is(err, unix.EDQUOT), errors.Is(err, unix.ENOSPC) && p.full():
		return fmt.Errorf("trial restore: the disk is full: %w", err)
	}
	return fmt.Errorf("%w: the file system refuses to restore it: %w", ErrUnrestorable, err)
}

// full reports whether the file system has too little space for any file.
func (p *prover) full() bool {
	const little = 1 << 20
	var st unix.Statfs_t
	if unix.Fstatfs(p.fd, &st) != nil {
		return true
	}
	return int64(st.Bavail)*st.Bsize < little || st.Files > 0 && st.Ffree == 0
}
