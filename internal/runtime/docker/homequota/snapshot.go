package homequota

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests of btrfs about snapshots, from linux/btrfs.h.
const (
	snapCreate = 0x50009417
	subvolRefs = 0xd000943d
)

const snapReadOnly = 1 << 1 // flag

// snapArgs is struct btrfs_ioctl_vol_args_v2.
type snapArgs struct {
	fd            int64
	transid       uint64
	flags, unused uint64
	unused2       [3]uint64
	name          [4040]byte
}

// refArgs is struct btrfs_ioctl_get_subvol_rootref_args: the subvolumes in a subvolume.
type refArgs struct {
	first uint64
	refs  [255][2]uint64
	count uint8
	_     [7]uint8
}

const snapshotPrefix = ".snapshot-"

// Snapshot makes a snapshot of the home in the folder of a workspace, which cannot be written to, in the same
// folder, and returns its path. It is empty if the home is no subvolume, or has subvolumes of its own: a
// snapshot has those as empty folders.
func Snapshot(folder, id string) (string, error) {
	home := filepath.Join(folder, homeName)
	if hasImage(folder) || !isSubvolume(home) {
		return "", nil
	}
	from, err := os.Open(home)
	if err != nil {
		return "", err
	}
	defer from.Close()
	args := snapArgs{fd: int64(from.Fd()), flags: snapReadOnly}
	name := snapshotPrefix + id
	copy(args.name[:], name)
	if err := ioctl(folder, snapCreate, unsafe.Pointer(&args)); err != nil {
		return "", fmt.Errorf("make a snapshot of the home: %w", err)
	}
	path := filepath.Join(folder, name)
	var inner refArgs
	if err := ioctlFile(from, subvolRefs, unsafe.Pointer(&inner)); err != nil || inner.count > 0 {
		return "", RemoveSnapshot(path)
	}
	return path, nil
}

// Snapshots returns the paths of the snapshots in the folder of a workspace.
func Snapshots(folder string) ([]string, error) {
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var paths []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), snapshotPrefix) {
			paths = append(paths, filepath.Join(folder, e.Name()))
		}
	}
	return paths, nil
}

// RemoveSnapshot removes what Snapshot has made, and nothing else. No process may read it.
func RemoveSnapshot(path string) error {
	if !strings.HasPrefix(filepath.Base(path), snapshotPrefix) {
		return nil
	}
	if err := removeSubvolume(path); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove a snapshot of the home: %w", err)
	}
	return nil
}
