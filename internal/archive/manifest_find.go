package archive

import (
	"fmt"
	"io/fs"
	"sort"
	"strings"
)

// find returns the entry of a name, which is expected to be of a file or link.
func (m *Manifest) find(name string) (*generationEntry, error) {
	block, err := m.blockOf(name, false)
	if err != nil {
		return nil, err
	}
	for e, err := range m.entriesFrom(block) {
		if err != nil || e.name == name {
			return e, err
		}
	}
	return nil, corrupted("block %d of the manifest has no entry %s", block, quoted(name))
}

// blockOf returns the number of the block that has the entry of a name. It decodes no entry, but the names of
// blocks: first those where the name is if all blocks are in the order of walkedBefore, which large folders and
// changes during the walk disturb. folder is what the entry is expected to be.
func (m *Manifest) blockOf(name string, folder bool) (int, error) {
	z, err := newInflater(maxBlockSize)
	if err != nil {
		return 0, err
	}
	defer z.Close()
	starts := make([]int, len(m.s.blocks)+1)
	for i, n := range m.s.blocks {
		starts[i+1] = starts[i] + n
	}
	read := func(i int) (*blockReader, error) {
		raw, err := z.DecodeAll(m.b[starts[i]:starts[i+1]], nil)
		if err != nil {
			return nil, err
		}
		return newBlockReader(raw, m, nil)
	}
	var expected *blockReader
	number := sort.Search(len(m.s.blocks), func(i int) bool {
		r, err := read(i)
		if err != nil {
			return true // the loop below finds it
		}
		if first, isFolder := r.first(); first != name && !walkedBefore(first, isFolder, name, folder) {
			return true
		}
		expected = r
		return false
	}) - 1
	if expected != nil {
		if has, err := expected.has(name); has && err == nil {
			return number, nil
		}
	}
	total := int64(0)
	for i := range m.s.blocks {
		r, err := read(i)
		if err != nil {
			return 0, corrupted("block %d of the manifest: %w", i, err)
		}
		total += r.left
		if has, err := r.has(name); err != nil {
			return 0, corrupted("block %d of the manifest: %w", i, err)
		} else if has {
			return i, nil
		}
	}
	if total != m.s.Entries {
		return 0, corrupted("manifest has %d entries, want %d", total, m.s.Entries)
	}
	return 0, fmt.Errorf("%s: %w", quoted(name), fs.ErrNotExist)
}

// first returns the name of the first entry of a block, and whether it is a folder.
func (r *blockReader) first() (name string, folder bool) {
	kinds, lengths, text := r.cols[colKind], r.cols[colName], r.cols[colText]
	lengths.number(0)
	kind := kinds.text(1)
	return string(text.text(lengths.number(maxHeader))), len(kind) == 1 && kind[0] == kindFolder
}

// has reports whether the block has an entry of this name. It can be called before next.
func (r *blockReader) has(name string) (bool, error) {
	kinds, lengths, text := r.cols[colKind], r.cols[colName], r.cols[colText]
	same := 0 // first bytes that the names of the present entry and the wanted one have in common
	last := 0 // length of the present entry's name
	for range r.left {
		shared := int(lengths.number(int64(last)))
		rest := text.text(lengths.number(maxHeader))
		if last = shared + len(rest); shared <= same {
			for same = shared; same < min(last, len(name)) && rest[same-shared] == name[same]; same++ {
			}
		}
		kind := kinds.text(1)
		if len(kind) == 0 || lengths.bad || text.bad {
			return false, errManifest
		}
		if same == last && last == len(name) {
			return true, nil
		}
		if kind[0] == kindSymlink || kind[0] == kindHardLink {
			text.text(lengths.number(maxHeader))
		}
	}
	return false, nil
}

// walkedBefore reports whether a walk of folders that are listed in one part comes to a before b: to a folder
// before its content, to the files of a folder before its folders, and to each of these in the order of the names.
func walkedBefore(a string, aFolder bool, b string, bFolder bool) bool {
	if a == "." || b == "." {
		return b != "."
	}
	same := 0
	for same < min(len(a), len(b)) && a[same] == b[same] {
		same++
	}
	switch {
	case same == len(a) && same < len(b) && b[same] == '/':
		return true
	case same == len(b) && same < len(a) && a[same] == '/':
		return false
	}
	same = strings.LastIndexByte(a[:same], '/') + 1
	aName, _, aMore := strings.Cut(a[same:], "/")
	bName, _, bMore := strings.Cut(b[same:], "/")
	if aFolder, bFolder = aFolder || aMore, bFolder || bMore; aFolder != bFolder {
		return bFolder
	}
	return aName < bName
}
