package archive

import (
	"cmp"
	"context"
	"crypto/sha256"
	"iter"
	"maps"
	"slices"
	"sort"

	"github.com/klauspost/compress/zstd"
)

const (
	// compactBelow is the share of a pack, in percent, below which what is needed of it is moved.
	compactBelow = 60
	// compactFrom is the share of all packs, in percent, that a compaction must free at least: it writes each manifest
	// that refers to one of its packs again.
	compactFrom = 8
)

// Compaction moves what generations need of packs that they need little of into new packs. Its packs are removed
// like all others: once no generation refers to them.
type Compaction struct {
	old   []*packUsage      // the packs that are to be removed
	packs []packInfo        // the new ones
	moved map[string][]move // of the old packs, by their names, sorted
}

// move is a chunk of an old pack, and where it is afterwards.
type move struct {
	segment       // in the content of the old pack
	pack    int   // in Compaction.packs
	to      int64 // in its content
}

// Compact returns the compaction that the packs need, or nil if they need none. It moves at most about so many bytes.
func (u *Usage) Compact(most int64) *Compaction {
	c := &Compaction{}
	total, free := int64(0), int64(0)
	for _, p := range slices.SortedFunc(maps.Values(u.packs), func(a, b *packUsage) int {
		return cmp.Or(cmp.Compare(float64(a.needed)/float64(a.size), float64(b.needed)/float64(b.size)), cmp.Compare(a.name(), b.name()))
	}) {
		total += p.size
		if p.needed*100 >= p.size*compactBelow {
			continue
		}
		free += p.size - p.needed
		if p.needed > most {
			continue
		}
		most -= p.needed
		c.old = append(c.old, p)
	}
	if len(c.old) == 0 || free*100 < total*compactFrom {
		return nil
	}
	// Chunks that were stored together stay together.
	slices.SortFunc(c.old, func(a, b *packUsage) int { return cmp.Compare(a.name(), b.name()) })
	return c
}

// Bytes is about how many bytes are moved.
func (c *Compaction) Bytes() (n int64) {
	for _, u := range c.old {
		n += u.needed
	}
	return n
}

// Store stores what is needed of the packs in new ones, whose names begin with that of a generation that no others have.
// It compares all that it reads with its digests. Content that a pack that stays has too is stored again, since nothing tells
// whether that pack is still intact.
func (c *Compaction) Store(ctx context.Context, generation string, get GetRange, put PutObject) error {
	s, err := newChunkStore(ctx, put, generation, 0, 1)
	if err != nil {
		return err
	}
	c.moved = map[string][]move{}
	if err := s.finish(c.copy(ctx, s, get)); err != nil {
		return err
	}
	ends := endsOf(s.packs)
	for _, moves := range c.moved {
		for i := range moves {
			m := &moves[i]
			m.pack = sort.Search(len(ends), func(i int) bool { return ends[i] > m.to })
			m.to -= ends[m.pack] - s.packs[m.pack].length
		}
	}
	c.packs = s.packs
	return nil
}

// copy adds the needed chunks of the old packs to s. The moves have an address of s, and no pack yet.
func (c *Compaction) copy(ctx context.Context, s *chunkStore, get GetRange) error {
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxFrame), zstd.WithDecoderMaxWindow(maxFrame))
	if err != nil {
		return err
	}
	defer z.Close()
	for _, u := range c.old {
		chunks, err := u.chunks(ctx, get)
		if err != nil {
			return err
		}
		var frame frameOf // the present one; at is in the content of the pack
		var content []byte
		next, offset := 0, int64(0)
		m := Manifest{s: summary{packs: []packInfo{*u.packInfo}}}
		for part, chunk := range u.neededOf(chunks) {
			for part.at >= frame.at+frame.length {
				frame = frameOf{offset: offset, at: frame.at + frame.length, packFrame: u.frames[next]}
				next, offset, content = next+1, offset+u.frames[next].size, nil
			}
			if content == nil {
				if content, err = m.frame(ctx, get, z, &frame, frame.length); err != nil {
					return err
				}
			}
			from := part.at - frame.at
			if part.length > frame.length-from {
				return corrupted("%s has a chunk in two frames", u.name())
			}
			b := content[from : from+part.length]
			if sha256.Sum256(b) != chunk.sum {
				return corrupted("digest of a chunk of %s differs", u.name())
			}
			at, err := s.add(chunk.sum, b)
			if err != nil {
				return err
			}
			c.moved[u.name()] = append(c.moved[u.name()], move{segment: part, to: at})
		}
	}
	return nil
}

// Affects reports whether a generation refers to packs that are to be removed.
func (c *Compaction) Affects(m *Manifest) bool {
	for name := range m.Packs() {
		if c.moved[name] != nil {
			return true
		}
	}
	return false
}

// Rewrite returns the manifest of a generation after Store, with its content.
func (c *Compaction) Rewrite(m *Manifest) (*Manifest, []byte, error) {
	packs := slices.Clone(m.s.packs)
	starts := make([]int64, len(c.packs)) // addresses
	end := int64(0)
	if n := len(m.ends); n > 0 {
		end = m.ends[n-1]
	}
	for i, p := range c.packs {
		starts[i] = end
		packs, end = append(packs, p), end+p.length
	}
	moved := make([][]move, len(m.s.packs))
	for i, p := range m.s.packs {
		if !p.gone {
			moved[i] = c.moved[p.name()]
		}
	}
	w, err := newManifestWriter(packs)
	if err != nil {
		return nil, nil, err
	}
	var header []byte
	for e, err := range m.entries() {
		if err != nil {
			return nil, nil, err
		}
		var segments []segment
		for _, s := range e.segments {
			for pack, part := range m.parts(s) {
				if moved[pack] == nil {
					segments = appendSegment(segments, segment{m.ends[pack] - m.s.packs[pack].length + part.at, part.length})
					continue
				}
				i := sort.Search(len(moved[pack]), func(i int) bool { return moved[pack][i].at+moved[pack][i].length > part.at })
				for ; part.length > 0; i++ {
					if i == len(moved[pack]) || moved[pack][i].at > part.at {
						return nil, nil, corrupted("%s is in a part of a pack that was not moved", quoted(e.name))
					}
					to := moved[pack][i]
					n := min(part.length, to.at+to.length-part.at)
					segments = appendSegment(segments, segment{starts[to.pack] + to.to + part.at - to.at, n})
					part.at, part.length = part.at+n, part.length-n
				}
			}
		}
		e.segments = segments
		if header, err = appendHeader(header[:0], &e.entry); err != nil {
			return nil, nil, failed(e.name, err)
		}
		w.headers.Write(header)
		if err := w.add(e); err != nil {
			return nil, nil, err
		}
	}
	s := m.s
	s.packs = nil
	b, err := w.finish(&s, nil)
	if err != nil {
		return nil, nil, err
	}
	rewritten, err := decodeManifest(b)
	if err == nil {
		err = rewritten.restorable()
	}
	if err == nil && (rewritten.s.headers != m.s.headers || rewritten.s.Totals != m.s.Totals) {
		err = corrupted("the entries of a manifest differ after its packs were replaced")
	}
	return rewritten, b, err
}

// Usage is what generations need of the packs that they share. The zero Usage is of none.
type Usage struct{ packs map[string]*packUsage }

// packUsage is what generations need of a pack.
type packUsage struct {
	*packInfo
	ranges []segment // of the pack's content, sorted, neither overlapping nor adjacent
	needed int64     // about how many bytes of the pack
}

// Add adds a generation.
func (u *Usage) Add(m *Manifest) error {
	if u.packs == nil {
		u.packs = map[string]*packUsage{}
	}
	of := make([]*packUsage, len(m.s.packs))
	for i, p := range m.s.packs {
		if p.gone {
			continue
		}
		if of[i] = u.packs[p.name()]; of[i] == nil {
			of[i] = &packUsage{packInfo: &p}
			u.packs[p.name()] = of[i]
		}
	}
	for e, err := range m.entries() {
		if err != nil {
			return err
		}
		for _, s := range e.segments {
			for pack, part := range m.parts(s) {
				if of[pack] == nil {
					return corrupted("%s is in a pack that the manifest does not have", quoted(e.name))
				}
				of[pack].ranges = appendSegment(of[pack].ranges, part)
			}
		}
	}
	for _, p := range of {
		if p != nil {
			p.ranges = union(p.ranges)
			p.needed = p.estimate()
		}
	}
	return nil
}

// Size returns the number and size of the packs, and about how many of their bytes are needed.
func (u *Usage) Size() (packs int, size, needed int64) {
	for _, p := range u.packs {
		size, needed = size+p.size, needed+p.needed
	}
	return len(u.packs), size, needed
}

// parts yields the packs that a segment is in, and where in their contents.
func (m *Manifest) parts(s segment) iter.Seq2[int, segment] {
	return func(yield func(int, segment) bool) {
		for i := sort.Search(len(m.ends), func(i int) bool { return m.ends[i] > s.at }); s.length > 0 && i < len(m.ends); i++ {
			n := min(s.length, m.ends[i]-s.at)
			if n > 0 && !yield(i, segment{s.at - (m.ends[i] - m.s.packs[i].length), n}) {
				return
			}
			s.at, s.length = s.at+n, s.length-n
		}
	}
}

// union sorts ranges, and joins those that overlap or are adjacent.
func union(ranges []segment) []segment {
	slices.SortFunc(ranges, func(a, b segment) int { return cmp.Compare(a.at, b.at) })
	joined := ranges[:0]
	for _, r := range ranges {
		if n := len(joined); n > 0 && r.at <= joined[n-1].at+joined[n-1].length {
			joined[n-1].length = max(joined[n-1].length, r.at+r.length-joined[n-1].at)
			continue
		}
		joined = append(joined, r)
	}
	return joined
}

// estimate returns about how many bytes are needed: of each frame and of the index the share that its content has.
func (u *packUsage) estimate() (needed int64) {
	content, at, next := int64(0), int64(0), 0
	for _, f := range u.frames {
		in := int64(0)
		for ; next < len(u.ranges) && u.ranges[next].at < at+f.length; next++ {
			r := u.ranges[next]
			in += min(r.at+r.length, at+f.length) - max(r.at, at)
			if r.at+r.length > at+f.length {
				break
			}
		}
		if f.length > 0 {
			needed += f.size * in / f.length
		}
		content, at = content+in, at+f.length
	}
	return needed + (u.size-u.indexAt())*content/max(u.length, 1)
}

// neededOf yields those chunks of the pack that are needed, and where they are in its content.
func (u *packUsage) neededOf(chunks []storedChunk) iter.Seq2[segment, storedChunk] {
	return func(yield func(segment, storedChunk) bool) {
		at, next := int64(0), 0
		for _, chunk := range chunks {
			length := int64(chunk.length)
			for next < len(u.ranges) && u.ranges[next].at+u.ranges[next].length <= at {
				next++
			}
			if next < len(u.ranges) && u.ranges[next].at < at+length && !yield(segment{at, length}, chunk) {
				return
			}
			at += length
		}
	}
}
