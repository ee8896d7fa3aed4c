package store

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/archive"
)

// smallDisk is set in the process that has a small disk mounted.
const smallDisk = "CODEHUB_TEST_SMALL_DISK"

// A disk that fills up causes no loss. The disk is a small tmpfs in the mount namespace of
// another process.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	if os.Getenv(smallDisk) != "" {
		onSmallDisk(t, os.Getenv(smallDisk))
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestFullDisk$", "-test.v")
	cmd.Env = append(os.Environ(), smallDisk+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestFullDisk") {
		t.Fatalf("in a mount namespace (root or user namespaces are needed): %v\n%s", err, out)
	}
}

func onSmallDisk(t *testing.T, disk string) {
	check(t, syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
	home := t.TempDir()
	check(t, os.WriteFile(filepath.Join(home, "large"), randomBytes(12<<20), 0o600))
	for _, name := range []string{"a", "b", "c"} {
		check(t, os.WriteFile(filepath.Join(home, name), randomBytes(50_000), 0o600))
	}
	packed, meta := pack(t, home)
	check(t, syscall.Mount("none", disk, "tmpfs", 0, "size=8m"))
	t.Cleanup(func() { check(t, syscall.Unmount(disk, syscall.MNT_DETACH)) })

	s := NewFolder(filepath.Join(disk, "archives"))
	check(t, s.Check(t.Context()))
	put(t, s, "ws/kept", []byte("before"))
	full := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, syscall.ENOSPC) || errors.Is(err, archive.ErrCorrupted) || errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v, want a full disk", what, err)
		}
	}
	for _, key := range []string{"ws/kept", "ws/new"} {
		_, err := s.Put(t.Context(), key, bytes.NewReader(packed))
		full("Put", err)
		if !errors.Is(err, ErrUnavailable) {
			t.Errorf("Put: %v, want ErrUnavailable", err)
		}
	}
	_, err := archive.PackTo(t.Context(), home, archive.PackOptions{}, func(ctx context.Context, r io.Reader) (int64, error) { return s.Put(ctx, "ws/new", r) })
	full("PackTo", err)
	if diff := cmp.Diff([]string{"ws/kept"}, keysOf(t, s, "")); diff != "" {
		t.Errorf("the folder holds:\n%s", diff)
	}
	if got := read(t, s, "ws/kept", 0); string(got) != "before" {
		t.Errorf("the existing object is now %q", got)
	}
	if n, err := s.AbortIncomplete(t.Context(), "", 0, nil); n != 0 || err != nil {
		t.Errorf("%d halves left behind, %v", n, err)
	}

	staging := filepath.Join(disk, "staging")
	check(t, os.Mkdir(staging, 0o700))
	_, err = archive.Unpack(t.Context(), bytes.NewReader(packed), staging, archive.UnpackOptions{Expect: meta})
	full("Unpack", err)
	check(t, os.RemoveAll(staging))
	put(t, s, "ws/new", []byte("room again"))
}

func pack(t *testing.T, home string) ([]byte, *archive.Meta) {
	t.Helper()
	var b bytes.Buffer
	stats, err := archive.Pack(t.Context(), home, &b, archive.PackOptions{})
	check(t, err)
	return b.Bytes(), metaOf(stats)
}
