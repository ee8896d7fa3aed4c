package archive

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
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
