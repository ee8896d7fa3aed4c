//go:build projectvm

package homequota

// These tests need a kernel with project quotas. scripts/project-quota.sh runs them in a virtual
// machine, in which this program is the first process.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"codehub/internal/archive"
	"codehub/internal/base/treewipe"
	"codehub/internal/testing/archivetest"
)

// TestMain sets the virtual machine up, runs the tests, and turns it off.
func TestMain(m *testing.M) {
	code := 1
	if err := setUpMachine(); err != nil {
		fmt.Println("set the machine up:", err)
	} else {
		code = m.Run()
	}
	fmt.Println("project-quota: the tests ended with code", code)
	unix.Sync()
	fmt.Println(unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF))
}

func setUpMachine() error {
	if os.Getpid() != 1 {
		return errors.New("this is not a virtual machine")
	}
	for at, kind := range map[string]string{"/proc": "proc", "/sys": "sysfs", "/dev": "devtmpfs", "/tmp": "tmpfs"} {
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(kind, at, kind, 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s: %w", at, err)
		}
	}
	return loadModules("/modules")
}

// loadModules loads all modules of a folder, in the order in which they need each other.
func loadModules(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, "*.ko"))
	if err != nil {
		return err
	}
	for len(left) > 0 {
		var failed []string
		var last error
		for _, path := range left {
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			err = unix.FinitModule(int(f.Fd()), "", 0)
			f.Close()
			if err != nil && !errors.Is(err, unix.EEXIST) {
				failed, last = append(failed, path), err
			}
		}
		if len(failed) == len(left) {
			return fmt.Errorf("load %v: %w", failed, last)
		}
		left = failed
	}
	return nil
}

const workspaceUID = 1_500_000

// disks are the file systems of the virtual machine.
var disks = []disk{
	{"xfs", "/dev/vda", "prjquota"},
	{"ext4", "/dev/vdb", "prjquota"},
}

type disk struct{ kind, device, quotas string }

func (d disk) mount(t *testing.T, options string) string {
	t.Helper()
	at := filepath.Join("/mnt", d.kind)
	d.mountAt(t, at, options)
	return at
}

func (d disk) mountAt(t *testing.T, at, options string) {
	t.Helper()
	check(t, os.MkdirAll(at, 0o755))
	check(t, unix.Mount(d.device, at, d.kind, 0, options))
}

func (d disk) unmount(t *testing.T) {
	t.Helper()
	check(t, unix.Unmount(filepath.Join("/mnt", d.kind), 0))
}

// onDisks runs a test on each file system. It gets an empty folder.
func onDisks(t *testing.T, test func(t *testing.T, d disk, at string)) {
	for _, d := range disks {
		t.Run(d.kind, func(t *testing.T) {
			t.Parallel()
			at := d.mount(t, d.quotas)
			t.Cleanup(func() { d.unmount(t) })
			at, err := os.MkdirTemp(at, "homes-")
			check(t, err)
			t.Cleanup(func() { check(t, os.RemoveAll(at)) })
			check(t, os.Chmod(at, 0o777))
			test(t, d, at)
		})
	}
}

// newProject makes a home that belongs to the uid of a workspace.
func newProject(t *testing.T, at string, limit int64) string {
	t.Helper()
	folder, err := os.MkdirTemp(at, "ws-")
	check(t, err)
	t.Cleanup(func() { check(t, Remove(folder)) })
	check(t, os.Chmod(folder, 0o755))
	check(t, Make(Project, folder, limit))
	check(t, os.Chown(Home(folder), workspaceUID, workspaceUID))
	return folder
}

// asWorkspace calls call with the uid of a workspace and without capabilities.
func asWorkspace(t *testing.T, call func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	become := func(uid uintptr) {
		if _, _, errno := syscall.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uid, ^uintptr(0)); errno != 0 {
			t.Fatal(errno)
		}
	}
	become(workspaceUID)
	defer become(0)
	call()
}

// write writes a file as the workspace.
func write(t *testing.T, path string, mib int) (err error) {
	t.Helper()
	asWorkspace(t, func() {
		var f *os.File
		if f, err = os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
			return
		}
		block := make([]byte, 1<<20)
		for range mib {
			if _, err = f.Write(block); err != nil {
				break
			}
		}
		err = errors.Join(err, f.Sync(), f.Close())
	})
	return err
}

func full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

func projectOf(t *testing.T, path string) uint32 {
	t.Helper()
	file, err := os.Open(path)
	check(t, err)
	defer file.Close()
	a, err := readAttributes(file)
	check(t, err)
	if a.flags&inheritProject == 0 || a.project < firstProject {
		t.Fatalf("%s has no project", path)
	}
	return a.project
}

// setProject gives a folder a project, as its owner can without the seccomp profile.
func setProject(t *testing.T, path string, id uint32) {
	t.Helper()
	file, err := os.Open(path)
	check(t, err)
	defer file.Close()
	a, err := readAttributes(file)
	check(t, err)
	a.project, a.flags = id, a.flags|inheritProject
	check(t, setAttributes(file, a))
}

func quotaOf(t *testing.T, path string, id uint32) quota {
	t.Helper()
	file, err := os.Open(path)
	check(t, err)
	defer file.Close()
	q, err := projectFolder{file}.quota(id)
	check(t, err)
	return q
}

// A full home gets an error, its neighbour notices nothing, and a larger limit gives it more.
func TestProjectLimitsHome(t *testing.T) {
	onDisks(t, func(t *testing.T, d disk, at string) {
		if kind := Detect(at); kind != Project {
			t.Errorf("homes would be of the kind %q: %v", kind, Probe(Project, at))
		}
		folder, neighbour := newProject(t, at, minImage), newProject(t, at, minImage)
		file := filepath.Join(Home(folder), "large")
		if err := write(t, file, 200); !full(err) {
			t.Errorf("200 MiB in a home of 64 MiB: %v", err)
		} else {
			t.Logf("a full home: %v", err)
		}
		if err := write(t, filepath.Join(Home(neighbour), "fits"), 20); err != nil {
			t.Errorf("the neighbour: %v", err)
		}
		if n, known := Used(folder); !known || n < minImage*9/10 || n > minImage {
			t.Errorf("%d bytes are used of %d, %v", n, minImage, known)
		}
		if !Limits(folder) || !ownsDisk(folder) || !Holds(folder, minImage) || Holds(folder, 2*minImage) {
			t.Error("the home does not have its limit")
		}
		var fs unix.Statfs_t
		check(t, unix.Statfs(Home(folder), &fs))
		if n := int64(fs.Blocks) * fs.Bsize; n != minImage {
			t.Errorf("the file system reports %d bytes", n)
		}
		// The job of a restore reads the space of the disk there.
		check(t, unix.Statfs(folder, &fs))
		if n := int64(fs.Blocks) * fs.Bsize; n < 4*minImage {
			t.Errorf("the file system reports %d bytes around the home", n)
		}
		check(t, Limit(folder, 2*minImage+1))
		if !Holds(folder, 2*minImage+1) {
			t.Errorf("the limit is %+v", quotaOf(t, at, projectOf(t, Home(folder))))
		}
		if err := write(t, file, 50); err != nil {
			t.Errorf("50 MiB more in a home of 128 MiB: %v", err)
		}
		check(t, Limit(folder, minImage/2))
		if err := write(t, file, 1); !full(err) {
			t.Errorf("a home over its limit: %v", err)
		}
		asWorkspace(t, func() { check(t, os.Remove(file)) })
		if err := write(t, file, 20); err != nil {
			t.Errorf("a home that was emptied: %v", err)
		}
		check(t, Limit(folder, 0))
		if err := write(t, file, 100); err != nil || ownsDisk(folder) || !Limits(folder) || !Holds(folder, 0) {
			t.Errorf("a home without a limit: %v", err)
		}
	})
}

// Empty files, links and names take inodes or space, so a home cannot have any number of them.
func TestProjectLimitsInodes(t *testing.T) {
	onDisks(t, func(t *testing.T, d disk, at string) {
		folder := newProject(t, at, minImage)
		var made int
		var err error
		asWorkspace(t, func() {
			for ; err == nil && made < 10000; made++ {
				err = os.Symlink("x", filepath.Join(Home(folder), strconv.Itoa(made)))
			}
		})
		if !full(err) || made < 8000 {
			t.Errorf("%d links in a home of 64 MiB: %v", made, err)
		}
		if n, known := Used(folder); !known || n < minImage*9/10 || n > minImage {
			t.Errorf("%d bytes are used of %d, %v", n, minImage, known)
		}
	})
}

// What is made, moved and linked in a home has its project. Other ways into a home, and from one
// into another, are refused.
func TestProjectTree(t *testing.T) {
	onDisks(t, func(t *testing.T, d disk, at string) {
		one, two := newProject(t, at, minImage), newProject(t, at, minImage)
		id := projectOf(t, Home(one))
		outside := filepath.Join(at, "outside")
		check(t, os.WriteFile(outside, make([]byte, 1<<20), 0o666))
		check(t, os.Chown(outside, workspaceUID, workspaceUID))
		asWorkspace(t, func() {
			home := Home(one)
			check(t, os.MkdirAll(filepath.Join(home, "a", "b"), 0o700))
			check(t, os.WriteFile(filepath.Join(home, "a", "b", "file"), []byte("x"), 0o600))
			check(t, os.Rename(filepath.Join(home, "a", "b"), filepath.Join(home, "c")))
			check(t, os.Link(filepath.Join(home, "c", "file"), filepath.Join(home, "link")))
			for name, err := range map[string]error{
				"rename to another home": os.Rename(filepath.Join(home, "link"), filepath.Join(Home(two), "link")),
				"link to another home":   os.Link(filepath.Join(home, "link"), filepath.Join(Home(two), "link")),
				"rename into a home":     os.Rename(outside, filepath.Join(home, "outside")),
				"link into a home":       os.Link(outside, filepath.Join(home, "outside")),
			} {
				if !errors.Is(err, unix.EXDEV) {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
		if got := projectOf(t, filepath.Join(Home(one), "c")); got != id {
			t.Errorf("a folder of project %d is in the home of project %d", got, id)
		}
		if n := quotaOf(t, at, id).inodes; n != 4 { // home, a, c, file
			t.Errorf("the project has %d inodes", n)
		}
		// root can move a file out of a home; it still counts.
		check(t, os.Rename(filepath.Join(Home(one), "link"), filepath.Join(at, "moved")))
		if n := quotaOf(t, at, id).inodes; n != 4 {
			t.Errorf("the project has %d inodes after a move", n)
		}
	})
}

// The owner of a file can change its project, and stop a folder from giving its own. That is why the
// seccomp profile refuses these requests.
func TestProjectCanBeLeftWithoutFilter(t *testing.T) {
	onDisks(t, func(t *testing.T, d disk, at string) {
		folder := newProject(t, at, minImage)
		asWorkspace(t, func() {
			file, err := os.Open(Home(folder))
			check(t, err)
			defer file.Close()
			flags, err := unix.IoctlGetInt(int(file.Fd()), unix.FS_IOC_GETFLAGS)
			check(t, err)
			check(t, unix.IoctlSetPointerInt(int(file.Fd()), unix.FS_IOC_SETFLAGS, flags&^0x20000000))
		})
		if err := write(t, filepath.Join(Home(folder), "large"), 100); err != nil {
			t.Errorf("100 MiB in a home whose flag was cleared: %v", err)
		}
		asWorkspace(t, func() {
			file, err := os.Open(Home(folder))
			check(t, err)
			defer file.Close()
			a, err := readAttributes(file)
			check(t, err)
			a.project = 0
			check(t, setAttributes(file, a))
		})
	})
}

// Each home has an id of its own, also if many are made at once, and an id is free again once its
// home is removed.
func TestProjectIDs(t *testing.T) {
	onDisks(t, func(t *testing.T, d disk, at string) {
		folders := make([]string, 24)
		errs := make([]error, len(folders))
		for i := range folders {
			folders[i] = filepath.Join(at, strconv.Itoa(i))
			check(t, os.Mkdir(folders[i], 0o755))
		}
		var all sync.WaitGroup
		for i, folder := range folders {
			all.Go(func() { errs[i] = Make(Project, folder, minImage) })
		}
		all.Wait()
		owners := map[uint32]int{}
		for i, folder := range folders {
			check(t, errs[i])
			id := projectOf(t, Home(folder))
			if other, taken := owners[id]; taken {
				t.Errorf("homes %d and %d have the project %d", other, i, id)
			}
			owners[id] = i
			if q := quotaOf(t, at, id); q.inodes != 1 || !q.sameLimits(projectLimits(minImage)) {
				t.Errorf("the project of home %d: %+v", i, q)
			}
		}
		first := folders[0]
		id := projectOf(t, Home(first))
		check(t, os.WriteFile(filepath.Join(Home(first), "file"), []byte("x"), 0o600))
		check(t, Discard(first, "removed"))
		check(t, Make(Project, first, minImage))
		if got := projectOf(t, Home(first)); got == id {
			t.Error("the new home has the project of the one that is being removed")
		}
		check(t, treewipe.Remove(t.Context(), filepath.Join(first, "removed"), nil))
		for end := time.Now().Add(time.Minute); !quotaOf(t, at, id).free(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the project of a removed home: %+v", quotaOf(t, at, id))
			}
		}
		for _, folder := range folders {
			check(t, Remove(folder))
		}
	})
}

// A call that was interrupted leaves a folder that the next one replaces.
func TestProjectMadeAgain(t *testing.T) {
	onDisks(t, func(t *testing.T, d disk, at string) {
		folder := filepath.Join(at, "ws")
		half := filepath.Join(folder, newHomeName)
		check(t, os.MkdirAll(half, 0o700))
		check(t, setUpProject(half, minImage))
		id := projectOf(t, half)
		check(t, Make(Project, folder, 2*minImage))
		if !Holds(folder, 2*minImage) {
			t.Errorf("the home does not have its limit: %+v", quotaOf(t, at, projectOf(t, Home(folder))))
		}
		if got := projectOf(t, Home(folder)); got != id && !quotaOf(t, at, id).sameLimits(quota{}) {
			t.Error("the project of the interrupted call has a limit")
		}
		if err := Make(Project, folder, minImage); !errors.Is(err, unix.EEXIST) {
			t.Errorf("a home that exists: %v", err)
		}
		if left, err := filepath.Glob(half); err != nil || len(left) > 0 {
			t.Errorf("left %v: %v", left, err)
		}
		check(t, Remove(folder))
	})
}

// A home that has the project of another one, because its owner changed that or because it was made at
// the same moment, does not change the limit of the other one.
func TestProjectOfAnotherHome(t *testing.T) {
	onDisks(t, func(t *testing.T, d disk, at string) {
		victim := newProject(t, at, minImage)
		id := projectOf(t, Home(victim))
		hasLimit := func(after string) {
			t.Helper()
			if !Holds(victim, minImage) || !Limits(victim) {
				t.Errorf("%s: the limit of the other home is %+v", after, quotaOf(t, at, id))
			}
		}
		plain := filepath.Join(at, "plain")
		check(t, os.Mkdir(plain, 0o755))
		check(t, Make(None, plain, 0))
		limited := newProject(t, at, minImage)
		own := projectOf(t, Home(limited))
		for name, folder := range map[string]string{"a plain home": plain, "a home with a project": limited} {
			check(t, os.Chown(Home(folder), workspaceUID, workspaceUID))
			asWorkspace(t, func() {
				setProject(t, Home(folder), id)
				if err := unix.Setxattr(Home(folder), record, []byte("x"), 0); !errors.Is(err, unix.EPERM) {
					t.Errorf("%s: its owner changes the record: %v", name, err)
				}
			})
			if _, known := Used(folder); known || Limits(folder) || ownsDisk(folder) {
				t.Errorf("%s has the limit of another one", name)
			}
			if err := Limit(folder, 2*minImage); !errors.Is(err, ErrKept) {
				t.Errorf("%s: Limit: %v", name, err)
			}
			hasLimit("limit " + name)
			check(t, Discard(folder, "removed"))
			hasLimit("discard " + name)
		}
		if q := quotaOf(t, at, own); !q.sameLimits(quota{}) {
			t.Errorf("the project of a removed home has limits: %+v", q)
		}

		// A copy of a home with all attributes has the record of another inode.
		folder := filepath.Join(at, "copy")
		check(t, os.MkdirAll(filepath.Join(folder, homeName), 0o755))
		var text [64]byte
		n, err := unix.Getxattr(Home(victim), record, text[:])
		check(t, err)
		check(t, unix.Setxattr(Home(folder), record, text[:n], 0))
		setProject(t, Home(folder), id)
		if _, known := Used(folder); known || Limits(folder) {
			t.Error("a copy has the limit of the original")
		}
		check(t, Remove(folder))
		hasLimit("remove a copy")

		// A call that was interrupted while two homes had the id.
		check(t, os.MkdirAll(filepath.Join(at, "ws", newHomeName), 0o755))
		setProject(t, filepath.Join(at, "ws", newHomeName), id)
		check(t, Make(Project, filepath.Join(at, "ws"), minImage))
		hasLimit("make a home again")
		check(t, Remove(filepath.Join(at, "ws")))
	})
}

// In a folder with a project of an administrator's, homes are not limited: they would leave it.
func TestProjectOfAdministrator(t *testing.T) {
	onDisks(t, func(t *testing.T, d disk, at string) {
		setProject(t, at, 7)
		if err := Probe(Project, at); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "belongs to project 7") {
			t.Errorf("the probe: %v", err)
		}
		if kind := Detect(at); kind != None {
			t.Errorf("homes would be of the kind %q", kind)
		}
		folder := filepath.Join(at, "ws")
		check(t, os.Mkdir(folder, 0o700))
		check(t, Make(None, folder, 0))
		if _, known := Used(folder); known || Limits(folder) {
			t.Error("a plain home has the limit of an administrator")
		}
		if left, err := filepath.Glob(filepath.Join(at, ".quota-probe*")); err != nil || len(left) > 0 {
			t.Errorf("left %v: %v", left, err)
		}
	})
}

// A home of a file system whose quotas were turned off is measured, and can be removed. When they are
// turned on again it has its limit.
func TestProjectQuotasTurnedOff(t *testing.T) {
	for _, d := range disks {
		t.Run(d.kind, func(t *testing.T) {
			t.Parallel()
			at := d.mount(t, d.quotas)
			folder, removed := newProject(t, at, minImage), newProject(t, at, minImage)
			d.unmount(t)
			at = d.mount(t, "noquota")
			if _, known := Used(folder); known || Limits(folder) || ownsDisk(folder) {
				t.Error("the home is limited")
			}
			if err := Limit(folder, 2*minImage); !errors.Is(err, ErrKept) {
				t.Errorf("Limit: %v", err)
			}
			if err := write(t, filepath.Join(Home(folder), "large"), 100); err != nil {
				t.Error(err)
			}
			if err := Probe(Project, at); !errors.Is(err, errNotEnforced) || Detect(at) != None {
				t.Errorf("the probe: %v", err)
			}
			check(t, Discard(removed, "removed"))
			check(t, os.RemoveAll(removed))
			d.unmount(t)
			d.mount(t, d.quotas)
			if n, known := Used(folder); !known || n < 100<<20 || !Holds(folder, minImage) {
				t.Errorf("%d bytes are used: %v", n, known)
			}
			if err := write(t, filepath.Join(Home(folder), "more"), 1); !full(err) {
				t.Errorf("a home over its limit: %v", err)
			}
			check(t, Discard(folder, "removed"))
			check(t, os.RemoveAll(folder))
			t.Cleanup(func() { d.unmount(t) })
		})
	}
}

// A folder whose content has another project can be removed.
func TestProjectsInTreeAreRemoved(t *testing.T) {
	onDisks(t, func(t *testing.T, d disk, at string) {
		top := filepath.Join(at, "top")
		check(t, os.MkdirAll(filepath.Join(top, "a", "b", "c"), 0o700))
		check(t, os.WriteFile(filepath.Join(top, "a", "b", "file"), nil, 0o600))
		setProject(t, top, 8)
		check(t, treewipe.Remove(t.Context(), top, nil))
		if _, err := os.Lstat(top); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("it is still there: %v", err)
		}
	})
}

// Every kind of entry is restored into a home with a project, belongs to that, and is removed with it.
func TestProjectRestore(t *testing.T) {
	onDisks(t, func(t *testing.T, d disk, at string) {
		corpus := filepath.Join("/mnt", "corpus for "+d.kind)
		ext4 := disks[1]
		ext4.mountAt(t, corpus, ext4.quotas)
		t.Cleanup(func() { check(t, unix.Unmount(corpus, 0)) })
		from, err := os.MkdirTemp(corpus, "home-")
		check(t, err)
		t.Cleanup(func() { check(t, os.RemoveAll(from)) })
		to := newProject(t, at, 4*minImage)
		archivetest.Corpus(t, from)
		if d.kind == "xfs" { // its links have at most 1,023 bytes
			for _, name := range []string{"long", "longest"} {
				check(t, os.Remove(filepath.Join(from, "links", name)))
			}
		}
		want := archivetest.Snapshot(t, from)
		_, err = archive.PackTo(t.Context(), from, archive.PackOptions{}, func(ctx context.Context, r io.Reader) (n int64, err error) {
			reader, writer := io.Pipe()
			go func() {
				var err error
				n, err = io.Copy(writer, r)
				writer.CloseWithError(err)
			}()
			_, err = archive.Unpack(ctx, reader, Home(to), archive.UnpackOptions{})
			return n, err
		})
		check(t, err)
		got := archivetest.Snapshot(t, Home(to))
		for _, entry := range got { // how XFS stores ACLs
			maps.DeleteFunc(entry.Xattrs, func(name, _ string) bool { return name == record || strings.HasPrefix(name, "trusted.SGI_ACL_") })
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the home has changed by its restore:\n%s", diff)
		}
		check(t, archive.ChangeOwner(t.Context(), Home(to), archive.OwnerChange{From: []uint32{0, 1000}, To: workspaceUID}))
		id := projectOf(t, Home(to))
		inodes := map[uint64]bool{}
		check(t, filepath.WalkDir(Home(to), func(path string, _ fs.DirEntry, err error) error {
			var st unix.Stat_t
			err = errors.Join(err, unix.Lstat(path, &st))
			inodes[st.Ino] = true
			return err
		}))
		if n := quotaOf(t, at, id).inodes; n != uint64(len(inodes)) {
			t.Errorf("the project has %d inodes, and the home has %d", n, len(inodes))
		}
		check(t, Discard(to, "removed"))
		check(t, treewipe.Remove(t.Context(), filepath.Join(to, "removed"), nil))
	})
}
