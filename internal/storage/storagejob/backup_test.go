package storagejob

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"codehub/internal/archive"
	"codehub/internal/workspace"
)

const testManifest = "20260102T030405Z-01900000-0000-7000-8000-00000000000c.manifest.zst"

func backupSpec() Spec {
	return Spec{Kind: "backup", Claim: testClaim, Generation: &Generation{Name: testManifest}}
}

// In a backup the files of the workspace's user belong to the user of archives.
func TestBackupMapsOwner(t *testing.T) {
	t.Parallel()
	home, object := smallHome(t), t.TempDir()
	check(t, unix.Chown(filepath.Join(home, "folder-0"), 12345, 12345))
	spec := backupSpec()
	spec.UID = 12345
	made := succeed(t, spec, Dirs{Home: home, Object: object}).result.Made
	f, err := os.Open(filepath.Join(object, testManifest))
	check(t, err)
	defer f.Close()
	m, err := archive.ReadManifest(f)
	check(t, err)
	for e, err := range m.Entries() {
		check(t, err)
		if want := uint32(workspace.ArchivedUID); e.Name == "folder-0" && (e.UID != want || e.GID != want) {
			t.Errorf("its owner is %d:%d", e.UID, e.GID)
		}
	}
	if st, err := f.Stat(); err != nil || made.Size != st.Size() || made.Files != 20 || made.Added != 21 {
		t.Errorf("the result is %+v", made)
	}
}

// A backup leaves the reserve of the disk of the archives free, as an archive does.
func TestBackupWithoutRoom(t *testing.T) {
	t.Parallel()
	spec := backupSpec()
	spec.MinFree = 0.999999
	r := do(t.Context(), t, spec, Dirs{Home: smallHome(t), Object: t.TempDir()})
	r.wantError(t, Unavailable)
	if r.result.Error != nil && r.result.Error.Room == nil {
		t.Error("the error does not say how much is free")
	}
}

// The former backup and the one to restore must exist and be intact.
func TestMissingAndDamagedManifest(t *testing.T) {
	t.Parallel()
	home, object := smallHome(t), t.TempDir()
	dirs := Dirs{Home: home, Object: object}
	spec := backupSpec()
	spec.Generation.Former = testManifest
	do(t.Context(), t, spec, dirs).wantError(t, NotFound)
	check(t, os.WriteFile(filepath.Join(object, testManifest), []byte("damaged"), 0o600))
	do(t.Context(), t, spec, dirs).wantError(t, Corrupted)
	for _, kind := range []string{"drill", "restore"} {
		spec := backupSpec()
		spec.Kind, spec.Meta = kind, archive.Meta{Size: 7, SHA256: strings.Repeat("0", 64)}
		dirs.Home = t.TempDir()
		check(t, os.WriteFile(filepath.Join(dirs.Home, "old"), nil, 0o600))
		do(t.Context(), t, spec, dirs).wantError(t, Corrupted)
		if !exists(t, filepath.Join(dirs.Home, "old")) {
			t.Error("the home was cleared for a damaged backup")
		}
	}
}

// All threads of a process get the lowest priority.
func TestLowerPriority(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), testPriority+"=1")
	out, err := cmd.Output()
	check(t, err)
	for _, nice := range strings.Fields(string(out)) {
		if nice != "19" {
			t.Errorf("the threads have %s", out)
		}
	}
	if len(out) == 0 {
		t.Error("no threads")
	}
}
