package archive

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// A file with more extents than a map may have keeps its largest holes, and no more holes are
// filled than needed.
func TestReduceExtents(t *testing.T) {
	t.Parallel()
	in := []extent{{0, 10}, {12, 3}, {100, 1}, {105, 5}, {1000, 1}}
	for most, want := range map[int][]extent{
		5: in,
		4: {{0, 15}, {100, 1}, {105, 5}, {1000, 1}},
		3: {{0, 15}, {100, 10}, {1000, 1}},
		1: {{0, 1001}},
	} {
		l := extentList{most: most, extents: slices.Clone(in)}
		l.reduce()
		if diff := cmp.Diff(want, l.extents, cmp.AllowUnexported(extent{})); diff != "" {
			t.Errorf("at most %d:\n%s", most, diff)
		}
	}

	const most = 100
	random := rand.New(rand.NewPCG(1, 2))
	for name, hole := range map[string]func() int64{
		"equal":  func() int64 { return 100 << 20 },
		"few":    func() int64 { return 1 + random.Int64N(3) },
		"random": func() int64 { return 1 + random.Int64N(1<<30) },
	} {
		for _, n := range []int{most, most + 1, most + 2, 3 * most, 7*most + 13} {
			l := extentList{most: most}
			var holes []int64
			var end, data int64
			for i := range n {
				if i > 0 {
					holes = append(holes, hole())
					end += holes[i-1]
				}
				l.add(extent{end, 4096})
				end += 4096
				data += 4096
			}
			l.reduce()
			slices.Sort(holes)
			var filled, stored int64
			for _, h := range holes[:n-most] {
				filled += h
			}
			for _, x := range l.extents {
				stored += x.length
			}
			if len(l.extents) != most || l.filled != filled || stored != data+filled || l.extents[most-1].end() != end {
				t.Errorf("%s, %d: %d extents with %d bytes, %d of them of holes; want %d extents, %d bytes and %d", name, n, len(l.extents), stored, l.filled, most, data+filled, filled)
			}
		}
	}
}

// sparseExtents returns the extents, at most 100, of a file with so many blocks of data, one in
// each step.
func sparseExtents(t *testing.T, blocks int, step int64) ([]extent, error) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	check(t, err)
	defer f.Close()
	for i := range blocks {
		_, err := f.WriteAt(make([]byte, 4096), int64(i)*step)
		check(t, err)
	}
	var st unix.Stat_t
	check(t, fstat(int(f.Fd()), &st))
	return findExtents(int(f.Fd()), &st, 100)
}

// A file with slightly more ranges of data than its map may have is archived at about its size.
// One whose archive would be far larger than the file is refused.
func TestFindExtentsOfFileWithMany(t *testing.T) {
	t.Parallel()
	got, err := sparseExtents(t, 102, 1<<20)
	check(t, err)
	var stored int64
	for _, x := range got {
		stored += x.length
	}
	if len(got) != 100 || stored > 102*4096+2<<20 {
		t.Errorf("%d extents with %d bytes of a file with %d bytes of data", len(got), stored, 102*4096)
	}
	for _, blocks := range []int{111, 400} {
		if got, err := sparseExtents(t, blocks, 100<<20); !errors.Is(err, ErrUnrestorable) {
			t.Errorf("%d blocks: %d extents, %v, want ErrUnrestorable", blocks, len(got), err)
		}
	}
}

// A file of a size that readers of the archive would refuse is refused by its name.
func TestPackRefusesHugeFile(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("/dev/shm", "codehub-huge-") // ext4 has no files of this size
	check(t, err)
	t.Cleanup(func() { check(t, os.RemoveAll(dir)) })
	home, restored := filepath.Join(dir, "home"), filepath.Join(dir, "restored")
	check(t, os.Mkdir(home, 0o700))
	check(t, os.Mkdir(restored, 0o700))
	file := filepath.Join(home, "huge")
	check(t, os.WriteFile(file, []byte("x"), 0o600))
	check(t, os.Truncate(file, maxFileSize))
	stats, b := packWith(t, home, PackOptions{})
	_, err = Unpack(t.Context(), bytes.NewReader(b), restored, UnpackOptions{Expect: metaOf(stats)})
	check(t, err)
	for _, size := range []int64{maxFileSize + 1, 1 << 60, 1<<63 - 4096} {
		check(t, os.Truncate(file, size))
		if _, err := Pack(t.Context(), home, &bytesWriter{}, PackOptions{}); !errors.Is(err, ErrUnrestorable) || !strings.Contains(err.Error(), `"huge"`) {
			t.Errorf("%d bytes: %v, want ErrUnrestorable with the name", size, err)
		}
	}
}

// A sparse file that was cut short while it was read ends with the last data that was read.
func TestSparseFileCutShort(t *testing.T) {
	t.Parallel()
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	check(t, err)
	defer f.Close()
	check(t, f.Truncate(1<<20))
	for read, want := range map[int64]entry{
		0:    {extents: []extent{}},
		100:  {size: 100, extents: []extent{{0, 100}}},
		4096: {size: 4096, extents: []extent{{0, 4096}}},
		4097: {size: 8193, extents: []extent{{0, 4096}, {8192, 1}}},
	} {
		it := &item{fd: int(f.Fd()), entry: entry{name: "file", kind: kindFile, size: 1 << 20, extents: []extent{{0, 4096}, {8192, 4096}}}}
		check(t, it.ended(read, true))
		if !it.changed || it.size != want.size || it.stored() != read || !slices.Equal(it.extents, want.extents) {
			t.Errorf("%d bytes were read: size %d, extents %v", read, it.size, it.extents)
		}
		w, err := newManifestWriter(nil)
		check(t, err)
		e := &generationEntry{entry: it.entry}
		if read > 0 {
			e.segments = []segment{{0, read}}
		}
		check(t, w.add(e))
		b, err := w.finish(&summary{Totals: Totals{Entries: 1}}, []packInfo{{gone: true, length: 1 << 20}})
		check(t, err)
		m, err := ReadManifest(bytes.NewReader(b))
		check(t, err)
		for _, err := range m.entries() {
			check(t, err)
		}
	}
}
