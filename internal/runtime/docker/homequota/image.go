package homequota

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	imageName = "disk.img"
	mountName = "disk"
	newName   = ".disk.img.new"

	// minImage is the size of the smallest file system that is made.
	minImage = 64 << 20
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
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(max(limit, minImage)), f.Close()); err != nil {
		return err
	}
	// No blocks are kept for root: the file has the size that its owner may use.
	if err := run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "nodiscard", path); err != nil {
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

// mountImage mounts the file system of the home unless it is mounted. Files that are deleted in
// it free space of the disk below it.
func mountImage(folder string) error {
	// A second mount of the same file would destroy its content. The kernel releases the lock
	// if the process dies.
	image, err := os.Open(filepath.Join(folder, imageName))
	if err != nil {
		return err
	}
	defer image.Close()
	if err := unix.Flock(int(image.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock the home's file system: %w", err)
	}
	at := filepath.Join(folder, mountName)
	if !mounted(at) {
		if err := os.Mkdir(at, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		if err := run("mount", "-t", "ext4", "-o", "loop,nodev,discard", filepath.Join(folder, imageName), at); err != nil {
			return err
		}
	}
	home := filepath.Join(at, homeName)
	err = os.Mkdir(home, 0o755)
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
	path, at := filepath.Join(folder, imageName), filepath.Join(folder, mountName)
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if limit == 0 || limit < info.Size() {
		return ErrKept
	}
	device, err := deviceOf(at)
	if err != nil {
		return err
	}
	if limit > info.Size() {
		if err := os.Truncate(path, limit); err != nil {
			return err
		}
	}
	if run("losetup", "-c", device) == nil && run("resize2fs", device) == nil {
		return nil
	}
	if err := unix.Unmount(at, 0); errors.Is(err, unix.EBUSY) {
		return ErrKept
	} else if err != nil {
		return fmt.Errorf("unmount the home's file system: %w", err)
	}
	var fixed *exec.ExitError
	if err := run("e2fsck", "-f", "-p", path); err != nil && !(errors.As(err, &fixed) && fixed.ExitCode() == 1) {
		return errors.Join(err, mountImage(folder))
	}
	return errors.Join(run("resize2fs", path), mountImage(folder))
}

// deviceOf returns the loop device that is mounted at a path.
func deviceOf(at string) (string, error) {
	out, err := exec.Command("findmnt", "-n", "-o", "SOURCE", "--mountpoint", at).Output()
	if err != nil {
		return "", fmt.Errorf("find the device of the home's file system: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
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

func run(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

func deviceNumber(info os.FileInfo) uint64 {
	st, _ := info.Sys().(*syscall.Stat_t)
	return uint64(st.Dev)
}
