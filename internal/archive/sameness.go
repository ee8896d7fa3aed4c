package archive

import (
	"bytes"
	"iter"
	"slices"
	"strings"
)

// sameness compares the entries of a backup with those of the former generation, in their order. A folder
// that did not change is listed in the same order.
type sameness struct {
	next func() (*generationEntry, error, bool)
	stop func()
	not  bool // a difference was found
}

func newSameness(former *Manifest) *sameness {
	s := &sameness{}
	s.next, s.stop = iter.Pull2(former.entries())
	return s
}

func (s *sameness) add(e *generationEntry) {
	if s.not {
		return
	}
	was, err, ok := s.next()
	s.not = !ok || err != nil || !unchanged(e, was)
}

// whole reports whether the former generation has the same entries and no others.
func (s *sameness) whole() bool {
	if s.not {
		return false
	}
	_, err, more := s.next()
	return err == nil && !more
}

// unchanged reports whether an entry needs no new generation. One by which the next backup does not
// have to read a file again is needed: after a restore every file has a new inode.
func unchanged(e, was *generationEntry) bool {
	if e.settled && was.settled && (e.inode != was.inode || e.ctime != was.ctime) {
		return false
	}
	return e.name == was.name && e.changed == was.changed && sameAttributes(&e.entry, &was.entry) &&
		slices.Equal(e.extents, was.extents) && slices.Equal(merged(e.segments), merged(was.segments))
}

// sameAttributes compares what a restore sets, except for the times of access and for the content.
func sameAttributes(a, b *entry) bool {
	return a.kind == b.kind && a.mode == b.mode && a.uid == b.uid && a.gid == b.gid && a.size == b.size && a.mtime == b.mtime &&
		a.link == b.link && slices.EqualFunc(sorted(a.xattrs), sorted(b.xattrs), func(a, b xattr) bool {
		return a.name == b.name && bytes.Equal(a.value, b.value)
	})
}

// sorted returns attributes in the order of their names: file systems list them in different ones.
func sorted(xs []xattr) []xattr {
	if len(xs) < 2 {
		return xs
	}
	return slices.SortedFunc(slices.Values(xs), func(a, b xattr) int { return strings.Compare(a.name, b.name) })
}

// merged joins segments that follow each other.
func merged(segments []segment) []segment {
	if len(segments) < 2 {
		return segments
	}
	var all []segment
	for _, s := range segments {
		all = appendSegment(all, s)
	}
	return all
}

func appendSegment(all []segment, s segment) []segment {
	if n := len(all); n > 0 && all[n-1].at+all[n-1].length == s.at {
		all[n-1].length += s.length
		return all
	}
	return append(all, s)
}
