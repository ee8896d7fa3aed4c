package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"codehub/api"
	"codehub/internal/archive"
	"codehub/internal/testing/archivetest"
	"codehub/internal/testing/s3test"
	"codehub/internal/workspace"
)

// homeState is the content and metadata of a home, by path.
type homeState = map[string]archivetest.State

// bucket holds a server's archives and gives the test access to them as files.
type bucket struct {
	settings []string
	dir      string         // folder in which the objects are files named by their keys
	s3       *s3test.Server // nil: a folder
}

func folderBucket(tb testing.TB) *bucket {
	dir := filepath.Join(tb.TempDir(), "archives")
	return &bucket{dir: dir, settings: []string{"CODEHUB_ARCHIVE_URL=file://" + dir}}
}

// s3Bucket returns a bucket on a real S3 server, with a key prefix.
func s3Bucket(tb testing.TB) *bucket {
	s := s3test.Start(tb, "homes")
	return &bucket{
		dir: filepath.Join(s.BucketDir("homes"), "team"), s3: s,
		settings: append(s.Env(), "CODEHUB_ARCHIVE_URL="+s.URL("homes/team")),
	}
}

// stores has the constructors of the kinds of bucket, by name.
var stores = map[string]func(testing.TB) *bucket{"folder": folderBucket, "s3": s3Bucket}

// settingsVia returns the settings for the same bucket at another endpoint.
func (b *bucket) settingsVia(endpoint string) []string {
	q := url.Values{"endpoint": {endpoint}, "region": {"us-east-1"}, "path-style": {"true"}}
	return append(b.s3.Env(), "CODEHUB_ARCHIVE_URL=s3://homes/team?"+q.Encode())
}

// object returns the file of the object with this key.
func (b *bucket) object(key string) string { return filepath.Join(b.dir, filepath.FromSlash(key)) }

// keys returns the keys of a workspace's complete archives.
func (b *bucket) keys(tb testing.TB, id string) []string {
	tb.Helper()
	metas, err := filepath.Glob(filepath.Join(b.dir, "*", id, "*", filepath.Base(archive.MetaKey("home.tar.zst"))))
	if err != nil {
		tb.Fatal(err)
	}
	var out []string
	for _, m := range metas {
		if _, err := os.Stat(filepath.Join(filepath.Dir(m), "home.tar.zst")); err == nil {
			rel, err := filepath.Rel(b.dir, filepath.Join(filepath.Dir(m), "home.tar.zst"))
			if err != nil {
				tb.Fatal(err)
			}
			out = append(out, filepath.ToSlash(rel))
		}
	}
	return out
}

// unpack returns the content of an archive. It returns an error if the content
// does not match the .meta.
func (b *bucket) unpack(tb testing.TB, key string) (homeState, *archive.Meta, error) {
	tb.Helper()
	raw, err := os.Open(b.object(archive.MetaKey(key)))
	if err != nil {
		return nil, nil, err
	}
	defer raw.Close()
	meta, err := archive.ReadMeta(raw)
	if err != nil {
		return nil, nil, err
	}
	object, err := os.Open(b.object(key))
	if err != nil {
		return nil, nil, err
	}
	defer object.Close()
	dir, err := os.MkdirTemp("", "codehub-unpacked-")
	if err != nil {
		tb.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if _, err := archive.Unpack(tb.Context(), object, dir, archive.UnpackOptions{Expect: meta}); err != nil {
		return nil, nil, err
	}
	return snapshot(tb, dir), meta, nil
}

// readHome returns the content of a workspace's home, with the owners that it has in an
// archive. The home must exist, and no operation may change it.
func (s *server) readHome(id string) homeState {
	s.Helper()
	dir := s.homeFolder(id)
	if dir == "" {
		s.Fatalf("workspace %s has no home", id)
	}
	home := snapshot(s.TB, dir)
	archived := func(id uint32) uint32 {
		if id >= firstUID && id <= lastUID {
			return workspace.ArchivedUID
		}
		return id
	}
	for name, state := range home {
		state.UID, state.GID = archived(state.UID), archived(state.GID)
		home[name] = state
	}
	return home
}

// firstUID and lastUID are the default of CODEHUB_WORKSPACE_UIDS.
const firstUID, lastUID = 1_500_000, 1_999_999

// snapshot returns the content of a folder, without the access time of the
// folder itself: Docker changes it when it creates a container.
func snapshot(tb testing.TB, dir string) homeState {
	tb.Helper()
	all := archivetest.Snapshot(tb, dir)
	home := all["."]
	home.Atime = ""
	all["."] = home
	return all
}

// compareHomes fails the test if two homes differ.
func compareHomes(tb testing.TB, what string, want, got homeState) {
	tb.Helper()
	if diff := archivetest.Diff(want, got); diff != "" {
		tb.Errorf("%s differs from the expected home:\n%s", what, diff)
	}
}

// createStandby creates a workspace and waits until it is in STANDBY.
func (s *server) createStandby(name string) string {
	s.Helper()
	id := s.createDesired(name, "STANDBY")
	s.awaitPhase(id, "STANDBY")
	return id
}

func (s *server) createDesired(name, desired string) string {
	s.Helper()
	return s.create(api.CreateWorkspace{Name: name, DesiredState: &desired})
}

// createFilled creates a workspace in STANDBY with a small random home, and
// returns that home.
func (s *server) createFilled(name string, rng *rand.Rand) (string, homeState) {
	s.Helper()
	id := s.createStandby(name)
	fillHome(s.TB, s.homeFolder(id), rng)
	return id, s.readHome(id)
}

// fillHome writes random files of every kind to the home's folder "work". It
// first removes the files of an earlier call.
func fillHome(tb testing.TB, home string, rng *rand.Rand) {
	tb.Helper()
	must := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	dir := filepath.Join(home, "work")
	must(os.RemoveAll(dir))
	must(os.MkdirAll(filepath.Join(dir, "empty", "er"), 0o755))
	random := func(n int) []byte {
		b := make([]byte, 0, n+8)
		for len(b) < n {
			b = binary.LittleEndian.AppendUint64(b, rng.Uint64())
		}
		return b[:n]
	}
	for i := range 3 + rng.IntN(12) {
		name := filepath.Join(dir, fmt.Sprintf("%02d %s", i, strings.Repeat("ä", rng.IntN(40))))
		must(os.WriteFile(name, random(rng.IntN(1<<uint(rng.IntN(18)+1))), 0o644))
		must(os.Lchown(name, 1000+rng.IntN(3), 1000))
		must(unix.Chmod(name, []uint32{0, 0o400, 0o644, 0o4755, 0o1600}[rng.IntN(5)]))
		when := unix.NsecToTimespec(rng.Int64N(1 << 60))
		must(unix.UtimesNanoAt(unix.AT_FDCWD, name, []unix.Timespec{when, when}, 0))
	}
	must(os.WriteFile(filepath.Join(dir, "a"), random(100_000), 0o600))
	must(os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "b")))
	must(os.Symlink(fmt.Sprintf("/nowhere/%d", rng.Int()), filepath.Join(dir, "link")))
	must(unix.Lsetxattr(filepath.Join(dir, "a"), "user.of", random(20), 0))
	sparse, err := os.Create(filepath.Join(dir, "sparse"))
	must(err)
	must(sparse.Truncate(5 << 30))
	_, err = sparse.WriteAt(bytes.Repeat([]byte("x"), 5000), 5<<30-8192)
	must(err)
	must(sparse.Sync()) // the extents do not change after this
	must(sparse.Close())
	// In a home that was never used, root's files are the image's, which become the
	// workspace's.
	must(filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil || info.Sys().(*syscall.Stat_t).Uid != 0 {
			return err
		}
		return os.Lchown(name, 4711, 4712)
	}))
	must(os.Chtimes(home, time.Unix(rng.Int64N(1<<31), 5), time.Unix(rng.Int64N(1<<31), 7)))
}

// awaitArchived waits until a workspace is ARCHIVED. It checks that the archive
// holds the home, that no error is recorded, and that the home was removed.
func (s *server) awaitArchived(b *bucket, id string, want homeState) api.Workspace {
	s.Helper()
	w := s.awaitPhase(id, "ARCHIVED")
	if w.ArchiveKey == nil {
		s.Fatalf("workspace %s is ARCHIVED and has no archive key", id)
	}
	if w.ErrorReason != nil {
		s.Errorf("workspace is ARCHIVED with an error: %s: %s", *w.ErrorReason, str(w.ErrorMessage))
	}
	got, _, err := b.unpack(s.TB, *w.ArchiveKey)
	if err != nil {
		s.Fatalf("unpack the archive %s: %v", *w.ArchiveKey, err)
	}
	compareHomes(s.TB, "the archive of "+w.Name, want, got)
	s.expectNoHome(id)
	return w
}

// expectNoHome fails the test if a workspace has anything in the runtime.
func (s *server) expectNoHome(id string) {
	s.Helper()
	if left := s.resourcesOf(id); len(left) != 0 {
		s.Errorf("workspace %s still has %v", id, left)
	}
}

// discard deletes a workspace and waits until its home is removed. Garbage
// collection removes the archives later.
func (s *server) discard(id string) {
	s.Helper()
	if _, err := s.api.Delete(s.Context(), id, true); err != nil {
		s.Fatal(err)
	}
	s.awaitRemoved(id, "")
}

// awaitRemoved waits until a deleted workspace has no resources except later,
// which is removed later if a server was killed during the deletion.
func (s *server) awaitRemoved(id, later string) {
	s.Helper()
	deadline := time.Now().Add(patience)
	for {
		left := s.resourcesOf(id)
		if len(left) == 0 || len(left) == 1 && left[0] == later {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("deleted workspace %s still has %v", id, left)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// awaitRestored waits until a workspace is in STANDBY and compares its home.
func (s *server) awaitRestored(id string, want homeState) {
	s.Helper()
	w := s.awaitPhase(id, "STANDBY")
	compareHomes(s.TB, "the restored home of "+w.Name, want, s.readHome(id))
}

// expectCompleteCopy fails the test unless an archive or the home's volume
// holds the complete home. The server must not be running.
func (s *server) expectCompleteCopy(b *bucket, id string, want homeState) {
	s.Helper()
	var diff string
	for _, key := range b.keys(s.TB, id) {
		got, _, err := b.unpack(s.TB, key)
		if err != nil {
			s.Errorf("the archive %s cannot be unpacked: %v", key, err)
			continue
		}
		if diff = archivetest.Diff(withoutRoot(want), withoutRoot(got)); diff == "" {
			return
		}
	}
	if s.homeFolder(id) == "" {
		s.Errorf("the home of %s is lost: it has no volume and no matching archive; difference to the last archive:\n%s", id, diff)
		return
	}
	compareHomes(s.TB, "the only copy of "+id, withoutRoot(want), withoutRoot(s.readHome(id)))
}

// newRand returns a generator and logs its seed. The variable SEED repeats the
// choices of an earlier run.
func newRand(t *testing.T, salt uint64) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	if v := os.Getenv("SEED"); v != "" {
		if _, err := fmt.Sscan(v, &seed); err != nil {
			t.Fatalf("SEED: %v", err)
		}
	}
	t.Logf("SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, salt))
}

func digest(content string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(content))) }

// withoutRoot removes access times and the home's own modification time, which
// the start of a container and reading change.
func withoutRoot(h homeState) homeState {
	out := homeState{}
	for name, s := range h {
		s.Atime = ""
		if name == "." {
			s.Mtime = ""
		}
		out[name] = s
	}
	return out
}
