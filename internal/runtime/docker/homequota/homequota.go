// Package homequota limits the disk space of homes that are folders, by what their file system
// offers: a subvolume of btrfs with a quota, a project of XFS or ext4 with a quota, or a file with
// an ext4 file system for each home.
// Everything in it needs root.
package homequota

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Kind is how homes are limited.
type Kind string

const (
	None    Kind = ""        // not at all: homes are plain folders
	Btrfs   Kind = "btrfs"   // each home is a subvolume with a quota group
	Project Kind = "project" // each home has a project of its own on XFS or ext4, with a quota
	Image   Kind = "image"   // each home is in a file with an ext4 file system
)

// ErrKept reports that a home keeps its limit, because it is not one that can be limited, or
// because it cannot get smaller.
var ErrKept = errors.New("the home keeps its limit")

// Probe reports whether new homes in a folder can be limited in this way. It tries all that
// making one takes, and leaves nothing behind.
func Probe(kind Kind, folder string) error {
	if os.Geteuid() != 0 {
		return errors.New("the server does not run as root")
	}
	dir, err := os.MkdirTemp(folder, ".quota-probe-")
	if err != nil {
		return err
	}
	err = probe(kind, dir)
	return errors.Join(err, Remove(dir), os.RemoveAll(dir))
}

func probe(kind Kind, dir string) error {
	switch kind {
	case Btrfs:
		if !onBtrfs(dir) {
			return errors.New("the folder is not on btrfs")
		}
	case Project:
		if !onProjectFS(dir) {
			return errors.New("the folder is on neither XFS nor ext4")
		}
	case Image:
	default:
		return fmt.Errorf("there are no homes of the kind %q", kind)
	}
	return Make(kind, dir, minImage)
}

// Detect returns the kind that a folder offers without any change to it: btrfs or projects where
// their quotas are turned on.
func Detect(folder string) Kind {
	kind := None
	switch {
	case os.Geteuid() != 0:
	case onBtrfs(folder):
		kind = Btrfs
	case onProjectFS(folder) && projectsEnforcedIn(folder):
		kind = Project
	}
	if kind == None || Probe(kind, folder) != nil {
		return None
	}
	return kind
}

// Home is the path of the home below the folder of a workspace.
func Home(folder string) string {
	if hasImage(folder) {
		return filepath.Join(folder, mountName, homeName)
	}
	return filepath.Join(folder, homeName)
}

const homeName = "home"

// Exists reports whether the folder of a workspace has a home. The file system of an image need
// not be mounted.
func Exists(folder string) (bool, error) {
	if hasImage(folder) {
		return true, nil
	}
	info, err := os.Lstat(filepath.Join(folder, homeName))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil && info.IsDir(), err
}

// Make makes an empty home in the folder of a workspace, with a limit in bytes; 0: none. It is
// durable. A home that was half made before is replaced.
func Make(kind Kind, folder string, limit int64) error {
	switch {
	case kind == Btrfs:
		return makeSubvolume(filepath.Join(folder, homeName), limit)
	case kind == Project:
		return makeProject(folder, limit)
	case kind == Image && limit > 0:
		return makeImage(folder, limit)
	}
	if err := os.Mkdir(filepath.Join(folder, homeName), 0o755); err != nil {
		return err
	}
	return syncDir(folder)
}

// Open makes the home usable: it mounts its file system if that is not mounted, after a restart
// of the machine for example.
func Open(folder string) error {
	if !hasImage(folder) {
		return nil
	}
	return mountImage(folder)
}

// OwnDisk reports whether the space that the file system of the home reports is that of the home
// alone. For a project with a limit the kernel reports what is left of the limit, but the space is
// shared: the folder around the home has the numbers of the disk.
func OwnDisk(folder string) (own, shared bool) {
	if hasImage(folder) {
		return true, false
	}
	q, ok := projectQuota(filepath.Join(folder, homeName))
	own = ok && q.blockLimit > 0
	return own, own
}

// Limits reports whether the home in the folder of a workspace can have a limit now: one with a
// project has none while the quotas of its file system are turned off.
func Limits(folder string) bool {
	if hasImage(folder) {
		return true
	}
	home := filepath.Join(folder, homeName)
	if isSubvolume(home) {
		return true
	}
	_, ok := projectQuota(home)
	return ok
}

// Holds reports whether the home has this limit, which it was given before. The limit of a project
// is lost if the quotas of its file system are made again.
func Holds(folder string, limit int64) bool {
	if hasImage(folder) {
		return true
	}
	q, ok := projectQuota(filepath.Join(folder, homeName))
	return !ok || q.sameLimits(projectLimits(limit))
}

// Size is how many bytes an image has; 0 if the home has none.
func Size(folder string) int64 {
	info, err := os.Lstat(filepath.Join(folder, imageName))
	if err != nil || !info.Mode().IsRegular() {
		return 0
	}
	return info.Size()
}

// Limit gives an open home another limit in bytes; 0: none. ErrKept if that is not possible.
func Limit(folder string, limit int64) error {
	if hasImage(folder) {
		return growImage(folder, limit)
	}
	home := filepath.Join(folder, homeName)
	if isSubvolume(home) {
		return limitSubvolume(home, limit)
	}
	return limitProject(home, limit)
}

// Used is how many bytes the home uses, if that is known without reading it: as its project or its
// file system says, or while that is not mounted as its file does. They can also run out of inodes,
// so the share of those counts if it is larger.
func Used(folder string) (bytes int64, known bool) {
	if !hasImage(folder) {
		q, ok := projectQuota(filepath.Join(folder, homeName))
		return q.used(), ok
	}
	if _, err := deviceOf(folder); err == nil {
		var fs unix.Statfs_t
		if unix.Statfs(filepath.Join(folder, mountName), &fs) == nil {
			bytes = int64(fs.Blocks-fs.Bfree) * fs.Bsize
			if fs.Files > 0 {
				bytes = max(bytes, int64(float64(Size(folder))*float64(fs.Files-fs.Ffree)/float64(fs.Files)))
			}
			return bytes, true
		}
	}
	var st unix.Stat_t
	err := unix.Stat(filepath.Join(folder, imageName), &st)
	return st.Blocks * 512, err == nil
}

// Discard takes the home out of use under the new name, in the folder, if there is one. No
// process may use it.
func Discard(folder, name string) error {
	if err := Remove(folder); err != nil { // also of an image that was removed by hand
		return err
	}
	from := filepath.Join(folder, homeName)
	if hasImage(folder) {
		from = filepath.Join(folder, imageName)
	}
	if err := os.Rename(from, filepath.Join(folder, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return syncDir(folder)
}

// Erase removes what Discard has taken out of use, if that takes only one step, and reports
// whether it did. Otherwise the entries have to be removed one by one.
func Erase(path string) (bool, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return true, nil
	case err != nil:
		return false, err
	case info.Mode().IsRegular():
		err = os.Remove(path)
	case !isSubvolume(path) || removeSubvolume(path) != nil:
		return false, nil
	}
	return err == nil, errors.Join(err, syncDir(filepath.Dir(path)))
}

// Remove makes the folder of a home ready to be removed or renamed: it unmounts what is mounted as the
// file system of the home, and clears the limit of its project.
func Remove(folder string) error {
	releaseProject(filepath.Join(folder, homeName))
	releaseProject(filepath.Join(folder, newHomeName))
	at := filepath.Join(folder, mountName)
	for mounted(at) {
		if err := unmount(at); err != nil {
			return fmt.Errorf("unmount the home's file system: %w", err)
		}
	}
	return nil
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
