package archive

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"codehub/internal/testing/archivetest"
)

// ext4Folder is set in the process that may mount file systems.
const ext4Folder = "CODEHUB_TEST_EXT4"

// onExt4 runs the rest of a test in a further process, on an ext4 file system
// with blocks of so many bytes and the usual inodes of 256.
func onExt4(t *testing.T, block int, f func(t *testing.T, disk string)) {
	t.Helper()
	if dir, ok := strings.CutPrefix(os.Getenv(ext4Folder), t.Name()+":"); ok {
		check(t, syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
		disk := filepath.Join(dir, "disk")
		check(t, os.Mkdir(disk, 0o700))
		out, err := exec.Command("mount", "-o", "loop,acl,user_xattr", filepath.Join(dir, "image"), disk).CombinedOutput()
		if err != nil {
			t.Fatalf("mount: %v: %s", err, out)
		}
		t.Cleanup(func() { check(t, syscall.Unmount(disk, 0)) })
		f(t, disk)
		return
	}
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root: only root may mount an ext4 file system")
	}
	dir := t.TempDir()
	image := filepath.Join(dir, "image")
	out, err := exec.Command("mkfs.ext4", "-q", "-b", fmt.Sprint(block), "-I", "256", image, "24M").CombinedOutput()
	if err != nil {
		t.Fatalf("mkfs.ext4: %v: %s", err, out)
	}
	path := strings.Split(t.Name(), "/")
	cmd := exec.Command(os.Args[0], "-test.run=^"+strings.Join(path, "$/^")+"$", "-test.v")
	cmd.Env = append(os.Environ(), ext4Folder+"="+t.Name()+":"+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("on ext4: %v\n%s", err, out)
	}
}

// attributesOf returns attributes of these sizes, whose names are in this order.
func attributesOf(sizes ...int) []xattr {
	var xs []xattr
	for i, n := range sizes {
		xs = append(xs, xattr{"user." + string(rune('a'+i)), bytes.Repeat([]byte{byte('a' + i)}, n)})
	}
	return xs
}

// fits tries one order on a new file, and keeps the file if the attributes fit.
func fits(t *testing.T, file string, xs []xattr) bool {
	t.Helper()
	check(t, os.WriteFile(file, []byte("content"), 0o600))
	f, err := os.Open(file)
	check(t, err)
	defer f.Close()
	if _, err := setInOrder(int(f.Fd()), xs); err != nil {
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		check(t, os.Remove(file))
		return false
	}
	return true
}

func permutations(xs []xattr) [][]xattr {
	if len(xs) <= 1 {
		return [][]xattr{xs}
	}
	var out [][]xattr
	for i := range xs {
		rest := slices.Delete(slices.Clone(xs), i, i+1)
		for _, p := range permutations(rest) {
			out = append(out, append([]xattr{xs[i]}, p...))
		}
	}
	return out
}

// On ext4 the order in which attributes are set decides whether they fit.
// Every set of attributes that ext4 accepts in some order is restored, also from
// archives that have the attributes sorted by name.
func TestUnpackAttributesThatBarelyFitExt4(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		block int
		sets  [][]int
	}{
		{4096, [][]int{
			{40, 64, 3980}, {64, 40, 3980}, {40, 64, 3976}, {40, 64, 3984}, {36, 68, 3980}, {44, 60, 3980}, {20, 20, 24, 4000}, {64, 3980, 40}, {4000, 20, 20, 24}, {1, 2, 3, 4, 3900},
		}},
		{1024, [][]int{{40, 64, 908}, {40, 64, 904}, {64, 40, 908}, {40, 64, 912}, {20, 44, 20, 880}, {300, 300, 260, 64}}},
	} {
		t.Run(fmt.Sprint(c.block), func(t *testing.T) {
			t.Parallel()
			onExt4(t, c.block, func(t *testing.T, disk string) {
				home, scratch := filepath.Join(disk, "home"), filepath.Join(disk, "scratch")
				check(t, os.Mkdir(home, 0o755))
				check(t, os.Mkdir(scratch, 0o700))
				hard := 0
				for i, sizes := range c.sets {
					n := 0
					for j, order := range permutations(attributesOf(sizes...)) {
						file := filepath.Join(home, fmt.Sprintf("%d-%d", i, j))
						if fits(t, file, order) {
							n++
							dir := filepath.Join(home, fmt.Sprintf("folder-%d-%d", i, j))
							check(t, os.Mkdir(dir, 0o755))
							for _, x := range order {
								check(t, unix.Setxattr(dir, x.name, x.value, 0))
							}
						} else {
							hard++
						}
					}
					t.Logf("%v fits by %d orders", sizes, n)
				}
				if hard == 0 {
					t.Error("every order fits: the sets are too easy")
				}
				before := archivetest.Snapshot(t, home)
				stats, b := packWith(t, home, PackOptions{Scratch: scratch})
				restored := filepath.Join(disk, "restored")
				check(t, os.Mkdir(restored, 0o700))
				_, err := Unpack(t.Context(), bytes.NewReader(b), restored, UnpackOptions{Expect: metaOf(stats)})
				check(t, err)
				if diff := archivetest.Diff(before, archivetest.Snapshot(t, restored)); diff != "" {
					t.Errorf("the restored home differs:\n%s", diff)
				}
				if list, err := os.ReadDir(scratch); err != nil || len(list) > 0 {
					t.Errorf("the proof left %v, %v", list, err)
				}

				// As an older version packed it: sorted by name.
				for i, sizes := range c.sets {
					xs := attributesOf(sizes...)
					if !slices.ContainsFunc(permutations(xs), func(o []xattr) bool { return fits(t, filepath.Join(disk, "try"), o) }) {
						continue
					}
					f, err := os.Create(filepath.Join(disk, fmt.Sprint("sorted-", i)))
					check(t, err)
					check(t, setXattrs(int(f.Fd()), xs))
					got, err := readXattrs(int(f.Fd()))
					check(t, err)
					if len(got) != len(xs) {
						t.Errorf("%v: %d attributes were set", sizes, len(got))
					}
					check(t, f.Close())
				}
			})
		})
	}
}

func packWith(tb testing.TB, home string, opts PackOptions) (Stats, []byte) {
	tb.Helper()
	var b bytes.Buffer
	stats, err := Pack(tb.Context(), home, &b, opts)
	check(tb, err)
	return stats, b.Bytes()
}

// A home that cannot be restored is not archived: the file system of restores has smaller
// blocks here.
func TestPackRefusesUnrestorableHome(t *testing.T) {
	t.Parallel()
	onExt4(t, 1024, func(t *testing.T, scratch string) {
		home := filepath.Join(t.TempDir(), "home")
		check(t, os.MkdirAll(filepath.Join(home, "folder"), 0o755))
		file := filepath.Join(home, "folder", "file")
		check(t, os.WriteFile(file, nil, 0o600))
		check(t, unix.Setxattr(file, "user.large", make([]byte, 2000), 0))
		_, err := Pack(t.Context(), home, &bytesWriter{}, PackOptions{Scratch: scratch})
		if !errors.Is(err, ErrUnrestorable) || !strings.Contains(err.Error(), "folder/file") || !strings.Contains(err.Error(), "user.large") {
			t.Errorf("Pack = %v, want ErrUnrestorable with the path and the attribute", err)
		}
		// A full disk proves nothing about the entry.
		check(t, unix.Setxattr(file, "user.large", make([]byte, 800), 0))
		_, err = Pack(t.Context(), home, &bytesWriter{}, PackOptions{Scratch: scratch})
		check(t, err)
		fill, err := os.Create(filepath.Join(scratch, "fill"))
		check(t, err)
		defer fill.Close()
		for _, n := range []int{64 << 10, 1 << 10} {
			for err == nil {
				_, err = fill.Write(make([]byte, n))
			}
			err = nil
		}
		check(t, fill.Sync())
		_, err = Pack(t.Context(), home, &bytesWriter{}, PackOptions{Scratch: scratch})
		if !errors.Is(err, unix.ENOSPC) || errors.Is(err, ErrUnrestorable) {
			t.Errorf("Pack = %v, want a full disk", err)
		}
	})
}

// A home without such entries is packed without opening the scratch folder.
func TestPackSkipsTrialForOrdinaryHome(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	check(t, os.MkdirAll(filepath.Join(home, "src"), 0o755))
	check(t, os.WriteFile(filepath.Join(home, "src", "main.go"), []byte("package main"), 0o644))
	check(t, os.WriteFile(filepath.Join(home, "한국어 이름.txt"), nil, 0o644))
	check(t, unix.Setxattr(filepath.Join(home, "src", "main.go"), "user.mime_type", []byte("text/x-go"), 0))
	check(t, os.Symlink("src", filepath.Join(home, "link")))
	none := filepath.Join(t.TempDir(), "none")
	_, err := Pack(t.Context(), home, &bytesWriter{}, PackOptions{Scratch: none})
	check(t, err)
	check(t, unix.Setxattr(home, "system.posix_acl_default", archivetest.ACL(7, 5, 0, 4321), 0))
	_, err = Pack(t.Context(), home, &bytesWriter{}, PackOptions{Scratch: none})
	if !errors.Is(err, os.ErrNotExist) || errors.Is(err, ErrUnrestorable) {
		t.Errorf("Pack = %v, want the error of the missing folder", err)
	}
}
