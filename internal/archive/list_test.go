package archive

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// The pages of a folder have each of its entries once, folders first.
func TestListHasPages(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	folder := filepath.Join(home, "a", "b")
	check(t, os.MkdirAll(folder, 0o700))
	var want []string
	for i := range 25 {
		check(t, os.Mkdir(filepath.Join(folder, fmt.Sprintf("z%02d", i)), 0o700))
		check(t, os.WriteFile(filepath.Join(folder, fmt.Sprintf("z%02d", i), "inside"), nil, 0o600))
		want = append(want, fmt.Sprintf("a/b/z%02d", i))
	}
	for i := range 50 {
		check(t, os.WriteFile(filepath.Join(folder, fmt.Sprintf("f%02d\xff", i)), nil, 0o600))
		want = append(want, fmt.Sprintf("a/b/f%02d\xff", i))
	}
	packed, _ := pack(t, home)
	x := (&counted{archive: packed}).index(t)
	for _, limit := range []int{1, 7, 25, 74, 75, 1000} {
		var got []string
		cursor, pages := "", 0
		for pages == 0 || cursor != "" {
			list, next, err := x.List(t.Context(), "a/b", cursor, limit, 1<<20)
			check(t, err)
			if len(list) == 0 || len(list) > limit {
				t.Fatalf("a page of %d with %d entries", limit, len(list))
			}
			for _, e := range list {
				got = append(got, e.Name)
			}
			cursor = next
			pages++
		}
		if !slices.Equal(got, want) {
			t.Errorf("in pages of %d: %q", limit, got)
		}
	}
	// An entry that exceeds the bytes is the last of its page.
	list, next, err := x.List(t.Context(), "a/b", "", 100, 2*len(want[0]))
	if err != nil || next == "" || len(list) != 3 {
		t.Errorf("a page of few bytes: %v, %q, %v", list, next, err)
	}
	one, next, err := x.List(t.Context(), want[30], "", 5, 1<<20)
	if err != nil || next != "" || len(one) != 1 || one[0].Name != want[30] {
		t.Errorf("the list of a file: %v, %q, %v", one, next, err)
	}
	if _, _, err := x.List(t.Context(), "a/c", "", 5, 1<<20); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an unknown folder: %v", err)
	}
	if _, _, err := x.List(t.Context(), "a", "!", 5, 1<<20); !errors.Is(err, ErrCursor) {
		t.Errorf("a cursor of another list: %v", err)
	}
}
