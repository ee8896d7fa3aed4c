package homequota

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// newImage makes a home with an image, which is unmounted at the end of the test.
func newImage(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	t.Cleanup(func() { check(t, Remove(folder)) })
	check(t, Make(Image, folder, minImage))
	return folder
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func capacity(t *testing.T, folder string) int64 {
	t.Helper()
	var fs unix.Statfs_t
	check(t, unix.Statfs(filepath.Join(folder, mountName), &fs))
	return int64(fs.Blocks) * fs.Bsize
}

// A file system that cannot grow while it is mounted grows unmounted, unless it stays
// mounted elsewhere, such as in a container.
func TestResizeUnmounted(t *testing.T) {
	t.Parallel()
	folder := newImage(t)
	check(t, os.WriteFile(filepath.Join(Home(folder), "file"), []byte("content"), 0o600))
	device, err := deviceOf(folder)
	check(t, err)
	check(t, os.Truncate(filepath.Join(folder, imageName), 2*minImage))
	image, err := lockImage(folder)
	check(t, err)
	before := capacity(t, folder)

	release := copyMount(t, folder)
	err = resizeUnmounted(folder, image, device)
	check(t, image.Close())
	check(t, Remove(folder))
	check(t, Open(folder)) // on the same device: a second one would destroy the content
	release()
	if !errors.Is(err, ErrKept) {
		t.Errorf("resize while it is in use elsewhere: %v", err)
	}
	if got, err := deviceOf(folder); err != nil || got != device || capacity(t, folder) != before {
		t.Errorf("it is mounted from %s with %d bytes, %v; want %s with %d", got, capacity(t, folder), err, device, before)
	}

	image, err = lockImage(folder)
	check(t, err)
	defer image.Close()
	check(t, resizeUnmounted(folder, image, device))
	if n := capacity(t, folder); n < before+minImage/2 {
		t.Errorf("the file system has %d bytes; it had %d", n, before)
	}
	if got, err := os.ReadFile(filepath.Join(Home(folder), "file")); err != nil || string(got) != "content" {
		t.Errorf("the file has %q: %v", got, err)
	}
}

// copyMount mounts the home's file system at another place, too, as a container that is being
// created does, and returns a function that unmounts it there.
func copyMount(t *testing.T, folder string) (release func()) {
	t.Helper()
	at := t.TempDir()
	check(t, unix.Mount(filepath.Join(folder, mountName), at, "", unix.MS_BIND, ""))
	release = sync.OnceFunc(func() {
		if err := unmount(at); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(release)
	return release
}

// The creation of a container, which holds a copy of each mount, takes some seconds on a busy
// machine. A larger limit waits for that.
func TestResizeWaitsForCopiedMount(t *testing.T) {
	t.Parallel()
	folder := newImage(t)
	device, err := deviceOf(folder)
	check(t, err)
	check(t, os.Truncate(filepath.Join(folder, imageName), 2*minImage))
	image, err := lockImage(folder)
	check(t, err)
	defer image.Close()
	release := copyMount(t, folder)
	created := time.AfterFunc(2*fileCopied, release)
	defer created.Stop()
	check(t, resizeUnmounted(folder, image, device))
}

// What is mounted in place of the home's file system is not used as the home, and is unmounted
// before the folder is removed.
func TestOtherFileSystemInPlaceOfHome(t *testing.T) {
	t.Parallel()
	for name, replace := range map[string]func(t *testing.T, folder string){
		"tmpfs": func(t *testing.T, folder string) {
			check(t, Remove(folder))
			check(t, unix.Mount("none", filepath.Join(folder, mountName), "tmpfs", 0, ""))
		},
		"a removed image": func(t *testing.T, folder string) {
			other := t.TempDir()
			check(t, Make(Image, other, minImage))
			check(t, Remove(other))
			check(t, os.Rename(filepath.Join(other, imageName), filepath.Join(folder, imageName)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := newImage(t)
			check(t, Open(folder))
			replace(t, folder)
			if err := Open(folder); err == nil || !strings.Contains(err.Error(), "unmount it") {
				t.Errorf("Open: %v", err)
			}
			if err := Limit(folder, 2*minImage); err == nil || errors.Is(err, ErrKept) {
				t.Errorf("Limit: %v", err)
			}
			check(t, Discard(folder, "removed"))
			if mounted(filepath.Join(folder, mountName)) {
				t.Error("it is still mounted")
			}
		})
	}
}

// A home whose image was removed by hand leaves no mount behind.
func TestDiscardWithoutImage(t *testing.T) {
	t.Parallel()
	folder := newImage(t)
	check(t, os.Remove(filepath.Join(folder, imageName)))
	check(t, Discard(folder, "removed"))
	if mounted(filepath.Join(folder, mountName)) {
		t.Error("it is still mounted")
	}
}

// A home of many empty files is as full as its inodes.
func TestUsedCountsInodes(t *testing.T) {
	t.Parallel()
	folder := newImage(t)
	var fs unix.Statfs_t
	check(t, unix.Statfs(filepath.Join(folder, mountName), &fs))
	for i := range fs.Files / 2 {
		check(t, os.WriteFile(filepath.Join(Home(folder), strconv.FormatUint(i, 10)), nil, 0o600))
	}
	if n, known := Used(folder); !known || n < minImage/2 || n > minImage*6/10 {
		t.Errorf("%d of %d bytes are used with half of the inodes", n, minImage)
	}
}

// What a mkfs writes that outlived its server does not reach the next image.
func TestMakeReplacesHalfMadeImage(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	t.Cleanup(func() { check(t, Remove(folder)) })
	old, err := os.Create(filepath.Join(folder, newName))
	check(t, err)
	defer old.Close()
	check(t, Make(Image, folder, minImage))
	_, err = old.WriteAt(make([]byte, 1<<20), 0)
	check(t, err)
	check(t, Remove(folder))
	check(t, Open(folder))
}
