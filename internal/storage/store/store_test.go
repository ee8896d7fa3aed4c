package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"codehub/internal/storage/transfer"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/s3test"
)

// s3Store is a store in a real S3 server, with credentials that are not the
// environment's.
func s3Store(tb testing.TB, server *s3test.Server, bucketAndPrefix string) *S3 {
	tb.Helper()
	u, err := url.Parse(server.URL(bucketAndPrefix))
	check(tb, err)
	s, err := newS3(u, credentials.NewStaticV4(server.AccessKey, server.SecretKey, ""))
	check(tb, err)
	s.transfer = transfer.New(transfer.Options{Backoff: 10 * time.Millisecond})
	return s
}

// stores runs a test against every implementation of Store, empty and checked.
func stores(t *testing.T, test func(t *testing.T, s Store)) {
	t.Helper()
	t.Run("folder", func(t *testing.T) {
		t.Parallel()
		s, err := Open("file://" + filepath.Join(t.TempDir(), "made", "by check"))
		check(t, err)
		check(t, s.Check(t.Context()))
		test(t, s)
	})
	t.Run("s3", func(t *testing.T) {
		t.Parallel()
		s := s3Store(t, s3test.Share(t, "bucket"), "bucket/some/prefix")
		check(t, s.Check(t.Context()))
		test(t, s)
	})
}

func TestStores(t *testing.T) {
	t.Parallel()
	stores(t, func(t *testing.T, s Store) {
		t.Run("objects", func(t *testing.T) { testObjects(t, s) })
		t.Run("missing", func(t *testing.T) { testMissing(t, s) })
		t.Run("list", func(t *testing.T) { testList(t, s) })
		t.Run("interrupted", func(t *testing.T) { testInterrupted(t, s) })
		t.Run("keys", func(t *testing.T) { testKeys(t, s) })
	})
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n), byte(n >> 8)}).Read(b)
	return b
}

func read(t *testing.T, s Store, key string, offset int64) []byte {
	t.Helper()
	r, err := s.Get(t.Context(), key, offset)
	check(t, err)
	defer r.Close()
	b, err := io.ReadAll(r)
	check(t, err)
	return b
}

func put(t *testing.T, s Store, key string, content []byte) {
	t.Helper()
	// A reader of unknown length, with parts of odd sizes.
	n, err := s.Put(t.Context(), key, io.MultiReader(bytes.NewReader(content[:len(content)/3]), bytes.NewReader(content[len(content)/3:])))
	check(t, err)
	if n != int64(len(content)) {
		t.Errorf("Put returned %d for %d bytes", n, len(content))
	}
}

func testObjects(t *testing.T, s Store) {
	for _, n := range []int{0, 1, 1000, transfer.MinPart - 1, transfer.MinPart, transfer.MinPart + 1, 2*transfer.MinPart + transfer.MinPart/2} {
		key, content := fmt.Sprintf("objects/%d/home.tar.zst", n), randomBytes(n)
		put(t, s, key, content)
		o, err := s.Stat(t.Context(), key)
		check(t, err)
		if o.Key != key || o.Size != int64(n) || time.Since(o.Modified).Abs() > time.Hour {
			t.Errorf("Stat: %+v for %d bytes of %s", o, n, key)
		}
		for _, offset := range []int{0, 1, n / 2, n, n + 10} {
			if got := read(t, s, key, int64(offset)); !bytes.Equal(got, content[min(offset, n):]) {
				t.Errorf("%d bytes from %d: got %d different bytes", n, offset, len(got))
			}
		}
	}
	put(t, s, "objects/ranges", randomBytes(1000))
	for _, x := range [][2]int64{{0, 0}, {0, 1}, {10, 20}, {990, 10}, {990, 100}, {0, 2000}, {1000, 5}} {
		r, err := s.GetRange(t.Context(), "objects/ranges", x[0], x[1])
		check(t, err)
		got, err := io.ReadAll(r)
		check(t, err)
		check(t, r.Close())
		if want := randomBytes(1000)[x[0]:min(1000, x[0]+x[1])]; !bytes.Equal(got, want) {
			t.Errorf("%d bytes from %d: got %d different bytes", x[1], x[0], len(got))
		}
	}
	put(t, s, "objects/again", []byte("one"))
	put(t, s, "objects/again", []byte("another"))
	if got := read(t, s, "objects/again", 0); string(got) != "another" {
		t.Errorf("the second Put left %q", got)
	}
	check(t, s.Delete(t.Context(), "objects/again"))
	if _, err := s.Stat(t.Context(), "objects/again"); !errors.Is(err, ErrNotFound) {
		t.Errorf("Stat after Delete: %v", err)
	}
	check(t, s.Delete(t.Context(), "objects/again"))
	for o, err := range s.List(t.Context(), "objects/") {
		check(t, err)
		check(t, s.Delete(t.Context(), o.Key))
	}
}

func testMissing(t *testing.T, s Store) {
	put(t, s, "missing/folder/file", []byte("x"))
	for _, key := range []string{"missing/none", "none/at/all", "missing/folder", "missing/folder/file/below"} {
		if _, err := s.Stat(t.Context(), key); !errors.Is(err, ErrNotFound) || errors.Is(err, ErrUnavailable) {
			t.Errorf("Stat(%s): %v", key, err)
		}
		if r, err := s.Get(t.Context(), key, 0); !errors.Is(err, ErrNotFound) || errors.Is(err, ErrUnavailable) {
			t.Errorf("Get(%s): %v, %v", key, r, err)
		}
		if err := s.Delete(t.Context(), key); err != nil {
			t.Errorf("Delete(%s): %v", key, err)
		}
	}
	if got := read(t, s, "missing/folder/file", 0); string(got) != "x" {
		t.Errorf("another object was changed: %q", got)
	}
	check(t, s.Delete(t.Context(), "missing/folder/file"))
}

func keysOf(t *testing.T, s Store, prefix string) []string {
	t.Helper()
	var keys []string
	for o, err := range s.List(t.Context(), prefix) {
		check(t, err)
		keys = append(keys, o.Key)
	}
	return keys
}

func testList(t *testing.T, s Store) {
	all := []string{"list/a", "list/a-b", "list/a.b", "list/a/b", "list/a/b.meta", "list/a/c/d", "list/b/x", "lister/y"}
	for _, key := range all {
		if strings.HasPrefix(key, "list/a/") { // a file system has a folder there
			key = strings.Replace(key, "list/a/", "list/aa/", 1)
		}
		put(t, s, key, []byte(key))
	}
	for prefix, want := range map[string][]string{
		"":         {"list/a", "list/a-b", "list/a.b", "list/aa/b", "list/aa/b.meta", "list/aa/c/d", "list/b/x", "lister/y"},
		"list/":    {"list/a", "list/a-b", "list/a.b", "list/aa/b", "list/aa/b.meta", "list/aa/c/d", "list/b/x"},
		"list/aa/": {"list/aa/b", "list/aa/b.meta", "list/aa/c/d"},
		"list/aa":  {"list/aa/b", "list/aa/b.meta", "list/aa/c/d"},
		"list/a":   {"list/a", "list/a-b", "list/a.b", "list/aa/b", "list/aa/b.meta", "list/aa/c/d"},
		"none/":    nil,
		"list/b/x": {"list/b/x"},
	} {
		if diff := cmp.Diff(want, keysOf(t, s, prefix), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("List(%q):\n%s", prefix, diff)
		}
	}
	for range s.List(t.Context(), "") {
		break // an iteration may end early
	}
	for _, key := range keysOf(t, s, "") {
		check(t, s.Delete(t.Context(), key))
	}
}

// An interrupted Put leaves nothing visible, and nothing that AbortIncomplete does not remove.
func testInterrupted(t *testing.T, s Store) {
	want := errors.New("home changed")
	failing := func(after int) io.Reader {
		return io.MultiReader(bytes.NewReader(randomBytes(after)), readerFunc(func([]byte) (int, error) { return 0, want }))
	}
	put(t, s, "interrupted/kept", []byte("before"))
	for _, after := range []int{0, 10, transfer.MinPart, 3*transfer.MinPart + 1} {
		for _, key := range []string{"interrupted/new", "interrupted/kept"} {
			_, err := s.Put(t.Context(), key, failing(after))
			if !errors.Is(err, want) || errors.Is(err, ErrUnavailable) {
				t.Errorf("reader failed after %d bytes: %v", after, err)
			}
		}
	}
	if n, err := s.AbortIncomplete(t.Context(), "", 0, nil); err != nil || n != 0 {
		t.Errorf("%d uploads were left behind, %v", n, err)
	}
	for _, after := range []int{0, 10, transfer.MinPart, 3*transfer.MinPart + 1} {
		ctx, cancel := context.WithCancel(t.Context())
		_, err := s.Put(ctx, "interrupted/new", io.MultiReader(bytes.NewReader(randomBytes(after)), readerFunc(func(p []byte) (int, error) {
			cancel()
			return len(p), nil
		})))
		if !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnavailable) {
			t.Errorf("cancelled after %d bytes: %v", after, err)
		}
		cancel()
	}
	if diff := cmp.Diff([]string{"interrupted/kept"}, keysOf(t, s, "interrupted/")); diff != "" {
		t.Errorf("an interrupted Put shows:\n%s", diff)
	}
	if got := read(t, s, "interrupted/kept", 0); string(got) != "before" {
		t.Errorf("the existing object is now %q", got)
	}
	// The bucket may store a part after the abort that its cancelled request came before
	// (the documentation of S3's AbortMultipartUpload says so); the sweep removes it.
	harness.Eventually(t, "nothing is left to sweep", func() bool {
		n, err := s.AbortIncomplete(t.Context(), "", 0, nil)
		check(t, err)
		if _, isBucket := s.(Presigner); !isBucket && n != 0 {
			t.Errorf("%d uploads were left behind", n)
		}
		return n == 0
	})

	simulateCrash(t, s, "interrupted/half/home.tar.zst")
	simulateCrash(t, s, "other/half/home.tar.zst")
	if n, err := s.AbortIncomplete(t.Context(), "", time.Hour, nil); err != nil || n != 0 {
		t.Errorf("%d young uploads swept, %v", n, err)
	}
	if n, err := s.AbortIncomplete(t.Context(), "interrupted/", 0, nil); err != nil || n != 1 {
		t.Errorf("%d of 1 upload swept, %v", n, err)
	}
	if n, err := s.AbortIncomplete(t.Context(), "", 0, nil); err != nil || n != 1 {
		t.Errorf("%d of 1 other upload swept, %v", n, err)
	}
	check(t, s.Delete(t.Context(), "interrupted/kept"))
}

// simulateCrash leaves what a crash during a Put leaves.
func simulateCrash(t *testing.T, s Store, key string) {
	t.Helper()
	switch s := s.(type) {
	case *Folder:
		dir := filepath.Join(s.dir, filepath.Dir(key))
		check(t, os.MkdirAll(dir, 0o700))
		check(t, os.WriteFile(filepath.Join(dir, tempPrefix+"RANDOM-"+filepath.Base(key)), []byte("half"), 0o600))
	case *S3:
		ticket, err := s.PresignUpload(t.Context(), key, 100<<20, time.Hour)
		check(t, err)
		check(t, s.transfer.Put(t.Context(), ticket.Parts[0], randomBytes(5<<20)))
		time.Sleep(time.Second) // S3's upload times have a resolution of one second
	}
	for _, k := range keysOf(t, s, "") {
		if k == key {
			t.Errorf("half an upload shows as %s", k)
		}
	}
}

func testKeys(t *testing.T, s Store) {
	for _, key := range []string{"", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", ".hidden", "a/.put-x", "a\x00b", "a b", "ä", "a\\b", strings.Repeat("k", 300), strings.Repeat("k/", 500) + "k"} {
		if _, err := s.Put(t.Context(), key, strings.NewReader("x")); err == nil {
			t.Errorf("Put took the key %.40q", key)
		}
		if _, err := s.Get(t.Context(), key, 0); err == nil || errors.Is(err, ErrNotFound) {
			t.Errorf("Get of the key %.40q: %v", key, err)
		}
		if _, err := s.Stat(t.Context(), key); err == nil || errors.Is(err, ErrNotFound) {
			t.Errorf("Stat of the key %.40q: %v", key, err)
		}
		if err := s.Delete(t.Context(), key); err == nil {
			t.Errorf("Delete took the key %.40q", key)
		}
	}
	for _, prefix := range []string{"/", "..", "a/../", ".put-"} {
		for _, err := range s.List(t.Context(), prefix) {
			if err == nil {
				t.Errorf("List took the prefix %q", prefix)
			}
		}
	}
}

func TestMissingFolder(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "archives")
	s := NewFolder(dir)
	check(t, s.Check(t.Context()))
	put(t, s, "a/b", []byte("x"))
	// The disk is no longer mounted: the folder exists and is empty.
	check(t, os.Rename(dir, dir+".away"))
	unavailableStore(t, s)
	check(t, os.Mkdir(dir, 0o755))
	unavailableStore(t, s)
	check(t, os.Remove(dir))
	check(t, os.Rename(dir+".away", dir))
	if got := read(t, s, "a/b", 0); string(got) != "x" {
		t.Errorf("it is back, and reads %q", got)
	}
	check(t, s.Delete(t.Context(), "a/b"))
	if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
		t.Errorf("after the removal of the last object there is %v, %v", list, err)
	}
}

// unavailableStore checks that an unavailable store never reports a missing object.
func unavailableStore(t *testing.T, s Store) {
	t.Helper()
	var all sync.WaitGroup // the client of S3 repeats each call for seconds
	for name, call := range map[string]func(ctx context.Context) error{
		"Put": func(ctx context.Context) error { _, err := s.Put(ctx, "a/new", strings.NewReader("x")); return err },
		"large Put": func(ctx context.Context) error {
			_, err := s.Put(ctx, "a/large", bytes.NewReader(make([]byte, transfer.MinPart+1)))
			return err
		},
		"Get":             func(ctx context.Context) error { _, err := s.Get(ctx, "a/b", 0); return err },
		"Stat":            func(ctx context.Context) error { _, err := s.Stat(ctx, "a/b"); return err },
		"Delete":          func(ctx context.Context) error { return s.Delete(ctx, "a/b") },
		"AbortIncomplete": func(ctx context.Context) error { _, err := s.AbortIncomplete(ctx, "", 0, nil); return err },
		"List": func(ctx context.Context) (last error) {
			n := 0
			for _, last = range s.List(ctx, "") {
				n++
			}
			if n != 1 {
				t.Errorf("List yielded %d times", n)
			}
			return last
		},
	} {
		all.Go(func() {
			if err := call(t.Context()); !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrNotFound) {
				t.Errorf("%s: %v, want ErrUnavailable", name, err)
			}
		})
	}
	all.Wait()
}

func TestFolderFollowsNoLinks(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	dir, out := filepath.Join(base, "archives"), filepath.Join(base, "out")
	s := NewFolder(dir)
	check(t, s.Check(t.Context()))
	check(t, os.MkdirAll(out, 0o755))
	check(t, os.WriteFile(filepath.Join(out, "victim"), []byte("secret"), 0o644))
	check(t, os.Symlink(out, filepath.Join(dir, "ws")))
	check(t, os.Symlink(filepath.Join(out, "victim"), filepath.Join(dir, "link")))
	for _, key := range []string{"ws/victim", "link"} {
		if r, err := s.Get(t.Context(), key, 0); err == nil {
			t.Errorf("Get(%s) followed a link: %v", key, r)
		}
	}
	if _, err := s.Put(t.Context(), "ws/new", strings.NewReader("x")); err == nil {
		t.Error("Put followed a link")
	}
	if err := s.Delete(t.Context(), "ws/victim"); err == nil {
		t.Error("Delete followed a link")
	}
	if keys := keysOf(t, s, ""); len(keys) != 0 {
		t.Errorf("List shows %v", keys)
	}
	if list, err := os.ReadDir(out); err != nil || len(list) != 1 {
		t.Errorf("outside the folder there is %v, %v", list, err)
	}
}

// Objects that root stores belong to the owner of the folder.
func TestFolderKeepsItsOwner(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := NewFolder(dir)
	if os.Geteuid() == 0 {
		check(t, os.Chown(dir, 1234, 5678))
	}
	var want syscall.Stat_t
	check(t, syscall.Stat(dir, &want))
	put(t, s, "a/b/c", []byte("x"))
	for _, name := range []string{"a", "a/b", "a/b/c"} {
		var st syscall.Stat_t
		check(t, syscall.Stat(filepath.Join(dir, name), &st))
		if st.Uid != want.Uid || st.Gid != want.Gid {
			t.Errorf("%s belongs to %d:%d, want %d:%d", name, st.Uid, st.Gid, want.Uid, want.Gid)
		}
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	for rawURL, want := range map[string]string{
		"file:///var/lib/x":   "",
		"s3://bucket":         "",
		"s3://bucket/pre/fix": "",
		"s3://bucket/?endpoint=https://minio.local:9000&region=eu-west-1&path-style=true": "",
		"":                                       "scheme",
		"/var/lib/x":                             "scheme",
		"ftp://x":                                "scheme",
		"file://relative/path":                   "absolute",
		"file:///x?y":                            "absolute",
		"s3:///nobucket":                         "s3://bucket",
		"s3://user:pass@bucket":                  "credentials come from",
		"s3://bucket?endpoint=minio.local":       "endpoint",
		"s3://bucket?path-style=maybe":           "path-style",
		"s3://bucket?pathstyle=true":             "unknown parameter",
		"s3://bucket/../x":                       "bad prefix",
		"s3://bucket?endpoint=https://h/bucket/": "endpoint",
	} {
		_, err := Open(rawURL)
		switch {
		case want == "" && err != nil:
			t.Errorf("Open(%q): %v", rawURL, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("Open(%q): %v, want it to speak of %q", rawURL, err, want)
		case err != nil && strings.Contains(err.Error(), "pass@"):
			t.Errorf("Open(%q) reveals the password: %v", rawURL, err)
		}
	}
}

// Folders that are created or removed during a listing cause no error.
func TestFolderListsWhileFoldersGo(t *testing.T) {
	t.Parallel()
	s := NewFolder(t.TempDir())
	check(t, s.Check(t.Context()))
	put(t, s, "stays/x", []byte("x"))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 60 {
			key := fmt.Sprintf("goes/%d/x", i%7)
			if _, err := s.Put(t.Context(), key, strings.NewReader("x")); err != nil {
				t.Error(err)
				return
			}
			if err := s.Delete(t.Context(), key); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for listing := true; listing; {
		select {
		case <-done:
			listing = false
		default:
		}
		stays := 0
		for o, err := range s.List(t.Context(), "") {
			if err != nil {
				t.Fatal(err)
			}
			if o.Key == "stays/x" {
				stays++
			}
		}
		if stays != 1 {
			t.Fatalf("listed %d times", stays)
		}
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
