package homebackup_test

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"codehub/internal/storage/store"
	"codehub/internal/testing/harness"
)

// power is the disk of a bucket: an ext4 file system in a file, which can lose its power.
type power struct {
	image, folder string
	term          time.Duration // how long the last term took that was not cut; 0: there is none
}

// cut stops the file system as a power cut does: of what was not synced, nothing is written any more, neither
// data nor journal. It is the test of file systems by xfstests. The disk keeps all writes that it has received.
func (p *power) cut(k *killed) {
	const shutdown, withoutFlush = 0x8004587d, 2 // EXT4_IOC_SHUTDOWN, EXT4_GOING_FLAGS_NOLOGFLUSH
	fd, err := unix.Open(p.folder, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		k.Errorf("open the disk: %v", err)
		return
	}
	defer unix.Close(fd)
	flags := uint32(withoutFlush)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), shutdown, uintptr(unsafe.Pointer(&flags))); errno != 0 {
		k.Errorf("cut the power: %v", errno)
	}
}

// on mounts the file system, which replays its journal.
func (p *power) on(k *killed) {
	k.Helper()
	harness.EventuallyWithin(k, patience, "the disk is not used", func() bool { return unix.Unmount(p.folder, 0) == nil })
	p.mount(k)
}

func (p *power) mount(k *killed) {
	k.Helper()
	if out, err := exec.Command("mount", "-o", "loop,user_xattr", p.image, p.folder).CombinedOutput(); err != nil {
		k.Fatalf("mount: %v: %s", err, out)
	}
}

// inMounts is set in the process that may mount file systems.
const inMounts = "CODEHUB_TEST_MOUNTS"

// The power of the bucket's disk fails at random moments while backups are made and removed: leader, jobs and file
// system stop at once. The database keeps what it has committed. After each cut every backup that is listed
// restores exactly. CODEHUB_TEST_CUTS sets how often the power fails: 50 times take about a minute.
func TestBackupsAreRestorableAfterPowerCuts(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root: only root may mount an ext4 file system")
	}
	if os.Getenv(inMounts) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), inMounts+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
		out, err := cmd.CombinedOutput()
		if t.Logf("%s", out); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Fatalf("with file systems of its own: %v", err)
		}
		return
	}
	check(t, syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
	seed := number("CODEHUB_TEST_SEED", rand.Uint64())
	t.Logf("CODEHUB_TEST_SEED=%d", seed)
	k := newKilled(t, seed, 4)
	p := &power{image: filepath.Join(t.TempDir(), "image"), folder: k.bucket.Folder}
	if out, err := exec.Command("mkfs.ext4", "-q", p.image, "2G").CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v: %s", err, out)
	}
	p.mount(k)
	t.Cleanup(func() { check(t, unix.Unmount(p.folder, 0)) })
	check(t, store.NewFolder(p.folder).Check(t.Context()))
	check(t, k.bucket.Check(t.Context(), false))
	k.power = p
	k.untilKilled(int(number("CODEHUB_TEST_CUTS", 50)), "power")
}
