package ballast

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"codehub/internal/base/health"
)

func TestDecide(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	roomy := Disk{Free: 1 << 40, FreeNodes: 1 << 20, Nodes: 1 << 21}
	with := func(free, nodes int64) Disk {
		d := roomy
		d.Free, d.FreeNodes = free, nodes
		return d
	}
	for _, tc := range []struct {
		name    string
		disk    Disk
		kept    bool
		size    int64
		want    action
		trouble bool
	}{
		{"room, none yet", roomy, false, 64 * mib, create, true},
		{"room, kept", roomy, true, 64 * mib, leave, false},
		{"room, not wanted", roomy, false, 0, leave, false},
		{"full", with(16*mib-1, 1<<20), true, 64 * mib, remove, false},
		{"nearly full", with(16*mib, 1<<20), true, 64 * mib, leave, false},
		{"full, given up", with(0, 1<<20), false, 64 * mib, leave, true},
		{"not wanted, full", with(0, 1<<20), false, 0, leave, true},
		{"no inodes", with(1<<40, 63), true, 64 * mib, remove, false},
		{"few inodes", with(1<<40, 64), true, 64 * mib, leave, false},
		{"no inodes, not wanted", with(1<<40, 0), false, 0, leave, true},
		{"no limit of inodes", Disk{Free: 1 << 40}, false, 64 * mib, create, true},
		{"given up, its own space is free again", with(80*mib, 1<<20), false, 64 * mib, leave, true},
		{"given up, little more", with(96*mib-1, 1<<20), false, 64 * mib, leave, true},
		{"given up, room again", with(96*mib, 1<<20), false, 64 * mib, create, true},
		{"given up, inodes do not suffice", with(1<<40, 256+127), false, 64 * mib, leave, true},
		{"given up, inodes again", with(1<<40, 256+128), false, 64 * mib, create, true},
		{"a small ballast", with(300<<10, 1<<20), true, mib, leave, false},
		{"a small ballast, full", with(255<<10, 1<<20), true, mib, remove, false},
	} {
		if got := decide(tc.disk, tc.kept, tc.size); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
		if got := trouble(tc.disk, tc.kept, tc.size); (got != "") != tc.trouble {
			t.Errorf("%s: trouble %q", tc.name, got)
		}
	}
}

// A ballast that was given up is not made again from the space that it gave.
func TestDecideSettles(t *testing.T) {
	t.Parallel()
	for size := int64(1 << 20); size < 1<<34; size *= 3 {
		for free := int64(0); free < 4*size; free += size / 8 {
			d, kept, changes := Disk{Free: free}, false, 0
			for range 10 {
				switch decide(d, kept, size) {
				case create:
					kept, d.Free, changes = true, d.Free-size, changes+1
				case remove:
					kept, d.Free, changes = false, d.Free+size, changes+1
				}
			}
			if changes > 1 || d.Free < 0 {
				t.Fatalf("%d bytes free, ballast of %d: %d changes, then %d bytes free", free, size, changes, d.Free)
			}
		}
	}
}

// mounted mounts a small disk and returns a function that mounts it with other options.
func mounted(t *testing.T, options string) (dir string, remount func(options string)) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test mounts a tmpfs, which needs root")
	}
	dir = t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir, func(options string) {
		t.Helper()
		if err := syscall.Mount("none", dir, "tmpfs", syscall.MS_REMOUNT, options); err != nil {
			t.Fatal(err)
		}
	}
}

func TestBallastOnFullDisk(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ room, full string }{
		"no space":  {"size=64m,nr_inodes=4000", ""},
		"no inodes": {"size=64m,nr_inodes=1200", "inodes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, remount := mounted(t, tc.room)
			var conditions *health.Monitor
			open := func() *Ballast {
				conditions = &health.Monitor{} // as of another process
				return New(Config{Dir: dir, Settings: Settings{Bytes: 16 << 20}, Log: slog.New(slog.DiscardHandler), Conditions: conditions})
			}
			b := open()
			check := func(what string, kept bool, free int64) {
				t.Helper()
				b.Check()
				d, size := b.State()
				if (size > 0) != kept || (conditions.Err("data-disk") == nil) != kept {
					t.Errorf("%s: ballast of %d bytes, condition %v", what, size, conditions.Err("data-disk"))
				}
				if _, err := os.Stat(filepath.Join(dir, Name)); (err == nil) != kept {
					t.Errorf("%s: %v", what, err)
				}
				if now, err := statDisk(dir); err != nil || now.Free < free || kept && d.Free > now.Free+17<<20 {
					t.Errorf("%s: %+v, %v", what, now, err)
				}
			}
			check("made", true, 40<<20)
			b = open()
			check("taken over by another process", true, 40<<20)
			fill(t, dir, tc.full == "inodes")
			check("full", false, 0)
			if err := os.WriteFile(filepath.Join(dir, "in reserve"), make([]byte, 8<<20), 0o600); err != nil {
				t.Errorf("the space of the ballast is not usable: %v", err)
			}
			b = open()
			check("still full", false, 0)
			remount("size=256m,nr_inodes=8000")
			check("room again", true, 100<<20)
			if err := os.WriteFile(filepath.Join(dir, Name, "space"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if b = open(); b.kept {
				t.Error("an incomplete ballast was taken over")
			}
			check("made again", true, 100<<20)
			b = New(Config{Dir: dir, Log: slog.New(slog.DiscardHandler), Conditions: conditions})
			if _, err := os.Stat(filepath.Join(dir, Name)); !errors.Is(err, fs.ErrNotExist) || b.kept {
				t.Errorf("a ballast that is not wanted was kept: %v", err)
			}
		})
	}
}

// fill uses up the disk's space, or its inodes.
func fill(t *testing.T, dir string, inodes bool) {
	t.Helper()
	var err error
	part := make([]byte, 1<<16)
	if inodes {
		part = nil
	}
	for n := 0; err == nil; n++ {
		err = os.WriteFile(filepath.Join(dir, fmt.Sprint("fill", n)), part, 0o600)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
}

func TestAllocateWithoutSpace(t *testing.T) {
	t.Parallel()
	dir, _ := mounted(t, "size=4m")
	b := New(Config{Dir: dir, Settings: Settings{Bytes: 16 << 20}, Log: slog.New(slog.DiscardHandler)})
	if err := b.make(); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "ballast") {
		t.Errorf("error = %v", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
	f, err := os.Create(filepath.Join(dir, "written"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := fillFile(f, 3<<20+5); err != nil {
		t.Error(err)
	}
	if info, err := f.Stat(); err != nil || info.Size() != 3<<20+5 {
		t.Errorf("%v, %v", info, err)
	}
}
