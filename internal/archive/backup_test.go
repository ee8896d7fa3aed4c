package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"codehub/internal/testing/archivetest"
)

// objects keeps the objects of a workspace in memory.
type objects struct {
	mu     sync.Mutex
	stored map[string][]byte
	made   int64 // generations
}

func newObjects() *objects { return &objects{stored: map[string][]byte{}} }

func (o *objects) put(_ context.Context, name string, b []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stored[name] = bytes.Clone(b)
	return nil
}

func (o *objects) get(_ context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	b, ok := o.stored[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	b = b[min(offset, int64(len(b))):]
	return io.NopCloser(bytes.NewReader(b[:min(length, int64(len(b)))])), nil
}

// generation backs up a home, and reads the manifest from the store.
func (o *objects) generation(tb testing.TB, home string, opts BackupOptions) *Manifest {
	tb.Helper()
	opts.Get = o.get
	opts.now = func() time.Time { return time.Now().Add(time.Hour) } // all ctimes are old enough
	o.made++
	name := ManifestName(time.Unix(o.made, 0), "id")
	made, err := Backup(context.Background(), home, name, o.put, opts)
	check(tb, err)
	m, err := ReadManifest(bytes.NewReader(o.stored[name]))
	check(tb, err)
	if diff := cmp.Diff(made.Totals(), m.Totals()); diff != "" {
		tb.Errorf("the manifest that was returned differs from the stored one:\n%s", diff)
	}
	return m
}

// same fails the test unless a generation is the home: unpacked, and exported.
func (o *objects) same(t *testing.T, m *Manifest, home string) {
	t.Helper()
	check(t, m.Verify(t.Context(), o.get))
	restored := o.unpacked(t, m)
	want, got := archivetest.Snapshot(t, home), archivetest.Snapshot(t, restored)
	if diff := archivetest.Diff(want, got); diff != "" {
		t.Errorf("the restored home differs (-home +restored):\n%s", diff)
	}
	check(t, m.CompareRestored(t.Context(), o.get, restored, nil, nil))
	packed, meta := pack(t, home)
	var exported bytes.Buffer
	stats, err := m.Export(t.Context(), o.get, &exported)
	check(t, err)
	if !bytes.Equal(packed, exported.Bytes()) {
		t.Errorf("the export has %d bytes and is not the archive of the home, of %d bytes", exported.Len(), len(packed))
	}
	_, err = Verify(t.Context(), bytes.NewReader(exported.Bytes()), metaOf(stats), nil)
	check(t, err)
	if stats.Entries != meta.Entries || stats.Bytes != meta.Bytes {
		t.Errorf("the export counts %+v, the archive %+v", stats, meta)
	}
}

func (o *objects) unpacked(t *testing.T, m *Manifest) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "restored")
	check(t, os.Mkdir(dir, 0o700))
	_, err := m.Unpack(t.Context(), o.get, dir, UnpackOptions{})
	check(t, err)
	return dir
}

func TestBackupRoundTrip(t *testing.T) {
	t.Parallel()
	home, o := t.TempDir(), newObjects()
	archivetest.Corpus(t, home)
	before := archivetest.Snapshot(t, home)
	m := o.generation(t, home, BackupOptions{})
	if diff := cmp.Diff(before, archivetest.Snapshot(t, home)); diff != "" {
		t.Errorf("the backup left traces in the home (-before +after):\n%s", diff)
	}
	if got := m.Totals(); got.Entries != int64(len(before)) || got.Skipped != archivetest.Skipped || len(m.Problems()) > 0 {
		t.Errorf("totals are %+v, problems %v; the tree has %d entries", got, m.Problems(), len(before))
	}
	o.same(t, m, home)
}

func TestBackupOfChangedHome(t *testing.T) {
	t.Parallel()
	home, o := t.TempDir(), newObjects()
	archivetest.Corpus(t, home)
	in := func(name string) string { return filepath.Join(home, name) }
	random := rand.New(rand.NewPCG(1, 2))
	large := make([]byte, 20<<20)
	for i := range large {
		large[i] = byte(random.Uint32())
	}
	for name, content := range map[string][]byte{
		"large": large, "backdated": []byte("before"), "mode": []byte("m"), "attribute": []byte("a"), "moved": []byte("moved"),
		"linked": []byte("l"), "removed": []byte("r"), "hole": large[:1<<20], "same": []byte("same content"),
	} {
		check(t, os.WriteFile(in(name), content, 0o644))
	}
	check(t, os.Chtimes(in("backdated"), time.Unix(1e9, 0), time.Unix(1e9, 0)))
	first := o.generation(t, home, BackupOptions{})
	packs := len(o.stored)
	second := o.generation(t, home, BackupOptions{Former: first})
	if len(o.stored) != packs+1 || second.Totals().Stored != 0 {
		t.Errorf("an unchanged home stored %d objects, with %d bytes of packs", len(o.stored)-packs, second.Totals().Stored)
	}
	if got, err := second.Compare(first); err != nil || got != (Changes{}) {
		t.Errorf("an unchanged home has changes: %+v, %v", got, err)
	}

	check(t, os.WriteFile(in("backdated"), []byte("after!"), 0o644))
	check(t, os.Chtimes(in("backdated"), time.Unix(1e9, 0), time.Unix(1e9, 0)))
	check(t, os.Chmod(in("mode"), 0o4711))
	check(t, unix.Setxattr(in("attribute"), "user.new", []byte("value"), 0))
	check(t, os.Rename(in("moved"), in("elsewhere")))
	check(t, os.Link(in("linked"), in("second-name")))
	check(t, os.Remove(in("removed")))
	check(t, os.WriteFile(in("copy"), []byte("same content"), 0o600))
	f, err := os.OpenFile(in("hole"), os.O_RDWR, 0)
	check(t, err)
	check(t, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 64<<10, 512<<10))
	check(t, f.Close())
	check(t, os.WriteFile(in("large"), slices.Concat(large[:5<<20], []byte("inserted"), large[5<<20:]), 0o644))
	third := o.generation(t, home, BackupOptions{Former: second})
	if got := third.Totals().Stored; got < 256<<10 || got > 9<<20 {
		t.Errorf("the changes took %d bytes of packs", got)
	}
	got, err := third.Compare(second)
	check(t, err)
	if want := (Changes{Added: 3, Changed: 4, Removed: 2}); got.Added != want.Added || got.Removed != want.Removed || got.Bytes < 20<<20 {
		t.Errorf("changes are %+v, want %+v", got, want)
	}
	o.same(t, third, home)
	full := o.generation(t, home, BackupOptions{Former: third, FullRead: true})
	if got, err := full.Compare(third); err != nil || got != (Changes{}) || full.Totals().Stored != 0 {
		t.Errorf("a full read of an unchanged home has changes: %+v, %d bytes, %v", got, full.Totals().Stored, err)
	}

	// Each generation remains what it was, also the first one.
	restored := o.unpacked(t, first)
	if b, err := os.ReadFile(filepath.Join(restored, "backdated")); err != nil || string(b) != "before" {
		t.Errorf("the first generation has %q, %v", b, err)
	}
	// A pack that is not referred to any more is not needed.
	check(t, os.RemoveAll(home))
	check(t, os.Mkdir(home, 0o755))
	check(t, os.WriteFile(in("new"), []byte("new"), 0o644))
	last := o.generation(t, home, BackupOptions{Former: third})
	if n := len(maps.Collect(last.Packs())); n != 1 {
		t.Errorf("a home of one file needs %d packs", n)
	}
	o.same(t, last, home)
}

func TestOpenFileOfGeneration(t *testing.T) {
	t.Parallel()
	home, o := t.TempDir(), newObjects()
	archivetest.Corpus(t, home)
	m := o.generation(t, home, BackupOptions{})
	files := 0
	for e, err := range m.Entries() {
		check(t, err)
		var requests atomic.Int32
		r, opened, err := m.Open(t.Context(), func(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
			requests.Add(1)
			return o.get(ctx, name, offset, length)
		}, e.Name)
		if target, failed := m.find(e.SameAs); failed == nil && target.kind == kindSymlink || !e.Mode.IsRegular() {
			if !errors.Is(err, fs.ErrInvalid) {
				t.Errorf("%s: %v, want fs.ErrInvalid", e.Name, err)
			}
			continue
		}
		check(t, err)
		if opened.Size > 16<<20 {
			check(t, r.Close())
			continue
		}
		want, err := os.ReadFile(filepath.Join(home, e.Name))
		check(t, err)
		got, err := io.ReadAll(r)
		check(t, err)
		check(t, r.Close())
		if !bytes.Equal(got, want) || opened.Size != int64(len(want)) {
			t.Errorf("%q: %d bytes differ from the file's %d", e.Name, len(got), len(want))
		}
		if opened.Size <= wholeFile && requests.Load() > 1 {
			t.Errorf("%q took %d requests", e.Name, requests.Load())
		}
		files++
	}
	if files < 10 {
		t.Errorf("only %d files", files)
	}
	if _, _, err := m.Open(t.Context(), o.get, "no/such"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

// The packs of a generation are numbered, and have its name.
func TestNamesOfPacks(t *testing.T) {
	t.Parallel()
	home, o := homeOfPacks(t), newObjects()
	name := ManifestName(time.Unix(1, 0), "some-id")
	m, err := Backup(t.Context(), home, name, o.put, BackupOptions{})
	check(t, err)
	var want []string
	for i := range 5 {
		want = append(want, fmt.Sprintf("packs/19700101T000001Z-some-id-%05d.zst", i))
	}
	stored, err := ReadManifest(bytes.NewReader(o.stored[name]))
	check(t, err)
	for _, m := range []*Manifest{m, stored} {
		if got := slices.Sorted(maps.Keys(maps.Collect(m.Packs()))); !slices.Equal(got, want) {
			t.Errorf("the packs are %q", got)
		}
	}
	for name, is := range map[string]bool{
		want[0]: true, "packs/g-12345.zst": true, "packs/g-123456.zst": false, "packs/g-0001.zst": false, "packs/g-+0001.zst": false,
		"packs/-00000.zst": false, "packs/.g-00000.zst": false, "packs/a/b-00000.zst": false, "packs/00000.zst": false, "g-00000.zst": false, "packs/g-00000": false,
	} {
		if IsPack(name) != is {
			t.Errorf("IsPack(%q) is %v", name, !is)
		}
	}
	for _, name := range []string{"", ".manifest.zst", "../x.manifest.zst", "a/b", ".hidden", strings.Repeat("n", 151)} {
		if _, err := Backup(t.Context(), home, name, o.put, BackupOptions{}); err == nil {
			t.Errorf("the name %q is accepted", name)
		}
	}
}

// zstd and tar of Debian read what a backup stores.
func TestToolsReadBackup(t *testing.T) {
	t.Parallel()
	home, o := t.TempDir(), newObjects()
	check(t, os.WriteFile(filepath.Join(home, "file"), []byte("content of a file"), 0o600))
	m := o.generation(t, home, BackupOptions{})
	for name, b := range o.stored {
		cmd := exec.Command("zstd", "-dc")
		cmd.Stdin = bytes.NewReader(b)
		out, err := cmd.Output()
		check(t, err)
		if strings.HasPrefix(name, "packs/") && string(out) != "content of a file" {
			t.Errorf("%s has %q", name, out)
		}
	}
	var b bytes.Buffer
	_, err := m.Export(t.Context(), o.get, &b)
	check(t, err)
	cmd := exec.Command("tar", "--zstd", "-xO", "./file")
	cmd.Stdin = &b
	if out, err := cmd.Output(); err != nil || string(out) != "content of a file" {
		t.Errorf("tar: %q, %v", out, err)
	}
}

// homeOfPacks returns a home whose content needs two packs.
func homeOfPacks(tb testing.TB) string {
	tb.Helper()
	home := tb.TempDir()
	for i := range 2 {
		b := make([]byte, 20<<20)
		rand.NewChaCha8([32]byte{byte(i)}).Read(b)
		check(tb, os.WriteFile(filepath.Join(home, fmt.Sprint("file", i)), b, 0o600))
	}
	return home
}

// A backup that is killed leaves no manifest, and one whose manifest exists is complete.
func TestBackupStoresManifestLast(t *testing.T) {
	t.Parallel()
	home := homeOfPacks(t)
	killed := errors.New("killed")
	for dies := range 10 {
		o, n := newObjects(), 0
		_, err := Backup(t.Context(), home, "m", func(ctx context.Context, name string, b []byte) error {
			if n++; n > dies {
				return killed
			}
			return o.put(ctx, name, b)
		}, BackupOptions{})
		if b, ok := o.stored["m"]; ok {
			check(t, err)
			m, err := ReadManifest(bytes.NewReader(b))
			check(t, err)
			o.same(t, m, home)
			return
		}
		if !errors.Is(err, killed) || len(o.stored) != dies {
			t.Fatalf("killed at object %d: %v, and %d objects", dies, err, len(o.stored))
		}
	}
	t.Error("the backup needed more than 10 objects")
}

// A generation has the time of the last full read.
func TestTimeOfLastFullRead(t *testing.T) {
	t.Parallel()
	home, o := t.TempDir(), newObjects()
	before := time.Now().Truncate(time.Second)
	first := o.generation(t, home, BackupOptions{})
	if at := first.FullRead(); at.Before(before) || at.After(time.Now()) {
		t.Errorf("the first generation has %s", at)
	}
	first.s.fullRead = 1e9
	second := o.generation(t, home, BackupOptions{Former: first})
	if at := second.FullRead(); at.Unix() != 1e9 {
		t.Errorf("a generation after a full read has %s", at)
	}
	for after, want := range map[time.Duration]bool{0: false, 7 * 24 * time.Hour: false, 7*24*time.Hour + time.Second: true} {
		if second.FullReadDue(second.FullRead().Add(after)) != want {
			t.Errorf("a full read is due after %s: %v", after, !want)
		}
	}
	full := o.generation(t, home, BackupOptions{Former: second, FullRead: true})
	if at := full.FullRead(); at.Before(before) || at.After(time.Now()) {
		t.Errorf("a full read has %s", at)
	}
}

// A reference that appears while its repository is read is not stored without its object, which Git stores first.
func TestBackupOfRepositoryInUse(t *testing.T) {
	t.Parallel()
	home, o := t.TempDir(), newObjects()
	refs, stored := filepath.Join(home, ".git", "refs"), filepath.Join(home, ".git", "objects")
	check(t, os.MkdirAll(refs, 0o700))
	for i := range 256 {
		check(t, os.MkdirAll(filepath.Join(stored, fmt.Sprintf("%02x", i)), 0o700))
	}
	commit := func(n int) {
		id := fmt.Sprintf("%02x%d", n*37%256, n)
		check(t, os.WriteFile(filepath.Join(stored, id[:2], id[2:]), nil, 0o600))
		check(t, os.WriteFile(filepath.Join(refs, "next"), []byte(id), 0o600))
		check(t, os.Rename(filepath.Join(refs, "next"), filepath.Join(refs, "main")))
	}
	commit(0)
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for n := 1; ; n = (n + 1) % 2000 {
			select {
			case <-end:
				return
			default:
				commit(n)
			}
		}
	}()
	for range 20 {
		m := o.generation(t, home, BackupOptions{})
		r, _, err := m.Files(o.get).Open(t.Context(), ".git/refs/main")
		check(t, err)
		id, err := io.ReadAll(r)
		check(t, errors.Join(err, r.Close()))
		stored := false
		for e, err := range m.Entries() {
			check(t, err)
			stored = stored || e.Name == ".git/objects/"+string(id[:2])+"/"+string(id[2:])
		}
		if !stored {
			t.Errorf("the generation has the reference to %s, and not the object", id)
		}
	}
	close(end)
	<-done
}
