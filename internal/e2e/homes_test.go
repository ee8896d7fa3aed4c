package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"codehub/api"
	"codehub/internal/archive"
	"codehub/internal/archive/archivetest"
	"codehub/internal/archive/store/s3test"
)

// homeState is a home as it is compared: all that can be seen of it.
type homeState = map[string]archivetest.State

// bucket is where a server's archives go, and where the test finds them.
type bucket struct {
	settings []string
	dir      string         // folder in which the objects are files named by their keys
	s3       *s3test.Server // nil: a folder
}

func folderBucket(tb testing.TB) *bucket {
	dir := filepath.Join(tb.TempDir(), "archives")
	return &bucket{dir: dir, settings: []string{"CODEHUB_ARCHIVE_URL=file://" + dir}}
}

// s3Bucket is one on a real S3 server; the archives are under a prefix.
func s3Bucket(tb testing.TB) *bucket {
	s := s3test.Start(tb, "homes")
	return &bucket{
		dir: filepath.Join(s.BucketDir("homes"), "team"), s3: s,
		settings: append(s.Env(), "CODEHUB_ARCHIVE_URL="+s.URL("homes/team")),
	}
}

// stores are the kinds of bucket by their names.
var stores = map[string]func(testing.TB) *bucket{"folder": folderBucket, "s3": s3Bucket}

// via is the same bucket, reached at another endpoint.
func (b *bucket) via(endpoint string) []string {
	q := url.Values{"endpoint": {endpoint}, "region": {"us-east-1"}, "path-style": {"true"}}
	return append(b.s3.Env(), "CODEHUB_ARCHIVE_URL=s3://homes/team?"+q.Encode())
}

// object is the file of an archive; path is the .meta with MetaKey.
func (b *bucket) object(key string) string { return filepath.Join(b.dir, filepath.FromSlash(key)) }

// keys are those of a workspace's complete archives.
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

// unpack is what an archive holds, by the package's own means; an error if it
// is not what its .meta says.
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

// folder is where a workspace's home is on this machine; empty if there is none.
func (s *server) folder(id string) string {
	s.Helper()
	local := filepath.Join(s.home, "homes", id, "home")
	if _, err := os.Stat(local); err == nil {
		return local
	}
	v, err := s.docker.VolumeInspect(s.Context(), "ws-"+id+"-home", client.VolumeInspectOptions{})
	if errdefs.IsNotFound(err) {
		return ""
	}
	if err != nil {
		s.Fatal(err)
	}
	return v.Volume.Mountpoint
}

// look is what is in a workspace's home, which has to be there and at rest.
func (s *server) look(id string) homeState {
	s.Helper()
	dir := s.folder(id)
	if dir == "" {
		s.Fatalf("workspace %s has no home", id)
	}
	return snapshot(s.TB, dir)
}

// snapshot leaves out when the home's own folder was last read: the engine
// does that when it makes a container, as it pleases.
func snapshot(tb testing.TB, dir string) homeState {
	tb.Helper()
	all := archivetest.Snapshot(tb, dir)
	home := all["."]
	home.Atime = ""
	all["."] = home
	return all
}

// same compares homes.
func same(tb testing.TB, what string, want, got homeState) {
	tb.Helper()
	if diff := archivetest.Diff(want, got); diff != "" {
		tb.Errorf("%s is not as the home was:\n%s", what, diff)
	}
}

// standby makes a workspace that is in STANDBY.
func (s *server) standby(name string) string {
	s.Helper()
	id := s.createDesired(name, "STANDBY")
	s.awaitPhase(id, "STANDBY")
	return id
}

func (s *server) createDesired(name, desired string) string {
	s.Helper()
	return s.create(api.CreateWorkspace{Name: name, DesiredState: &desired})
}

// filled is a workspace in STANDBY with a small home of its own, and what is in it.
func (s *server) filled(name string, rng *rand.Rand) (string, homeState) {
	s.Helper()
	id := s.standby(name)
	furnish(s.TB, s.folder(id), rng)
	return id, s.look(id)
}

// furnish puts some of everything into a home, in place of what an earlier
// call has put there, so that no two homes are the same.
func furnish(tb testing.TB, home string, rng *rand.Rand) {
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
	must(sparse.Sync()) // where its data is does not move any more
	must(sparse.Close())
	must(os.Chtimes(home, time.Unix(rng.Int64N(1<<31), 5), time.Unix(rng.Int64N(1<<31), 7)))
}

// archived waits until a workspace is ARCHIVED, and holds all of what that
// means against what its home was.
func (s *server) archived(b *bucket, id string, want homeState) api.Workspace {
	s.Helper()
	w := s.awaitPhase(id, "ARCHIVED")
	if w.ArchiveKey == nil {
		s.Fatalf("workspace %s is ARCHIVED and names no archive", id)
	}
	if w.ErrorReason != nil {
		s.Errorf("an error is recorded: %s: %s", *w.ErrorReason, str(w.ErrorMessage))
	}
	got, _, err := b.unpack(s.TB, *w.ArchiveKey)
	if err != nil {
		s.Fatalf("the archive %s: %v", *w.ArchiveKey, err)
	}
	same(s.TB, "the archive of "+w.Name, want, got)
	s.noHome(id)
	return w
}

// remains lists what is left of a workspace on the engine and the disk.
func (s *server) remains(id string) []string {
	s.Helper()
	var out []string
	mine := client.Filters{}.Add("label", "codehub.workspace="+id)
	cs, err := s.docker.ContainerList(s.Context(), client.ContainerListOptions{All: true, Filters: mine})
	if err != nil {
		s.Fatal(err)
	}
	for _, c := range cs.Items {
		out = append(out, fmt.Sprintf("container %v, %s", c.Names, c.Status))
	}
	vs, err := s.docker.VolumeList(s.Context(), client.VolumeListOptions{Filters: mine})
	if err != nil {
		s.Fatal(err)
	}
	for _, v := range vs.Items {
		out = append(out, "volume "+v.Name)
	}
	local := filepath.Join(s.home, "homes", id)
	if _, err := os.Lstat(local); err == nil {
		out = append(out, "folder "+local)
	}
	return out
}

// noHome: nothing of a workspace is left on the engine and the disk.
func (s *server) noHome(id string) {
	s.Helper()
	if left := s.remains(id); len(left) != 0 {
		s.Errorf("of workspace %s there is left: %v", id, left)
	}
}

// discard deletes a workspace and waits until its home is gone. Its archives
// go later, by themselves.
func (s *server) discard(id string) {
	s.Helper()
	if _, err := s.api.Delete(s.Context(), id, true); err != nil {
		s.Fatal(err)
	}
	s.discarded(id, "")
}

// discarded waits until nothing is left of a deleted workspace but, where a
// server was killed, what is named later.
func (s *server) discarded(id, later string) {
	s.Helper()
	deadline := time.Now().Add(patience)
	for {
		left := s.remains(id)
		if len(left) == 0 || len(left) == 1 && left[0] == later {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("of deleted workspace %s there is left: %v", id, left)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// restored waits until a workspace is in STANDBY and compares its home.
func (s *server) restored(id string, want homeState) {
	s.Helper()
	w := s.awaitPhase(id, "STANDBY")
	same(s.TB, "the restored home of "+w.Name, want, s.look(id))
}

// somewhere: the home is whole in at least one place, while nobody is there
// to put it right.
func (s *server) somewhere(b *bucket, id string, want homeState) {
	s.Helper()
	var diff string
	for _, key := range b.keys(s.TB, id) {
		got, _, err := b.unpack(s.TB, key)
		if err != nil {
			s.Errorf("the complete archive %s is none: %v", key, err)
			continue
		}
		if diff = archivetest.Diff(withoutRoot(want), withoutRoot(got)); diff == "" {
			return
		}
	}
	if s.folder(id) == "" {
		s.Errorf("the home of %s is nowhere: no volume, and no archive of it; the last one looked at:\n%s", id, diff)
		return
	}
	same(s.TB, "the only copy of "+id, withoutRoot(want), withoutRoot(s.look(id)))
}

func digest(content string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(content))) }
