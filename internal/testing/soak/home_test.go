package soak

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"codehub/internal/testing/archivetest"
	"codehub/internal/workspace"
)

// home is the content and metadata of a home, by path.
type home = map[string]archivetest.State

// catcher is a testing.TB that turns fatal failures into errors: reading a home
// can fail during a power cut.
type catcher struct {
	testing.TB
	err error
}

type fatalError struct{}

func (c *catcher) Helper() {}
func (c *catcher) Fatal(args ...any) {
	c.err = fmt.Errorf("%s", strings.TrimSpace(fmt.Sprintln(args...)))
	panic(fatalError{})
}
func (c *catcher) Fatalf(format string, args ...any) {
	c.err = fmt.Errorf(format, args...)
	panic(fatalError{})
}

// catchFatal calls f with a testing.TB and returns its fatal failure as an
// error.
func catchFatal(f func(tb testing.TB)) (err error) {
	c := &catcher{}
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(fatalError); !ok {
				panic(r)
			}
			err = c.err
		}
	}()
	f(c)
	return nil
}

// snapshot reads a home, without access times and the times of the home's own
// folder, which the start of a container changes, with the owners of an archive.
func snapshot(dir string) (seen home, err error) {
	err = catchFatal(func(tb testing.TB) { seen = archivetest.WithoutAtimes(archivetest.Snapshot(tb, dir)) })
	if err != nil {
		return nil, err
	}
	root := seen["."]
	root.Mtime = ""
	seen["."] = root
	for name, state := range seen {
		state.UID, state.GID = archivedID(state.UID), archivedID(state.GID)
		seen[name] = state
	}
	return seen, nil
}

// archivedID returns the owner that a file has once it was archived. A workspace's own uid is
// 1000 there, and what root owns in a home that was never used becomes the workspace's.
func archivedID(id uint32) uint32 {
	const first, last = 1_500_000, 1_999_999 // the default of CODEHUB_WORKSPACE_UIDS
	if id == 0 || id >= first && id <= last {
		return workspace.ArchivedUID
	}
	return id
}

// workDir is the folder of a home that refillHome replaces.
const workDir = "work"

// withoutWork removes the entries that an interrupted refillHome may have
// changed: workDir and the root's attributes.
func withoutWork(h home) home {
	out := home{}
	for name, s := range h {
		if name != "." && name != "./"+workDir && !strings.HasPrefix(name, "./"+workDir+"/") {
			out[name] = s
		}
	}
	return out
}

// refillHome replaces workDir with new random content and syncs it.
func refillHome(root string, rng *rand.Rand) error {
	return catchFatal(func(tb testing.TB) {
		must := func(err error) {
			if err != nil {
				tb.Fatal(err)
			}
		}
		dir := filepath.Join(root, workDir)
		must(os.RemoveAll(dir))
		must(os.MkdirAll(filepath.Join(dir, "empty", "er"), 0o755))
		if rng.IntN(3) == 0 { // new entries below the root inherit it
			must(unix.Lsetxattr(root, "system.posix_acl_default", archivetest.ACL(7, 5, 0, uint32(4000+rng.IntN(100))), 0))
		}
		for i := range 3 + rng.IntN(12) {
			name := filepath.Join(dir, fmt.Sprintf("%02d %s", i, strings.Repeat("ä", rng.IntN(40))))
			must(os.WriteFile(name, random(rng, rng.IntN(1<<uint(rng.IntN(18)+1))), 0o644))
			must(os.Lchown(name, 1000+rng.IntN(3), 1000))
			must(unix.Chmod(name, []uint32{0, 0o400, 0o644, 0o4755, 0o1600}[rng.IntN(5)]))
			when := unix.NsecToTimespec(rng.Int64N(1 << 60))
			must(unix.UtimesNanoAt(unix.AT_FDCWD, name, []unix.Timespec{when, when}, 0))
		}
		linked := filepath.Join(dir, "a")
		must(os.WriteFile(linked, random(rng, 100_000), 0o600))
		must(os.Link(linked, filepath.Join(dir, "b")))
		must(os.Symlink(fmt.Sprintf("/nowhere/%d", rng.Int()), filepath.Join(dir, "link")))
		must(unix.Lsetxattr(linked, "user.of", random(rng, 20), 0))
		sparse, err := os.Create(filepath.Join(dir, "sparse"))
		must(err)
		defer sparse.Close()
		must(sparse.Truncate(5 << 30))
		_, err = sparse.WriteAt(bytes.Repeat([]byte("x"), 5000), 5<<30-8192)
		must(err)
		must(os.Chtimes(dir, time.Unix(rng.Int64N(1<<31), 5), time.Unix(rng.Int64N(1<<31), 7)))
		must(syncFS(root))
	})
}

// fillWithCorpus writes every kind of entry that is hard to preserve to a new
// home, and syncs it.
func fillWithCorpus(root string) error {
	return catchFatal(func(tb testing.TB) {
		archivetest.Corpus(tb, root)
		if err := syncFS(root); err != nil {
			tb.Fatal(err)
		}
	})
}

func syncFS(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}

func random(rng *rand.Rand, n int) []byte {
	b := make([]byte, 0, n+8)
	for len(b) < n {
		b = binary.LittleEndian.AppendUint64(b, rng.Uint64())
	}
	return b[:n]
}

func digest(content string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(content))) }
