package archive

import (
	"errors"
	"hash/maphash"
	"io/fs"
	"iter"

	"golang.org/x/sys/unix"
)

// Changes are the differences between two generations, in files.
type Changes struct {
	Added, Changed, Removed int64
	Bytes                   int64 // content of the added and changed files
}

// DifferenceKind is what happened to a file between two generations.
type DifferenceKind int

const (
	Added DifferenceKind = iota
	Modified
	Removed
)

// Difference is a file, link or hard link that differs between two generations. Folders are left out.
type Difference struct {
	Kind  DifferenceKind
	Entry Entry // of a removed one, that of the former generation
	bytes int64 // content
}

// Differences yields what changed since a former generation; nil: since there was nothing. The removed files
// are the last. It ends after the first error, and needs 24 bytes of memory for each file of the former one.
func (m *Manifest) Differences(former *Manifest) iter.Seq2[Difference, error] {
	return func(yield func(Difference, error) bool) {
		seed := maphash.MakeSeed()
		if former == nil {
			former = &Manifest{}
		}
		files := make(map[uint64]uint64, min(former.s.Files, 1<<20))
		for e, err := range former.entries() {
			if err != nil {
				yield(Difference{}, err)
				return
			}
			if e.kind != kindFolder {
				files[maphash.String(seed, e.name)] = e.state(seed)
			}
		}
		for e, err := range m.entries() {
			if err != nil {
				yield(Difference{}, err)
				return
			}
			if e.kind == kindFolder {
				continue
			}
			id := maphash.String(seed, e.name)
			was, ok := files[id]
			delete(files, id)
			d := Difference{Kind: Modified}
			switch {
			case !ok:
				d.Kind = Added
			case was == e.state(seed):
				continue
			}
			if d.Entry, d.bytes = e.public(), e.stored(); !yield(d, nil) {
				return
			}
		}
		if len(files) == 0 {
			return
		}
		for e, err := range former.entries() {
			if err != nil {
				yield(Difference{}, err)
				return
			}
			if e.kind == kindFolder {
				continue
			}
			if _, ok := files[maphash.String(seed, e.name)]; ok && !yield(Difference{Removed, e.public(), e.stored()}, nil) {
				return
			}
		}
	}
}

// content is what Differences compares of an entry.
type content struct {
	kind           byte
	mode, uid, gid uint32
	size           int64
	mtime          unix.Timespec
	link           string
	places         int64
}

func (e *generationEntry) content() content {
	x := content{e.kind, e.mode, e.uid, e.gid, e.size, e.mtime, e.link, 0}
	for _, s := range e.segments {
		x.places = 31*x.places + s.at
	}
	return x
}

// state is a digest of the entry's content.
func (e *generationEntry) state(seed maphash.Seed) uint64 {
	return maphash.Comparable(seed, e.content())
}

// Version is a file or link as a generation has it. The zero Version is none.
type Version struct {
	Entry   Entry
	content content
}

// Same reports whether two generations have the same version, by what Differences compares.
func (v Version) Same(other Version) bool { return v.content == other.content }

// Exists reports whether the generation has the file.
func (v Version) Exists() bool { return v.content != content{} }

// Version returns the file or link with this name. A hard link is the file that it is to, and a folder is none.
func (m *Manifest) Version(name string) (Version, error) {
	e, err := m.find(name)
	if err == nil && e.kind == kindHardLink {
		e, err = m.find(e.link)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Version{}, nil
	case err != nil || e.kind == kindFolder:
		return Version{}, err
	}
	v := Version{e.public(), e.content()}
	v.Entry.Name = name
	return v, nil
}

// Compare returns how much changed since a former generation. See Differences.
func (m *Manifest) Compare(former *Manifest) (c Changes, err error) {
	for d, err := range m.Differences(former) {
		if err != nil {
			return Changes{}, err
		}
		c.Add(d)
	}
	return c, nil
}

// Add counts a difference.
func (c *Changes) Add(d Difference) {
	switch d.Kind {
	case Added:
		c.Added++
	case Modified:
		c.Changed++
	case Removed:
		c.Removed++
		return
	}
	c.Bytes += d.bytes
}
