package archive

import (
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxExtents limits the map of a sparse file. In a file with more, the smallest
// holes are stored as zeros.
const maxExtents = 1 << 17

// findExtents returns the data ranges of a file of this size, or nil if it has
// no holes. It moves the file's offset.
func findExtents(fd int, size int64) ([]extent, error) {
	extents := []extent{}
	smallest := int64(1) // holes shorter than this count as data
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
		extents = append(extents, extent{from, to - from})
		for len(extents) > maxExtents {
			smallest = max(smallest*2, 4096)
			extents = mergeExtents(extents, smallest)
		}
		at = to
	}
	if smallest > 1 {
		extents = mergeExtents(extents, smallest)
	}
	if len(extents) == 1 && extents[0] == (extent{0, size}) {
		return nil, nil
	}
	return extents, nil
}

// mergeExtents joins extents with holes between them shorter than smallest.
func mergeExtents(extents []extent, smallest int64) []extent {
	kept := extents[:1]
	for _, x := range extents[1:] {
		last := &kept[len(kept)-1]
		if x.offset-(last.offset+last.length) < smallest {
			last.length = x.offset + x.length - last.offset
			continue
		}
		kept = append(kept, x)
	}
	return kept
}

// appendSparseMap appends the map that stands before the data of a sparse
// file: in decimal lines the number of extents, then offset and length of
// each, padded to a block. A hole at the end is an empty extent at the end.
func appendSparseMap(b []byte, e *entry) []byte {
	start := len(b)
	extents := e.extents
	end := int64(0)
	if n := len(extents); n > 0 {
		end = extents[n-1].offset + extents[n-1].length
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
					return 0, err
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
