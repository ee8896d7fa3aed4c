package archive

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"codehub/internal/testing/archivetest"
)

func TestAttributesOfAnotherFolder(t *testing.T) {
	t.Parallel()
	from, to := t.TempDir(), t.TempDir()
	check(t, unix.Chmod(from, 0o3751))
	if os.Geteuid() == 0 {
		check(t, os.Chown(from, 1000, 1001))
		check(t, unix.Chmod(from, 0o3751))
	}
	check(t, unix.Setxattr(from, "user.kept", []byte("x"), 0))
	check(t, unix.Setxattr(from, "system.posix_acl_default", archivetest.ACL(7, 5, 0, 4321), 0))
	check(t, unix.Setxattr(to, "user.old", []byte("x"), 0))
	check(t, unix.UtimesNanoAt(unix.AT_FDCWD, from, []unix.Timespec{{Sec: 5, Nsec: 6}, {Sec: 7, Nsec: 8}}, 0))
	a, err := ReadAttributes(from)
	check(t, err)
	check(t, a.Apply(to))
	if diff := cmp.Diff(archivetest.Snapshot(t, from), archivetest.Snapshot(t, to)); diff != "" {
		t.Errorf("-from +to:\n%s", diff)
	}
}
