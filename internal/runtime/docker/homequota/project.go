package homequota

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The projects of homes. An id is chosen if no file of the file system has it and no limit is set
// for it, so no list of ids is needed: the folder of a home has its id as long as the home exists.
// The range keeps homes apart from other projects on the file system, such as those of Docker's
// overlay2.size, which start at 1.
const (
	firstProject = 1_500_000_000
	lastProject  = 1_999_999_999
)

// record is the extended attribute with the project that a home was given. The home belongs to the
// workspace's user, who may be able to change its project, but not this. It also has the inode, so
// that a copy has no project.
const record = "trusted.codehub.project"

// Commands of quotactl for project quotas, from linux/quota.h and linux/dqblk_xfs.h. XFS and ext4
// both have them.
const (
	ofProjects = 2 // PRJQUOTA
	getQuota   = 0x800007<<8 | ofProjects
	setQuota   = 0x800008<<8 | ofProjects
	getState   = 0x5805<<8 | ofProjects // Q_XGETQSTAT
)

// quota is struct if_dqblk.
type quota struct {
	blockLimit, softBlockLimit, bytes  uint64 // limits in blocks of 1 KiB
	inodeLimit, softInodeLimit, inodes uint64

	blockGrace, inodeGrace uint64

	valid uint32
}

const (
	quotaBlock  = 1 << 10
	largeBlock  = 64 << 10 // the largest block of a file system; the kernel rounds limits to blocks
	validLimits = 1 | 4    // QIF_BLIMITS, QIF_ILIMITS
)

// quotaState is struct fs_quota_stat.
type quotaState struct {
	version int8
	flags   uint16

	_ [76]byte
}

const projectsEnforced = 1 << 5 // FS_QUOTA_PDQ_ENFD

// Requests of linux/fs.h for struct fsxattr, which golang.org/x/sys/unix lacks.
const (
	getFSXAttr = 0x801c581f // FS_IOC_FSGETXATTR
	setFSXAttr = 0x401c5820 // FS_IOC_FSSETXATTR
)

// inheritProject is the flag of a folder by which what is made in it gets its project and this
// flag, and by which nothing of another project can be moved into it (FS_XFLAG_PROJINHERIT).
const inheritProject = 0x200

// attributes is struct fsxattr.
type attributes struct {
	flags, extentSize, extents, project, cowExtentSize uint32

	_ [8]byte
}

func readAttributes(f *os.File) (a attributes, err error) {
	err = ioctlFile(f, getFSXAttr, unsafe.Pointer(&a))
	return a, err
}

func setAttributes(f *os.File, a attributes) error {
	return ioctlFile(f, setFSXAttr, unsafe.Pointer(&a))
}

// projectLimits are the limits of a home of so many bytes; 0: none. Empty files take no blocks, but
// inodes, which other homes need, too. As in an image there is one for each 8 KiB.
func projectLimits(limit int64) quota {
	if limit <= 0 {
		return quota{valid: validLimits}
	}
	return quota{
		blockLimit: (uint64(limit) + largeBlock - 1) / largeBlock * (largeBlock / quotaBlock),
		inodeLimit: uint64(max(limit, minImage) / bytesPerInode),
		valid:      validLimits,
	}
}

func (q quota) sameLimits(other quota) bool {
	return q.blockLimit == other.blockLimit && q.inodeLimit == other.inodeLimit
}

func (q quota) free() bool { return q.bytes == 0 && q.inodes == 0 && q.sameLimits(quota{}) }

// used is how many bytes are used, or the share of the inodes if that is larger.
func (q quota) used() int64 {
	used := float64(q.bytes)
	if q.inodeLimit > 0 {
		used = max(used, float64(q.blockLimit*quotaBlock)*float64(q.inodes)/float64(q.inodeLimit))
	}
	return int64(used)
}

// onProjectFS reports whether the path is on a file system whose project quotas are used here.
func onProjectFS(path string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(path, &fs) == nil && (fs.Type == unix.XFS_SUPER_MAGIC || fs.Type == unix.EXT4_SUPER_MAGIC)
}

func projectsEnforcedIn(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return projectFolder{f}.enforced() == nil
}

// projectFolder is an open folder whose project can be read and set.
type projectFolder struct{ *os.File }

// openProject opens a home that was given a project, and returns the project's id. The caller closes
// the home.
func openProject(path string) (f projectFolder, id uint32, ok bool) {
	file, err := os.Open(path)
	if err != nil {
		return projectFolder{}, 0, false
	}
	f = projectFolder{file}
	if id, err = f.recorded(); err != nil {
		f.Close()
		return projectFolder{}, 0, false
	}
	return f, id, true
}

// recorded returns the project that setRecord was called with.
func (f projectFolder) recorded() (id uint32, err error) {
	var text [64]byte
	n, err := unix.Fgetxattr(int(f.Fd()), record, text[:])
	if err != nil {
		return 0, err
	}
	if _, err := fmt.Sscanf(string(text[:n]), "%d", &id); err != nil {
		return 0, err
	}
	want, err := f.recordOf(id)
	if err == nil && (string(text[:n]) != want || id < firstProject || id > lastProject) {
		err = errors.New("the record is that of another folder")
	}
	return id, err
}

func (f projectFolder) setRecord(id uint32) error {
	text, err := f.recordOf(id)
	if err == nil {
		err = unix.Fsetxattr(int(f.Fd()), record, []byte(text), 0)
	}
	if err != nil {
		return fmt.Errorf("record the project of a folder: %w", err)
	}
	return nil
}

func (f projectFolder) recordOf(id uint32) (string, error) {
	var st unix.Stat_t
	err := unix.Fstat(int(f.Fd()), &st)
	return fmt.Sprintf("%d of inode %d", id, st.Ino), err
}

// holds reports whether the folder gives its content the project, and the limit of that is enforced.
func (f projectFolder) holds(id uint32) bool {
	a, err := readAttributes(f.File)
	return err == nil && a.project == id && a.flags&inheritProject != 0 && f.enforced() == nil
}

func (f projectFolder) quotactl(command uintptr, id uint32, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, f.Fd(), command, uintptr(id), uintptr(arg), 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// enforced returns an error if the file system does not enforce project quotas.
func (f projectFolder) enforced() error {
	var state quotaState
	err := f.quotactl(getState, 0, unsafe.Pointer(&state))
	switch {
	case err == nil && state.flags&projectsEnforced != 0:
		return nil
	case err == nil:
		return errNotEnforced
	case errors.Is(err, unix.ENOSYS): // also of a file system with no quotas at all
		return fmt.Errorf("%w, or this Linux is older than 5.14", errNotEnforced)
	}
	return fmt.Errorf("read the state of the quotas: %w", err)
}

// ErrUnavailable reports that the file system does not offer projects to homes, so that only plain
// folders can be made.
var ErrUnavailable = errors.New("homes cannot have project quotas")

var errNotEnforced = fmt.Errorf("%w: they are turned off on this file system (the mount option prjquota turns them on)", ErrUnavailable)

func (f projectFolder) quota(id uint32) (q quota, err error) {
	err = f.quotactl(getQuota, id, unsafe.Pointer(&q))
	if errors.Is(err, unix.ENOENT) { // XFS has no entry for it yet
		return quota{}, nil
	}
	if err != nil {
		return quota{}, fmt.Errorf("read the quota of project %d: %w", id, err)
	}
	return q, nil
}

func (f projectFolder) limit(id uint32, limit int64) error {
	q := projectLimits(limit)
	if err := f.quotactl(setQuota, id, unsafe.Pointer(&q)); err != nil {
		return fmt.Errorf("limit project %d: %w", id, err)
	}
	return nil
}

// join gives an empty folder a project of its own and returns its id.
func (f projectFolder) join() (uint32, error) {
	a, err := readAttributes(f.File)
	if err != nil {
		return 0, fmt.Errorf("read the project of a folder: %w", err)
	}
	if a.project != 0 || a.flags&inheritProject != 0 {
		return 0, fmt.Errorf("%w: the folder above belongs to project %d, and what is in it has to stay there", ErrUnavailable, a.project)
	}
	a.flags |= inheritProject
	for id := uint32(firstProject); id <= lastProject; {
		q, err := f.quota(id)
		if err != nil {
			return 0, err
		}
		if !q.free() {
			id++
			continue
		}
		a.project = id
		if err := setAttributes(f.File, a); err != nil {
			return 0, fmt.Errorf("set the project of a folder: %w", err)
		}
		// Another call, of another server for example, may have taken the same id. Of two such
		// calls at least one sees both folders, and takes another id.
		if q, err = f.quota(id); err != nil {
			return 0, err
		}
		if q.inodes <= 1 {
			return id, nil
		}
		id += 1 + rand.Uint32N(64)
	}
	return 0, fmt.Errorf("all projects from %d to %d are in use", firstProject, lastProject)
}

const newHomeName = ".home.new"

// makeProject makes a home with a project of its own. Once the folder has its name, its project has
// its limit.
func makeProject(folder string, limit int64) error {
	path := filepath.Join(folder, newHomeName)
	releaseProject(path)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	err := setUpProject(path, limit)
	if err == nil {
		err = unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, filepath.Join(folder, homeName), unix.RENAME_NOREPLACE)
	}
	if err != nil {
		releaseProject(path)
		return errors.Join(err, os.Remove(path))
	}
	return syncDir(folder)
}

func setUpProject(path string, limit int64) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	f := projectFolder{file}
	if err := f.enforced(); err != nil {
		return err
	}
	id, err := f.join()
	if err != nil {
		return err
	}
	// Not before it is known that no other home has the project: releaseProject clears the limit of
	// the recorded one.
	if err := f.setRecord(id); err != nil {
		return err
	}
	return f.limit(id, limit)
}

// releaseProject clears the limit of a home that is not used any more, so that its id is free once
// its files are removed. That is not possible while quotas are turned off, and no reason to keep the
// home: at worst the id is not taken again.
func releaseProject(path string) {
	f, id, ok := openProject(path)
	if !ok {
		return
	}
	defer f.Close()
	_ = f.limit(id, 0)
}

// projectQuota is the quota of a home with a project, if it is enforced.
func projectQuota(path string) (q quota, ok bool) {
	f, id, ok := openProject(path)
	if !ok {
		return quota{}, false
	}
	defer f.Close()
	if !f.holds(id) {
		return quota{}, false
	}
	q, err := f.quota(id)
	return q, err == nil
}

// limitProject gives a home with a project another limit; ErrKept if it has no project, or one
// whose limit is not enforced.
func limitProject(path string, limit int64) error {
	f, id, ok := openProject(path)
	if !ok {
		return ErrKept
	}
	defer f.Close()
	if !f.holds(id) {
		return ErrKept
	}
	return f.limit(id, limit)
}
