package archive

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"codehub/internal/testing/archivetest"
)

const ownUID = 1_500_007

// A home gets its workspace's owner and loses nothing else, and its archive has the owner
// that every archive has.
func TestChangeOwnerAndArchive(t *testing.T) {
	t.Parallel()
	needRoot(t)
	home := t.TempDir()
	archivetest.Corpus(t, home) // of 1000:1001, with files of many others
	for name, acl := range map[string][]byte{"system.posix_acl_access": archivetest.ACL(7, 7, 0, 1000), "system.posix_acl_default": archivetest.ACL(7, 5, 0, 1000)} {
		check(t, unix.Setxattr(filepath.Join(home, "attributes"), name, acl, 0))
	}
	check(t, os.Lchown(filepath.Join(home, "special/fifo"), 1000, 5))
	setuid := filepath.Join(home, "setuid")
	check(t, os.WriteFile(setuid, []byte("program"), 0o755))
	check(t, os.Chown(setuid, 1000, 1000))
	check(t, unix.Chmod(setuid, 0o6755))
	check(t, unix.UtimesNanoAt(unix.AT_FDCWD, home, []unix.Timespec{{Sec: 5}, {Sec: 7}}, 0))

	before := archivetest.Snapshot(t, home)
	want := ownedBy(before, []uint32{1000}, []uint32{1000}, ownUID)
	for range 2 { // the second time there is nothing to do
		check(t, ChangeOwner(t.Context(), home, OwnerChange{From: []uint32{1000}, To: ownUID}))
		if diff := archivetest.Diff(want, archivetest.Snapshot(t, home)); diff != "" {
			t.Fatalf("after the change of the owner:\n%s", diff)
		}
	}
	var st unix.Stat_t
	check(t, unix.Lstat(filepath.Join(home, "special/fifo"), &st))
	if st.Uid != ownUID || st.Gid != 5 {
		t.Errorf("the FIFO belongs to %d:%d", st.Uid, st.Gid)
	}

	var b bytes.Buffer
	packed, err := Pack(t.Context(), home, &b, PackOptions{Scratch: t.TempDir(), Owner: OwnerMap{From: ownUID, To: 1000}})
	check(t, err)
	to := t.TempDir()
	_, err = Unpack(t.Context(), &b, to, UnpackOptions{})
	check(t, err)
	archived := ownedBy(want, []uint32{ownUID}, []uint32{ownUID}, 1000)
	if diff := archivetest.Diff(archivetest.WithoutAtimes(archived), archivetest.WithoutAtimes(archivetest.Snapshot(t, to))); diff != "" {
		t.Errorf("after archive and restore:\n%s", diff)
	}
	// The archive does not depend on the uid.
	check(t, ChangeOwner(t.Context(), to, OwnerChange{From: []uint32{1000}, To: ownUID + 1}))
	var again bytes.Buffer
	repacked, err := Pack(t.Context(), to, &again, PackOptions{Owner: OwnerMap{From: ownUID + 1, To: 1000}})
	check(t, err)
	if repacked.SHA256 != packed.SHA256 {
		t.Errorf("the archives of one home under two uids have the digests %s and %s", packed.SHA256, repacked.SHA256)
	}
}

// The image of a home may have made it for any user: the files of root and of the home's
// owner become the workspace's.
func TestChangeOwnerOfSeededHome(t *testing.T) {
	t.Parallel()
	needRoot(t)
	home := t.TempDir()
	owners := map[string]int{"root": 0, "home's": 501, "workspace's": 1000, "other": 77}
	for name, uid := range owners {
		check(t, os.WriteFile(filepath.Join(home, name), nil, 0o600))
		check(t, os.Chown(filepath.Join(home, name), uid, uid))
	}
	check(t, os.Chown(home, 501, 501))
	check(t, ChangeOwner(t.Context(), home, OwnerChange{From: []uint32{0, 1000}, To: ownUID}))
	for name, state := range archivetest.Snapshot(t, home) {
		want := uint32(ownUID)
		if strings.HasSuffix(name, "other") {
			want = 77
		}
		if state.UID != want || state.GID != want {
			t.Errorf("%s belongs to %d:%d, want %d", name, state.UID, state.GID, want)
		}
	}
}

// Neither depth nor links lead out of the home or keep it from getting its owner.
func TestChangeOwnerStaysInside(t *testing.T) {
	t.Parallel()
	needRoot(t)
	outside, home := t.TempDir(), t.TempDir()
	target := filepath.Join(outside, "target")
	check(t, os.WriteFile(target, nil, 0o600))
	check(t, os.Chown(target, 1000, 1000))
	check(t, os.Chown(outside, 1000, 1000))
	check(t, os.Symlink(target, filepath.Join(home, "link")))
	check(t, os.Symlink(outside, filepath.Join(home, "folder")))
	check(t, os.Lchown(filepath.Join(home, "link"), 1000, 1000))
	check(t, os.Lchown(filepath.Join(home, "folder"), 1000, 1000))
	deep, name := home, strings.Repeat("d", 250)
	fd, err := unix.Open(deep, unix.O_DIRECTORY, 0)
	check(t, err)
	const levels = maxPath/250 + 50
	for range levels {
		check(t, unix.Mkdirat(fd, name, 0o700))
		next, err := unix.Openat(fd, name, unix.O_DIRECTORY, 0)
		check(t, err)
		unix.Close(fd)
		fd = next
		check(t, unix.Fchown(fd, 1000, 1000))
	}
	defer unix.Close(fd)
	if err := ChangeOwner(t.Context(), home, OwnerChange{From: []uint32{1000}, To: ownUID, MaxPath: maxPath}); !errors.Is(err, ErrTooDeep) {
		t.Errorf("a home that is too deep: %v", err)
	}
	var entries int64
	check(t, ChangeOwner(t.Context(), home, OwnerChange{From: []uint32{1000}, To: ownUID, Progress: func(n int64) { entries = n }}))
	if want := int64(1 + 2 + levels); entries != want {
		t.Errorf("%d entries were reported, want %d", entries, want)
	}
	var st unix.Stat_t
	check(t, unix.Fstat(fd, &st))
	if st.Uid != ownUID {
		t.Errorf("the deepest folder belongs to %d", st.Uid)
	}
	for _, name := range []string{outside, target} {
		check(t, unix.Lstat(name, &st))
		if st.Uid != 1000 {
			t.Errorf("%s, outside of the home, belongs to %d", name, st.Uid)
		}
	}
	check(t, unix.Lstat(filepath.Join(home, "link"), &st))
	if st.Uid != ownUID {
		t.Errorf("the link belongs to %d", st.Uid)
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("run this test as root")
	}
}

func ownedBy(states map[string]archivetest.State, uids, gids []uint32, to uint32) map[string]archivetest.State {
	mapped := func(from []uint32) func(uint32) uint32 {
		return func(id uint32) uint32 {
			if slices.Contains(from, id) {
				return to
			}
			return id
		}
	}
	out := map[string]archivetest.State{}
	for name, s := range states {
		s.UID, s.GID = mapped(uids)(s.UID), mapped(gids)(s.GID)
		xattrs := map[string]string{}
		for key, value := range s.Xattrs {
			acl := []byte(value)
			if strings.HasPrefix(key, "system.posix_acl_") {
				for at := 4; at+8 <= len(acl); at += 8 {
					if tag := acl[at]; tag == 2 || tag == 8 {
						binary.LittleEndian.PutUint32(acl[at+4:], mapped(uids)(binary.LittleEndian.Uint32(acl[at+4:])))
					}
				}
			}
			xattrs[key] = string(acl)
		}
		s.Xattrs = xattrs
		out[name] = s
	}
	return out
}
