package archive

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"testing"
)

// manifestOf returns a manifest of empty files and links with these names.
func manifestOf(t *testing.T, names []string) *Manifest {
	t.Helper()
	w, err := newManifestWriter(nil)
	check(t, err)
	check(t, w.add(&generationEntry{entry: entry{name: ".", kind: kindFolder}}))
	for i, name := range names {
		e := generationEntry{entry: entry{name: name, kind: kindFile}}
		if i%3 == 0 {
			e.kind, e.link = kindSymlink, fmt.Sprint("target", i)
		}
		check(t, w.add(&e))
	}
	b, err := w.finish(&summary{Totals: Totals{Entries: int64(len(names)) + 1}}, nil)
	check(t, err)
	m, err := decodeManifest(b)
	check(t, err)
	return m
}

func TestFindInManifest(t *testing.T) {
	t.Parallel()
	var names []string
	for i := range 5*blockEntries + 7 {
		names = append(names, fmt.Sprintf("%06d", i))
	}
	// A walk lists a large folder in parts, which are in no order.
	parts := slices.Concat(names[3*blockEntries+50:], names[:2*blockEntries], names[2*blockEntries:3*blockEntries+50])
	for what, names := range map[string][]string{"one part": names, "parts": parts} {
		m := manifestOf(t, names)
		if n := len(m.s.blocks); n < 6 {
			t.Fatalf("%s: %d blocks", what, n)
		}
		for i := 0; i < len(names); i += 101 {
			e, err := m.find(names[i])
			if err != nil || e.name != names[i] || (e.kind == kindSymlink) != (i%3 == 0) {
				t.Fatalf("%s: %s: %+v, %v", what, names[i], e, err)
			}
		}
		for _, name := range []string{"", "0", "000000/x", "000000x", "999999", "target0"} {
			if e, err := m.find(name); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: %q is %+v, %v", what, name, e, err)
			}
		}
	}
}

func TestOrderOfWalk(t *testing.T) {
	t.Parallel()
	names := []string{".", "b", "d", "dd", "a/", "a/b", "a/c/", "a/c/d", "a-b/", "a-b/x", "c/", "c/z", "c/d/", "c/d/a"}
	kind := func(i int) (string, bool) {
		name := names[i]
		if folder := name[len(name)-1] == '/'; folder {
			return name[:len(name)-1], true
		}
		return name, name == "."
	}
	for i := range names {
		for j := range names {
			a, aFolder := kind(i)
			b, bFolder := kind(j)
			if got := walkedBefore(a, aFolder, b, bFolder); got != (i < j) {
				t.Errorf("%s before %s: %t", names[i], names[j], got)
			}
		}
	}
}
