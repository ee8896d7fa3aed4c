package homequota

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	imageName = "disk.img"
	mountName = "disk"
	newName   = ".disk.img.new"

	// minImage is the size of the smallest file system that is made.
	minImage = 64 << 20

	// bytesPerInode is how many bytes of a limit there are for each file or folder.
	bytesPerInode = 8 << 10
)

func hasImage(folder string) bool {
	info, err := os.Lstat(filepath.Join(folder, imageName))
	return err == nil && info.Mode().IsRegular()
}

// makeImage makes a sparse file with an ext4 file system. The home is a folder in it, next to its
// lost+found. Once the file has its name, its file system is complete; the home in it is made
// when it is mounted first.
func makeImage(folder string, limit int64) error {
	path := filepath.Join(folder, newName)
	// mkfs of a server that was killed may still write to the file of an earlier attempt.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(max(limit, minImage)), f.Close()); err != nil {
		return err
	}
	// No blocks are kept for root: the file has the size that its owner may use.
	if err := run(nil, "mkfs.ext4", "-q", "-F", "-m", "0", "-i", strconv.Itoa(bytesPerInode), "-E", "nodiscard", path); err != nil {
		return err
	}
	if f, err = os.Open(path); err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path, filepath.Join(folder, imageName)); err != nil {
		return err
	}
	if err := syncDir(folder); err != nil {
		return err
	}
	return mountImage(folder)
}

// lockImage opens the image and locks it until the file and the copies of it in the programs that
// run gets it for are closed. A second mount of the same file, or a check of a mounted one, would
// destroy its content.
func lockImage(folder string) (*os.File, error) {
	image, err := os.Open(filepath.Join(folder, imageName))
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(image.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock the home's file system: %w", err), image.Close())
	}
	return image, nil
}

// mountImage mounts the file system of the home unless it is mounted. Files that are deleted in
// it free space of the disk below it.
func mountImage(folder string) error {
	image, err := lockImage(folder)
	if err != nil {
		return err
	}
	defer image.Close()
	return mountLocked(folder, image)
}

// mountLocked is mountImage for a caller that holds the lock.
func mountLocked(folder string, image *os.File) error {
	at := filepath.Join(folder, mountName)
	if mounted(at) {
		if _, err := deviceOf(folder); err != nil {
			return err
		}
	} else {
		if err := os.Mkdir(at, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		if err := run(image, "mount", "-t", "ext4", "-o", "loop,nodev,discard", filepath.Join(folder, imageName), at); err != nil {
			return err
		}
	}
	home := filepath.Join(at, homeName)
	err := os.Mkdir(home, 0o755)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return syncDir(at)
}

// growImage makes the file and its mounted file system larger. A call that was interrupted is
// completed by the next one. Where the kernel refuses to resize a mounted file system, it is
// unmounted for that; ErrKept if it is in use then.
func growImage(folder string, limit int64) error {
	image, err := lockImage(folder)
	if err != nil {
		return err
	}
	defer image.Close()
	info, err := image.Stat()
	if err != nil {
		return err
	}
	if limit == 0 || limit < info.Size() {
		return ErrKept
	}
	device, err := deviceOf(folder)
	if err != nil {
		return err
	}
	if limit > info.Size() {
		if err := os.Truncate(filepath.Join(folder, imageName), limit); err != nil {
			return err
		}
	}
	if run(image, "losetup", "-c", device) == nil && run(image, "resize2fs", device) == nil {
		return nil
	}
	return resizeUnmounted(folder, image, device)
}

// resizeUnmounted unmounts the file system, lets it fill its device, and mounts it again. It is
// ErrKept if another mount of it remains, that of a container for example.
func resizeUnmounted(folder string, image *os.File, device string) (err error) {
	at := filepath.Join(folder, mountName)
	kept, err := os.Open(device) // without this the kernel would free the device
	if err != nil {
		return err
	}
	defer kept.Close()
	if err := unmount(at); errors.Is(err, unix.EBUSY) {
		return ErrKept
	} else if err != nil {
		return fmt.Errorf("unmount the home's file system: %w", err)
	}
	defer func() {
		if again := unix.Mount(device, at, "ext4", unix.MS_NODEV, "discard"); again != nil {
			err = errors.Join(err, fmt.Errorf("mount the home's file system again: %w", again))
		}
	}()
	// The kernel gives out a mounted device only to those who share it.
	var alone *os.File
	err = whileBusy(mountCopied, func() (err error) {
		alone, err = os.OpenFile(device, os.O_RDONLY|unix.O_EXCL, 0)
		return err
	})
	if errors.Is(err, unix.EBUSY) {
		return ErrKept
	}
	if err != nil {
		return err
	}
	if err := alone.Close(); err != nil { // e2fsck opens it so, too
		return err
	}
	if err := run(image, "losetup", "-c", device); err != nil {
		return err
	}
	var fixed *exec.ExitError
	if err := run(image, "e2fsck", "-f", "-p", device); err != nil && !(errors.As(err, &fixed) && fixed.ExitCode() == 1) {
		return err
	}
	return run(image, "resize2fs", device)
}

// deviceOf returns the loop device of the image, which is mounted. It is an error if something
// else is mounted there, such as an image that was removed.
func deviceOf(folder string) (string, error) {
	at := filepath.Join(folder, mountName)
	if !mounted(at) {
		return "", errors.New("the home's file system is not mounted")
	}
	info, err := os.Stat(at)
	if err != nil {
		return "", err
	}
	number := deviceNumber(info)
	device := fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(number), unix.Minor(number))
	backing, err := os.ReadFile(filepath.Join(device, "loop", "backing_file"))
	if err != nil {
		return "", fmt.Errorf("another file system is mounted at %s; unmount it: %w", at, err)
	}
	name := strings.TrimSuffix(string(backing), "\n")
	of, err := os.Stat(name) // a removed file has "(deleted)" in its name
	if err != nil {
		return "", fmt.Errorf("the file system of %s is mounted at %s; unmount it: %w", name, at, err)
	}
	image, err := os.Stat(filepath.Join(folder, imageName))
	if err != nil {
		return "", err
	}
	if !os.SameFile(of, image) {
		return "", fmt.Errorf("the file system of %s is mounted at %s; unmount it", name, at)
	}
	resolved, err := filepath.EvalSymlinks(device)
	if err != nil {
		return "", err
	}
	return filepath.Join("/dev", filepath.Base(resolved)), nil
}

// unmount unmounts what is mounted at the path. It is EBUSY if that stays in use.
func unmount(at string) error {
	return whileBusy(fileCopied, func() error { return unix.Unmount(at, 0) })
}

// For how long whileBusy tries.
const (
	fileCopied  = 2 * time.Second  // a program that is being started holds copies of open files
	mountCopied = 15 * time.Second // a container that is being created holds a copy of each mount
)

// whileBusy tries again what fails with EBUSY, for a time.
func whileBusy(limit time.Duration, try func() error) error {
	end := time.Now().Add(limit)
	for wait := time.Millisecond; ; wait = min(2*wait, time.Second/4) {
		err := try()
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return err
		}
		time.Sleep(wait)
	}
}

// mounted reports whether a file system is mounted at the path.
func mounted(at string) bool {
	here, err := os.Stat(at)
	if err != nil {
		return false
	}
	above, err := os.Stat(filepath.Dir(at))
	return err == nil && deviceNumber(here) != deviceNumber(above)
}

// run runs a program, which keeps the lock of the image if it outlives this process; nil: none.
func run(image *os.File, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	if image != nil {
		cmd.ExtraFiles = []*os.File{image}
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

func deviceNumber(info os.FileInfo) uint64 {
	st, _ := info.Sys().(*syscall.Stat_t)
	return uint64(st.Dev)
}
