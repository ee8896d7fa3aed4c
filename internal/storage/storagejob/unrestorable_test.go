package storagejob

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A home with an entry that a restore could not recreate is not archived, and the job names the
// entry.
func TestArchiveJobRefusesUnrestorableHome(t *testing.T) {
	t.Parallel()
	inMountNamespace(t, func(t *testing.T) {
		home, object, scratch := smallHome(t), t.TempDir(), t.TempDir()
		// A file system without user attributes.
		check(t, syscall.Mount("none", scratch, "ramfs", 0, ""))
		t.Cleanup(func() { check(t, syscall.Unmount(scratch, syscall.MNT_DETACH)) })
		check(t, unix.Setxattr(filepath.Join(home, "folder-2"), "user.large", make([]byte, 2000), 0))
		r := do(t.Context(), t, archiveSpec(), Dirs{Home: home, Object: object, Scratch: scratch})
		r.wantError(t, Unrestorable)
		if m := r.result.Error.Message; !strings.Contains(m, `"folder-2"`) || !strings.Contains(m, `"user.large"`) {
			t.Errorf("the message is %q", m)
		}
		if left := namesIn(t, object); len(left) > 0 {
			t.Errorf("the folder of the archive holds %q", left)
		}
		check(t, unix.Removexattr(filepath.Join(home, "folder-2"), "user.large"))
		succeed(t, archiveSpec(), Dirs{Home: home, Object: object, Scratch: scratch})
	})
}

func TestJobErrorsAreCut(t *testing.T) {
	t.Parallel()
	home := filepath.Join(t.TempDir(), strings.Repeat("n", 255))
	check(t, os.WriteFile(home, nil, 0o600))
	r := do(t.Context(), t, archiveSpec(), Dirs{Home: home, Object: t.TempDir()})
	r.wantError(t, Failed)
}
