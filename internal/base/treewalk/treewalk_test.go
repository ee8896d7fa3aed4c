package treewalk

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// recorder counts the visits of each path, which it knows from the folders, and calls at before each.
type recorder struct {
	at     func(name string) error
	path   []string
	visits map[string]int
}

func (r *recorder) visit(name string) error {
	r.visits[filepath.Join(strings.Join(r.path, "/"), name)]++
	if r.at != nil {
		return r.at(name)
	}
	return nil
}

func (r *recorder) Folder(w *Walk, _ *Dir, _ *unix.Stat_t) error {
	above, base := w.Above()
	if above == nil {
		return r.visit(".")
	}
	err := r.visit(base)
	r.path = append(r.path, base)
	return err
}

// Leaf makes the next reads of listings shorter or longer, as signals do.
func (r *recorder) Leaf(w *Walk, _ *Dir, e Entry) error {
	w.buf = w.buf[:min(1000+len(r.visits)%5*5000, cap(w.buf))]
	return r.visit(e.Name)
}

func (r *recorder) Leave(_ *Walk, above *Dir, base string) error {
	if above == nil {
		return nil
	}
	if last := r.path[len(r.path)-1]; last != base {
		return fmt.Errorf("left %q, not %q", base, last)
	}
	r.path = r.path[:len(r.path)-1]
	return nil
}

func visit(t *testing.T, top string, o Options, at func(name string) error) (map[string]int, error) {
	t.Helper()
	fd, err := Open(unix.AT_FDCWD, top, unix.O_DIRECTORY)
	check(t, err)
	defer unix.Close(fd)
	r := &recorder{at: at, visits: map[string]int{}}
	err = Visit(t.Context(), fd, r, o)
	return r.visits, err
}

// A folder's listing is read in parts, and distant parents are closed: their remaining folders
// are still visited.
func TestVisitsAllOnce(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	want := []string{"."}
	long := strings.Repeat("n", 200)
	add := func(dir string) {
		check(t, os.Mkdir(filepath.Join(home, dir), 0o755))
		want = append(want, dir)
	}
	// At each of three depths, more folders than one part of a listing.
	deep := ""
	for depth := range 3 * OpenFolders {
		if depth%OpenFolders == 1 {
			for i := range 600 {
				add(filepath.Join(deep, fmt.Sprintf("%04d-%s", i, long)))
				if i%3 == 0 {
					file := filepath.Join(deep, fmt.Sprintf("%04d-file-%s", i, long))
					check(t, os.WriteFile(filepath.Join(home, file), nil, 0o644))
					want = append(want, file)
				}
			}
			deep = filepath.Join(deep, fmt.Sprintf("%04d-%s", 200, long))
			continue
		}
		deep = filepath.Join(deep, "d")
		add(deep)
	}
	slices.Sort(want)
	for _, changing := range []bool{false, true} {
		visits, err := visit(t, home, Options{Changing: changing}, nil)
		check(t, err)
		if got := slices.Sorted(maps.Keys(visits)); !slices.Equal(got, want) {
			t.Errorf("%d entries were visited, want %d (changing: %v)", len(got), len(want), changing)
		}
		for name, n := range visits {
			if n != 1 {
				t.Errorf("%s was visited %d times (changing: %v)", name, n, changing)
			}
		}
	}
}

// A link is not followed, also if it takes the place of a folder that was listed.
func TestFollowsNoLink(t *testing.T) {
	t.Parallel()
	for _, changing := range []bool{false, true} {
		home, outside := t.TempDir(), t.TempDir()
		check(t, os.WriteFile(filepath.Join(outside, "secret"), nil, 0o600))
		check(t, os.Symlink(outside, filepath.Join(home, "a-link")))
		check(t, os.Mkdir(filepath.Join(home, "folder"), 0o755))
		visits, err := visit(t, home, Options{Changing: changing}, func(name string) error {
			if name != "a-link" {
				return nil
			}
			return errors.Join(os.Remove(filepath.Join(home, "folder")), os.Symlink(outside, filepath.Join(home, "folder")))
		})
		if errors.Is(err, ErrChanged) == changing || changing && err != nil {
			t.Errorf("Visit = %v (changing: %v)", err, changing)
		}
		if len(visits) != 2 {
			t.Errorf("visited %v (changing: %v)", visits, changing)
		}
	}
}

// What disappears or appears is ErrChanged, unless the tree may change. A folder that is moved
// while those in it are visited always is: the walk does not go on elsewhere.
func TestChanges(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("d/", 2*OpenFolders) + "bottom"
	for name, tc := range map[string]struct {
		change func(home, elsewhere string) error
		always bool
	}{
		"a folder is removed": {func(home, _ string) error { return os.Remove(filepath.Join(home, "z")) }, false},
		"a file is made":      {func(home, _ string) error { return os.WriteFile(filepath.Join(home, "new"), nil, 0o600) }, false},
		"all is removed":      {func(home, _ string) error { return os.RemoveAll(filepath.Join(home, "d")) }, false},
		"a folder is moved": {func(home, elsewhere string) error {
			return os.Rename(filepath.Join(home, strings.Repeat("d/", 10)), filepath.Join(elsewhere, "moved"))
		}, true},
	} {
		for _, changing := range []bool{false, true} {
			home, elsewhere := t.TempDir(), t.TempDir()
			check(t, os.MkdirAll(filepath.Join(home, deep), 0o755))
			check(t, os.Mkdir(filepath.Join(home, "z"), 0o755))
			visits, err := visit(t, home, Options{Changing: changing}, func(name string) error {
				if name == "bottom" {
					return tc.change(home, elsewhere)
				}
				return nil
			})
			if want := tc.always || !changing; errors.Is(err, ErrChanged) != want || err != nil && !want {
				t.Errorf("%s: Visit = %v (changing: %v), visited %d", name, err, changing, len(visits))
			}
		}
	}
}

// A walk that may forget its outermost folders visits all that is below, and does not go back.
func TestForgetsOutermostFolders(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	const levels = 2 * OpenFolders
	for _, depth := range []int{2*levels - 2, 10 * levels} {
		dir := filepath.Join(home, fmt.Sprint(depth))
		check(t, os.MkdirAll(filepath.Join(dir, strings.Repeat("d/", depth)), 0o755))
		n := 0
		_, err := visit(t, dir, Options{Changing: true, MaxLevels: levels}, func(string) error { n++; return nil })
		if want := depth > 2*levels; errors.Is(err, ErrChanged) != want || n != depth+1 {
			t.Errorf("%d levels: visited %d, %v", depth, n, err)
		}
	}
}

func TestEndsWithContext(t *testing.T) {
	t.Parallel()
	fd, err := Open(unix.AT_FDCWD, t.TempDir(), unix.O_DIRECTORY)
	check(t, err)
	defer unix.Close(fd)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	cancel(cause)
	if err := Visit(ctx, fd, &recorder{visits: map[string]int{}}, Options{}); !errors.Is(err, cause) {
		t.Errorf("Visit = %v", err)
	}
}

// The folder with the name Last is visited after its siblings, also if the folder above was closed meanwhile.
func TestLastFolder(t *testing.T) {
	t.Parallel()
	for _, changing := range []bool{false, true} {
		top := t.TempDir()
		for _, name := range []string{"a", "last/inner", "last/last", "x" + strings.Repeat("/deep", OpenFolders+1), "z"} {
			check(t, os.MkdirAll(filepath.Join(top, name), 0o700))
		}
		check(t, os.WriteFile(filepath.Join(top, "z", "file"), nil, 0o600))
		var order []string
		visits, err := visit(t, top, Options{Changing: changing, Last: "last"}, func(name string) error {
			if name != "deep" {
				order = append(order, name)
			}
			return nil
		})
		check(t, err)
		if got := strings.Join(order, " "); got != ". a x z file last inner last" || len(visits) != 9+OpenFolders {
			t.Errorf("changing %v: visited %s, %d", changing, got, len(visits))
		}
	}
}
