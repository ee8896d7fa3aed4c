package archive

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"codehub/internal/testing/archivetest"
)

// deepHome is set in the process that has few descriptors: a home, and where it
// is restored.
const deepHome = "CODEHUB_TEST_DEEP_HOME"

// makeDeep creates nested folders, some with a file, a hard link to it at the top, and an ACL.
func makeDeep(tb testing.TB, home string, depth int) {
	tb.Helper()
	check(tb, os.WriteFile(filepath.Join(home, "top"), []byte("top"), 0o644))
	top, err := unix.Open(home, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	check(tb, err)
	defer unix.Close(top)
	at, err := unix.Dup(top)
	check(tb, err)
	for i := range depth {
		if i%100 == 99 {
			check(tb, unix.Mknodat(at, "file", unix.S_IFREG|0o640, 0))
			check(tb, unix.Linkat(top, "top", at, "linked", 0))
			check(tb, unix.Mkdirat(at, "z", 0o711))
			check(tb, unix.Fsetxattr(at, "system.posix_acl_default", archivetest.ACL(7, 5, 0, 4321), 0))
		}
		check(tb, unix.Mkdirat(at, "d", 0o755))
		next, err := unix.Openat(at, "d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		check(tb, err)
		unix.Close(at)
		at = next
	}
	check(tb, unix.Mknodat(at, "bottom", unix.S_IFREG|0o600, 0))
	unix.Close(at)
}

// Folders that are nested deeper than a process has descriptors are packed, verified, unpacked
// and compared.
func TestArchiveHomeDeeperThanDescriptors(t *testing.T) {
	if where := os.Getenv(deepHome); where != "" {
		home, restored, _ := strings.Cut(where, ":")
		limit := unix.Rlimit{Cur: 256, Max: 256}
		check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
		stats, b := packWith(t, home, PackOptions{Scratch: t.TempDir()})
		meta := metaOf(stats)
		_, err := Verify(t.Context(), bytes.NewReader(b), meta, nil)
		check(t, err)
		_, err = Unpack(t.Context(), bytes.NewReader(b), restored, UnpackOptions{Expect: meta})
		check(t, err)
		if f := fingerprintOf(t, home); f != stats.Fingerprint {
			t.Errorf("Fingerprint = %s, want %s", f, stats.Fingerprint)
		}
		return
	}
	t.Parallel()
	home, restored := filepath.Join(t.TempDir(), "home"), filepath.Join(t.TempDir(), "restored")
	check(t, os.Mkdir(home, 0o755))
	check(t, os.Mkdir(restored, 0o755))
	makeDeep(t, home, 600)
	cmd := exec.Command(os.Args[0], "-test.run=^TestArchiveHomeDeeperThanDescriptors$", "-test.v")
	cmd.Env = append(os.Environ(), deepHome+"="+home+":"+restored)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("with 256 descriptors: %v\n%.4000s", err, out)
	}
	if diff := archivetest.Diff(archivetest.Snapshot(t, home), archivetest.Snapshot(t, restored)); diff != "" {
		t.Errorf("the restored home differs:\n%.4000s", diff)
	}
}

// A path that is too long for an archive is refused by name, before anything is stored.
func TestPackRefusesLongPaths(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	name := strings.Repeat("n", maxName)
	at, err := unix.Open(home, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	check(t, err)
	for range maxPath/(maxName+1) + 1 {
		check(t, unix.Mkdirat(at, name, 0o755))
		next, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		check(t, err)
		unix.Close(at)
		at = next
	}
	unix.Close(at)
	_, err = Pack(t.Context(), home, &bytesWriter{}, PackOptions{})
	if !errors.Is(err, ErrUnrestorable) || !strings.Contains(err.Error(), "nnnn") || len(err.Error()) > 1000 {
		t.Errorf("Pack = %.2000v, want a short ErrUnrestorable with the path", err)
	}
}
