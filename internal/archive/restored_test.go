package archive

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"codehub/internal/testing/archivetest"
)

// A restored home agrees with its generation, and each difference is found and named.
func TestCompareRestored(t *testing.T) {
	t.Parallel()
	home, o := t.TempDir(), newObjects()
	in := func(dir, name string) string { return filepath.Join(dir, name) }
	large := make([]byte, 3<<20)
	rand.NewChaCha8([32]byte{}).Read(large)
	check(t, os.WriteFile(in(home, "file0"), large, 0o600))
	check(t, os.WriteFile(in(home, "file1"), large[:2000], 0o600))
	check(t, os.Mkdir(in(home, "many"), 0o755))
	long := strings.Repeat("long", 50)
	for i := range 1500 { // more than one part of a listing
		check(t, os.WriteFile(in(home, fmt.Sprintf("many/%s%d", long, i)), []byte(fmt.Sprint(i)), 0o600))
	}
	check(t, os.WriteFile(in(home, "linked"), []byte("content"), 0o600))
	check(t, os.Link(in(home, "linked"), in(home, "many/other-name")))
	check(t, os.Symlink("target", in(home, "symlink")))
	check(t, os.Chtimes(in(home, "file1"), time.Unix(1e9, 5), time.Unix(1e9, 5)))
	f, err := os.Create(in(home, "hole"))
	check(t, err)
	_, err = f.WriteAt([]byte("end"), 8<<20)
	check(t, err)
	check(t, f.Close())
	m := o.generation(t, home, BackupOptions{})
	dir := o.unpacked(t, m)
	check(t, m.CompareRestored(t.Context(), o.get, dir, nil, nil))

	flip := func(name string, at int64) func() {
		return func() {
			var st unix.Stat_t
			check(t, unix.Stat(in(dir, name), &st))
			f, err := os.OpenFile(in(dir, name), os.O_RDWR, 0)
			check(t, err)
			var b [1]byte
			_, err = f.ReadAt(b[:], at)
			check(t, err)
			b[0] ^= 0x10
			_, err = f.WriteAt(b[:], at)
			check(t, err)
			check(t, f.Close())
			check(t, unix.UtimesNanoAt(unix.AT_FDCWD, in(dir, name), []unix.Timespec{st.Atim, st.Mtim}, 0))
		}
	}
	keepTimes := func(name string, change func()) func() {
		return func() {
			var st unix.Stat_t
			check(t, unix.Stat(in(dir, name), &st))
			change()
			check(t, unix.UtimesNanoAt(unix.AT_FDCWD, in(dir, name), []unix.Timespec{st.Atim, st.Mtim}, 0))
		}
	}
	for what, c := range map[string]struct {
		change, undo func()
		name         string
	}{
		"large file":     {flip("file0", 2<<20), flip("file0", 2<<20), "file0"},
		"small file":     {flip("many/"+long+"77", 0), flip("many/"+long+"77", 0), long},
		"hard link":      {flip("linked", 1), flip("linked", 1), "linked"},
		"data of sparse": {flip("hole", 8<<20), flip("hole", 8<<20), "hole"},
		"hole":           {flip("hole", 5<<20), flip("hole", 5<<20), "hole"},
		"mode":           {func() { check(t, os.Chmod(in(dir, "file1"), 0o640)) }, func() { check(t, os.Chmod(in(dir, "file1"), 0o600)) }, "file1"},
		"time": {func() { check(t, os.Chtimes(in(dir, "file1"), time.Unix(1e9, 5), time.Unix(1e9, 6))) },
			func() { check(t, os.Chtimes(in(dir, "file1"), time.Unix(1e9, 5), time.Unix(1e9, 5))) }, "file1"},
		"attribute": {func() { check(t, unix.Setxattr(in(dir, "file1"), "user.new", []byte("v"), 0)) }, func() { check(t, unix.Removexattr(in(dir, "file1"), "user.new")) }, "file1"},
		"additional file": {keepTimes("many", func() { check(t, os.WriteFile(in(dir, "many/more"), nil, 0o600)) }),
			keepTimes("many", func() { check(t, os.Remove(in(dir, "many/more"))) }), "many/more"},
		"missing file": {keepTimes("many", func() {
			check(t, os.Rename(in(dir, "many/"+long+"1499"), in(filepath.Dir(dir), "kept")))
		}),
			keepTimes("many", func() {
				check(t, os.Rename(in(filepath.Dir(dir), "kept"), in(dir, "many/"+long+"1499")))
			}), "1499"},
		"separate copies": {keepTimes("many", func() {
			check(t, os.Remove(in(dir, "many/other-name")))
			check(t, os.WriteFile(in(dir, "many/other-name"), []byte("content"), 0o600))
		}), keepTimes("many", func() {
			check(t, os.Remove(in(dir, "many/other-name")))
			check(t, os.Link(in(dir, "linked"), in(dir, "many/other-name")))
		}), ""},
	} {
		c.change()
		err := m.CompareRestored(t.Context(), o.get, dir, nil, nil)
		if !errors.Is(err, ErrCorrupted) || !strings.Contains(err.Error(), c.name) {
			t.Errorf("%s: %v", what, err)
		}
		c.undo()
	}
	check(t, m.CompareRestored(t.Context(), o.get, dir, nil, nil))
}

// A home without changes needs no new generation. One whose files have new inodes does, once.
func TestUnchangedHomeIsSkipped(t *testing.T) {
	t.Parallel()
	home, o := t.TempDir(), newObjects()
	archivetest.Corpus(t, home)
	first := o.generation(t, home, BackupOptions{})
	stored := len(o.stored)
	later := func() time.Time { return time.Now().Add(time.Hour) }
	backup := func(opts BackupOptions) *Manifest {
		t.Helper()
		opts.Get, opts.SkipUnchanged, opts.now = o.get, true, later
		m, err := Backup(t.Context(), home, fmt.Sprint("m", len(o.stored)), o.put, opts)
		check(t, err)
		return m
	}
	if m := backup(BackupOptions{Former: first}); m != first || len(o.stored) != stored {
		t.Error("an unchanged home has stored something")
	}
	if m := backup(BackupOptions{Former: first, FullRead: true}); m == first || len(o.stored) != stored+1 {
		t.Error("a full read is not recorded")
	}
	name := filepath.Join(home, "zz-last")
	for i, change := range []func(){
		func() { check(t, os.Chmod(home, 0o751)) },
		func() { check(t, os.WriteFile(name, nil, 0o600)) },
		func() { check(t, os.WriteFile(name, []byte("content"), 0o600)) },
		func() {
			check(t, os.WriteFile(name, []byte("changed"), 0o600))
			check(t, os.Chtimes(name, time.Unix(1e9, 0), time.Unix(1e9, 0)))
		},
		func() {
			check(t, os.WriteFile(name, []byte("another"), 0o600))
			check(t, os.Chtimes(name, time.Unix(1e9, 0), time.Unix(1e9, 0)))
		},
		func() { // a new inode
			check(t, os.WriteFile(name+"~", []byte("another"), 0o600))
			check(t, os.Chtimes(name+"~", time.Unix(1e9, 0), time.Unix(1e9, 0)))
			check(t, os.Rename(name+"~", name))
			check(t, os.Chtimes(home, time.Unix(1e9, 0), time.Unix(1e9, 0)))
		},
		func() { check(t, os.Remove(name)) },
	} {
		change()
		m := backup(BackupOptions{Former: first})
		if m == first {
			t.Errorf("change %d was not seen", i)
		}
		if first = m; backup(BackupOptions{Former: first}) != first {
			t.Errorf("after change %d an unchanged home has a new generation", i)
		}
	}
	o.same(t, first, home)
}
