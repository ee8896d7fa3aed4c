package archive

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	// maxExtents limits the map of a sparse file. In a file with more, the smallest
	// holes are stored as zeros.
	maxExtents = 1 << 17
	// maxFilled is how many bytes of holes may be stored in any file, in a larger file
	// an eighth of its data.
	maxFilled = 1 << 30
)

// findExtents returns the data ranges of a file with these sizes, at most so many, or
// nil if it has no holes. It moves the file's offset.
func findExtents(fd int, st *unix.Stat_t, most int) ([]extent, error) {
	size, mostFilled := st.Size, max(maxFilled, st.Blocks*512/8)
	l := extentList{most: most, extents: []extent{}}
	for at := int64(0); at < size; {
		from, err := unix.Seek(fd, at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // nothing but a hole up to the end
		}
		if errors.Is(err, unix.EINVAL) {
			return nil, nil // not supported by this file system
		}
		if err != nil {
			return nil, fmt.Errorf("find data: %w", err)
		}
		to, err := unix.Seek(fd, from, unix.SEEK_HOLE)
		if err != nil {
			return nil, fmt.Errorf("find hole: %w", err)
		}
		to = min(to, size)
		if from < at || to <= from {
			return nil, fmt.Errorf("%w: holes moved", ErrChanged)
		}
		l.add(extent{from, to - from})
		if l.filled > mostFilled {
			return nil, errFilled(most, mostFilled)
		}
		at = to
	}
	if l.reduce(); l.filled > mostFilled {
		return nil, errFilled(most, mostFilled)
	}
	if l.filled > 0 {
		l.extents = slices.Clone(l.extents) // frees the rest of the array
	}
	if len(l.extents) == 1 && l.extents[0] == (extent{0, size}) {
		return nil, nil
	}
	return l.extents, nil
}

func errFilled(most int, mostFilled int64) error {
	return fmt.Errorf("%w: the file has more than %d ranges of data, and an archive without the smallest holes between them would be more than %d bytes larger than the data",
		ErrUnrestorable, most, mostFilled)
}

// extentList collects the extents of a file in their order, and keeps the largest
// holes between them.
type extentList struct {
	most    int // how many extents reduce leaves
	extents []extent
	filled  int64 // bytes of the holes that are no longer between extents
	holes   []int64
}

func (l *extentList) add(x extent) {
	l.extents = append(l.extents, x)
	// A hole that is among the smallest ones here is so in the whole file.
	if len(l.extents) > l.most+l.most/2 {
		l.reduce()
	}
}

// reduce joins the extents with the smallest holes between them, as many as needed.
func (l *extentList) reduce() {
	excess := len(l.extents) - l.most
	if excess <= 0 {
		return
	}
	l.holes = l.holes[:0]
	for i, x := range l.extents[1:] {
		l.holes = append(l.holes, x.offset-l.extents[i].end())
	}
	slices.Sort(l.holes)
	largest := l.holes[excess-1] // of those to fill
	below, _ := slices.BinarySearch(l.holes, largest)
	equal := excess - below // how many of this size to fill
	kept := l.extents[:1]
	for _, x := range l.extents[1:] {
		last := &kept[len(kept)-1]
		n := x.offset - last.end()
		if n > largest || n == largest && equal == 0 {
			kept = append(kept, x)
			continue
		}
		if n == largest {
			equal--
		}
		l.filled += n
		last.length += n + x.length
	}
	l.extents = kept
}

// appendSparseMap appends the map that stands before the data of a sparse
// file: in decimal lines the number of extents, then offset and length of
// each, padded to a block. A hole at the end is an empty extent at the end.
func appendSparseMap(b []byte, e *entry) []byte {
	start := len(b)
	extents := e.extents
	end := int64(0)
	if n := len(extents); n > 0 {
		end = extents[n-1].end()
	}
	if end < e.size || len(extents) == 0 {
		extents = append(extents[:len(extents):len(extents)], extent{e.size, 0})
	}
	line := func(n int64) { b = append(strconv.AppendInt(b, n, 10), '\n') }
	line(int64(len(extents)))
	for _, x := range extents {
		line(x.offset)
		line(x.length)
	}
	return appendZeros(b, padding(int64(len(b)-start)))
}

// readSparseMap reads the map off the content of a sparse file of this size,
// and returns how long it was. Empty extents are left out.
func readSparseMap(next func() ([]byte, error), size, stored int64) ([]extent, int64, error) {
	var block []byte
	var length int64
	number := func() (int64, error) {
		var n int64
		for digits := 0; ; digits++ {
			if len(block) == 0 {
				if stored-length < blockSize {
					return 0, corrupted("map of a sparse file is cut short")
				}
				var err error
				if block, err = next(); err != nil {
					return 0, cutShort(err)
				}
				length += blockSize
			}
			c := block[0]
			block = block[1:]
			switch {
			case c == '\n' && digits > 0:
				return n, nil
			case c < '0' || c > '9' || digits >= 18:
				return 0, corrupted("malformed map of a sparse file")
			}
			n = n*10 + int64(c-'0')
		}
	}
	count, err := number()
	if err != nil {
		return nil, 0, err
	}
	if count > maxExtents+1 {
		return nil, 0, corrupted("sparse file of %d extents", count)
	}
	extents := []extent{}
	var end, data int64
	for range count {
		offset, err := number()
		if err != nil {
			return nil, 0, err
		}
		n, err := number()
		if err != nil {
			return nil, 0, err
		}
		if offset < end || offset > size || n > size-offset {
			return nil, 0, corrupted("extents of a sparse file overlap or leave it")
		}
		if n > 0 {
			extents = append(extents, extent{offset, n})
		}
		end, data = offset+n, data+n
	}
	if data != stored-length {
		return nil, 0, corrupted("sparse file holds %d bytes where its map says %d", stored-length, data)
	}
	return extents, length, nil
}
