package archive

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDifferences(t *testing.T) {
	t.Parallel()
	home, o := t.TempDir(), newObjects()
	write := func(name, content string) {
		t.Helper()
		check(t, os.MkdirAll(filepath.Dir(filepath.Join(home, name)), 0o755))
		check(t, os.WriteFile(filepath.Join(home, name), []byte(content), 0o644))
	}
	write("kept", "1")
	write("app/a.go", "1")
	write("app/b.go", "1")
	check(t, os.Symlink("app/a.go", filepath.Join(home, "link")))
	first := o.generation(t, home, BackupOptions{})
	write("app/a.go", "22")
	write("new/c.go", "333")
	check(t, os.Remove(filepath.Join(home, "app/b.go")))
	check(t, os.Remove(filepath.Join(home, "link")))
	check(t, os.Symlink("kept", filepath.Join(home, "link")))
	check(t, os.Chmod(filepath.Join(home, "kept"), 0o600))
	second := o.generation(t, home, BackupOptions{Former: first})

	differences := func(m, former *Manifest) (list []string) {
		t.Helper()
		for d, err := range m.Differences(former) {
			check(t, err)
			list = append(list, fmt.Sprintf("%d %s %d %s", d.Kind, d.Entry.Name, d.Entry.Size, d.Entry.Link))
		}
		slices.Sort(list)
		return list
	}
	if d := cmp.Diff([]string{"0 new/c.go 3 ", "1 app/a.go 2 ", "1 kept 1 ", "1 link 0 kept", "2 app/b.go 1 "}, differences(second, first)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"0 app/a.go 1 ", "0 app/b.go 1 ", "0 kept 1 ", "0 link 0 app/a.go"}, differences(first, nil)); d != "" {
		t.Error(d)
	}
	if list := differences(second, second); list != nil {
		t.Errorf("with itself: %v", list)
	}
	for m := range second.Differences(first) {
		if m.Kind == Removed {
			t.Error("a removed file before the last one")
		}
		break
	}
	got, err := second.Compare(first)
	if want := (Changes{Added: 1, Changed: 3, Removed: 1, Bytes: 6}); err != nil || got != want {
		t.Errorf("%+v, want %+v (%v)", got, want, err)
	}
}
