package archive

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"codehub/internal/testing/archivetest"
)

// smallGeneration returns the objects and the manifest of a home with every kind of entry.
func smallGeneration(tb testing.TB) (home string, o *objects, manifest []byte) {
	tb.Helper()
	home, o = tb.TempDir(), newObjects()
	in := func(name string) string { return filepath.Join(home, name) }
	check(tb, os.Mkdir(in("folder"), 0o755))
	check(tb, os.WriteFile(in("folder/file"), bytes.Repeat([]byte("content "), 1000), 0o644))
	check(tb, os.Symlink("folder/file", in("link")))
	check(tb, os.Link(in("folder/file"), in("name")))
	check(tb, os.WriteFile(in("sparse"), []byte("x"), 0o600))
	check(tb, os.Truncate(in("sparse"), 1<<20))
	check(tb, unix.Setxattr(in("sparse"), "user.x", []byte("y"), 0))
	m := o.generation(tb, home, BackupOptions{})
	for name, b := range o.stored {
		if !strings.HasPrefix(name, "packs/") {
			manifest = b
		}
	}
	if m.Totals().Entries != 6 {
		tb.Fatalf("totals are %+v", m.Totals())
	}
	return home, o, manifest
}

// A flipped bit anywhere is an error: of a manifest when it is read, of a pack when its content or its index is.
func TestFlippedBitsInBackup(t *testing.T) {
	t.Parallel()
	home, o, manifest := smallGeneration(t)
	m, err := ReadManifest(bytes.NewReader(manifest))
	check(t, err)
	for i := range manifest {
		manifest[i] ^= 1 << (i % 8)
		if _, err := ReadManifest(bytes.NewReader(manifest)); !errors.Is(err, ErrCorrupted) {
			t.Fatalf("byte %d of %d of the manifest: %v", i, len(manifest), err)
		}
		manifest[i] ^= 1 << (i % 8)
	}
	for i := range len(manifest) {
		if _, err := ReadManifest(bytes.NewReader(manifest[:i])); !errors.Is(err, ErrCorrupted) {
			t.Fatalf("manifest of %d bytes: %v", i, err)
		}
	}
	p := m.s.packs[0]
	b := o.stored[p.name()]
	check(t, os.WriteFile(filepath.Join(home, "new"), []byte("new"), 0o600))
	for i := range b {
		b[i] ^= 1 << (i % 8)
		if int64(i) < p.indexAt() {
			err = m.Verify(t.Context(), o.get)
		} else {
			_, err = Backup(t.Context(), home, "next", o.put, BackupOptions{Former: m, Get: o.get})
		}
		if !errors.Is(err, ErrCorrupted) {
			t.Fatalf("byte %d of %d of the pack: %v", i, len(b), err)
		}
		b[i] ^= 1 << (i % 8)
	}
	o.stored[p.name()] = b[:p.indexAt()-1]
	if err := m.Verify(t.Context(), o.get); !errors.Is(err, ErrCorrupted) {
		t.Errorf("a pack that is cut short: %v", err)
	}
	delete(o.stored, p.name())
	if err := m.Verify(t.Context(), o.get); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing pack: %v", err)
	}
}

// sealed returns a manifest of these contents, with a digest.
func sealed(z *zstd.Encoder, block, summary []byte) []byte {
	b := z.EncodeAll(block, nil)
	at := len(b)
	b = z.EncodeAll(summary, b)
	sum := sha256.Sum256(b)
	end := binary.LittleEndian.AppendUint64([]byte(manifestMark), uint64(at))
	return appendSkippable(b, magicManifest, append(end, sum[:]...))
}

func TestManifestOfTerabytesIsRefused(t *testing.T) {
	t.Parallel()
	z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	check(t, err)
	huge := make([]byte, 300<<20)
	if _, err := ReadManifest(bytes.NewReader(sealed(z, nil, huge))); !errors.Is(err, ErrCorrupted) {
		t.Errorf("a summary of 300 MiB: %v", err)
	}
	block := huge[:64<<20]
	s := summary{Totals: Totals{Entries: 1 << 50, Bytes: 1 << 59}, blocks: []int{len(z.EncodeAll(block, nil))}}
	m, err := ReadManifest(bytes.NewReader(sealed(z, block, s.encode())))
	check(t, err)
	for _, err = range m.Entries() {
	}
	if !errors.Is(err, ErrCorrupted) {
		t.Errorf("a block of 64 MiB: %v", err)
	}
	// Many entries in few bytes, and a file in a place that no pack has.
	w, err := newManifestWriter(nil)
	check(t, err)
	check(t, w.add(&generationEntry{entry: entry{name: ".", kind: kindFolder}}))
	check(t, w.add(&generationEntry{entry: entry{name: "file", kind: kindFile, size: 1 << 50}, segments: []segment{{0, 1 << 50}}}))
	b, err := w.finish(&summary{Totals: Totals{Entries: 2, Files: 1, Bytes: 1 << 50}}, []packInfo{{gone: true, length: 1 << 51}})
	check(t, err)
	m, err = ReadManifest(bytes.NewReader(b))
	check(t, err)
	if _, err := m.Unpack(t.Context(), newObjects().get, t.TempDir(), UnpackOptions{}); !errors.Is(err, ErrCorrupted) {
		t.Errorf("a file of 1 PiB without packs: %v", err)
	}
}

// FuzzManifest passes bytes to the decoders of summary and block. Both end with success or an error, and what
// they accept is a tar.
func FuzzManifest(f *testing.F) {
	_, o, manifest := smallGeneration(f)
	m, err := ReadManifest(bytes.NewReader(manifest))
	check(f, err)
	block, err := inflate(m.b, maxBlockSize)
	check(f, err)
	f.Add(block, m.s.encode())
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	check(f, err)
	f.Fuzz(func(t *testing.T, block, raw []byte) {
		var s summary
		if s.decode(raw, int64(len(m.b))) == nil {
			var again summary
			check(t, again.decode(s.encode(), int64(len(m.b))))
			if again.fullRead != s.fullRead {
				t.Fatalf("last full read at %d, want %d", again.fullRead, s.fullRead)
			}
		}
		s = summary{Totals: m.s.Totals, packs: m.s.packs, headers: m.s.headers, blocks: []int{len(z.EncodeAll(block, nil))}}
		changed, err := ReadManifest(bytes.NewReader(sealed(z, block, s.encode())))
		check(t, err)
		total := int64(0)
		for e, err := range changed.entries() {
			if err != nil {
				if !errors.Is(err, ErrCorrupted) {
					t.Fatal(err)
				}
				return
			}
			total += e.stored()
		}
		if total > 1<<20 {
			return
		}
		if _, err := changed.Export(t.Context(), o.get, io.Discard); err != nil && !errors.Is(err, ErrCorrupted) {
			t.Fatal(err)
		}
	})
}

// A file that changes while it is read is read again.
func TestBackupReadsChangedFileAgain(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"small": 10, "large": 3 << 20} {
		home, o, calls := t.TempDir(), newObjects(), 0
		file := filepath.Join(home, "file")
		check(t, os.WriteFile(file, make([]byte, size), 0o644))
		// The clock is read after a file's size, and before its content.
		m, err := Backup(t.Context(), home, "m", o.put, BackupOptions{now: func() time.Time {
			if calls++; calls == 1 {
				check(t, os.WriteFile(file, bytes.Repeat([]byte("new"), size), 0o644))
			}
			return time.Now().Add(time.Hour)
		}})
		check(t, err)
		if m.Totals().Changed != 0 {
			t.Errorf("%s: totals are %+v", name, m.Totals())
		}
		o.same(t, m, home)
	}
}

// A file that changes each time it is read is marked. What disappears is left out.
func TestBackupOfHomeInUse(t *testing.T) {
	t.Parallel()
	home, o := t.TempDir(), newObjects()
	in := func(name string) string { return filepath.Join(home, name) }
	for i := range 300 {
		check(t, os.WriteFile(in(fmt.Sprintf("file%03d", i)), []byte("content"), 0o644))
	}
	check(t, os.WriteFile(in("often"), []byte("often"), 0o644))
	check(t, os.Mkdir(in("folder"), 0o755))
	var first sync.Once
	calls := 0
	clock := func() time.Time {
		first.Do(func() {
			check(t, os.Remove(in("file290")))
		})
		f, err := os.OpenFile(in("often"), os.O_WRONLY|os.O_APPEND, 0)
		check(t, err)
		_, err = f.WriteString("!")
		check(t, errors.Join(err, f.Close()))
		calls++
		return time.Now().Add(time.Hour)
	}
	var mu sync.Mutex
	made, err := Backup(t.Context(), home, "m", o.put, BackupOptions{now: func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return clock()
	}})
	check(t, err)
	if got := made.Totals(); got.Changed != 1 || got.Files != 300 || len(made.Problems()) != 0 {
		t.Errorf("totals are %+v, problems %v", got, made.Problems())
	}
	for e, err := range made.Entries() {
		check(t, err)
		if e.Changed != (e.Name == "often") {
			t.Errorf("%s: changed is %v", e.Name, e.Changed)
		}
	}
	restored := archivetest.Snapshot(t, o.unpacked(t, made))
	if _, ok := restored["file290"]; ok {
		t.Error("a file is in the generation that was removed before it was read")
	}
	b, err := os.ReadFile(filepath.Join(o.unpacked(t, made), "often"))
	check(t, err)
	if !bytes.HasPrefix(b, []byte("often")) || len(b) > 5+calls {
		t.Errorf("the file that changes has %q", b)
	}
	// What changed is read again by the next backup.
	next := o.generation(t, home, BackupOptions{Former: made})
	if next.Totals().Changed != 0 {
		t.Errorf("totals of the next are %+v", next.Totals())
	}
	o.same(t, next, home)
}

// A file that no restore could create is listed, and the others are backed up.
func TestBackupListsProblems(t *testing.T) {
	t.Parallel()
	home, err := os.MkdirTemp("/dev/shm", "codehub-backup-") // ext4 has no files of this size
	check(t, err)
	t.Cleanup(func() { check(t, os.RemoveAll(home)) })
	check(t, os.WriteFile(filepath.Join(home, "file"), []byte("x"), 0o600))
	check(t, os.WriteFile(filepath.Join(home, "huge"), []byte("x"), 0o600))
	check(t, os.Truncate(filepath.Join(home, "huge"), maxFileSize+1))
	o := newObjects()
	m := o.generation(t, home, BackupOptions{})
	if p := m.Problems(); len(p) != 1 || p[0].Name != "huge" || m.Totals().Entries != 2 {
		t.Errorf("problems are %v, totals %+v", p, m.Totals())
	}
}

// linkedHome has a file with the name first, and then so many links between it and its last two names.
func linkedHome(t *testing.T, links int) (in func(string) string) {
	t.Helper()
	home := t.TempDir()
	in = func(name string) string { return filepath.Join(home, name) }
	check(t, os.WriteFile(in("first"), []byte("content"), 0o644))
	for i := range links {
		check(t, os.Symlink("first", in(fmt.Sprintf("link%03d", i))))
	}
	check(t, os.Link(in("first"), in("second")))
	check(t, os.Link(in("first"), in("third")))
	return in
}

// The second name of a file has its content if the first one disappears while it is read.
func TestBackupOfHardLinkWithoutFirstName(t *testing.T) {
	t.Parallel()
	in, o, calls := linkedHome(t, 2*readAhead), newObjects(), 0
	// The clock is read after a file's size, and before its content.
	m, err := Backup(t.Context(), in("."), "m", o.put, BackupOptions{now: func() time.Time {
		if calls++; calls == 1 {
			check(t, os.Remove(in("first")))
		}
		return time.Now().Add(time.Hour)
	}})
	check(t, err)
	if p := m.Problems(); len(p) > 0 || m.Totals().Files != 1 {
		t.Errorf("totals are %+v, problems %v", m.Totals(), p)
	}
	restored := archivetest.Snapshot(t, o.unpacked(t, m))
	home := archivetest.Snapshot(t, in("."))
	delete(restored, ".") // its time is that before the removal
	delete(home, ".")
	if diff := archivetest.Diff(home, restored); diff != "" {
		t.Errorf("the restored home differs (-home +restored):\n%s", diff)
	}
}

// A name of a file that changed after its first name was backed up is a file of its own, and the names
// after it are links to that.
func TestBackupOfHardLinkThatChanged(t *testing.T) {
	t.Parallel()
	in, o, calls := linkedHome(t, 4*readAhead), newObjects(), 0
	check(t, os.Remove(in(fmt.Sprintf("link%03d", 2*readAhead))))
	check(t, os.WriteFile(in(fmt.Sprintf("link%03d", 2*readAhead)), nil, 0o644))
	// The second call is for the file between the links: the first name is done, the others are not begun.
	m, err := Backup(t.Context(), in("."), "m", o.put, BackupOptions{now: func() time.Time {
		if calls++; calls == 2 {
			check(t, os.WriteFile(in("first"), []byte("other content"), 0o644))
		}
		return time.Now().Add(time.Hour)
	}})
	check(t, err)
	restored := o.unpacked(t, m)
	for name, want := range map[string]string{"first": "content", "second": "other content", "third": "other content"} {
		if b, err := os.ReadFile(filepath.Join(restored, name)); err != nil || string(b) != want {
			t.Errorf("%s has %q, %v", name, b, err)
		}
	}
	if got := archivetest.Snapshot(t, restored)["./third"].SameAs; got != "./second" || m.Totals().Files != 3 {
		t.Errorf("the third name is one of %q; totals are %+v", got, m.Totals())
	}
}

// A file is read again if the former generation has its inode twice.
func TestFormerFilesWithTheSameInode(t *testing.T) {
	t.Parallel()
	w, err := newManifestWriter(nil)
	check(t, err)
	inodes := []uint64{1, 2, 2, 3, 4, 4, 4}
	for i, inode := range inodes {
		check(t, w.add(&generationEntry{entry: entry{name: fmt.Sprint("file", i), kind: kindFile}, settled: true, inode: inode}))
	}
	b, err := w.finish(&summary{Totals: Totals{Entries: int64(len(inodes))}}, nil)
	check(t, err)
	m, err := ReadManifest(bytes.NewReader(b))
	check(t, err)
	f, err := m.files(false)
	check(t, err)
	if len(f.files) != 2 || f.files[0].inode != 1 || f.files[1].inode != 3 {
		t.Errorf("files are %+v", f.files)
	}
}

// A manifest that no restore would accept is an error of the backup.
func TestManifestIsRestorable(t *testing.T) {
	t.Parallel()
	file := func(name string) *generationEntry { return &generationEntry{entry: entry{name: name, kind: kindFile}} }
	link := func(name, to string) *generationEntry {
		return &generationEntry{entry: entry{name: name, kind: kindHardLink, link: to}}
	}
	folder := &generationEntry{entry: entry{name: "folder", kind: kindFolder}}
	symlink := &generationEntry{entry: entry{name: "symlink", kind: kindSymlink, link: "x"}}
	empty := &generationEntry{entry: entry{name: "sparse", kind: kindFile, size: 10, extents: []extent{{5, 0}}}}
	for name, test := range map[string]struct {
		entries []*generationEntry
		want    string
	}{
		"good":               {entries: []*generationEntry{file("a"), link("b", "a"), link("c", "a"), symlink, link("d", "symlink")}},
		"twice":              {[]*generationEntry{file("a"), file("b"), file("a")}, "a is listed twice"},
		"file and folder":    {[]*generationEntry{file("folder"), folder}, "folder is listed twice"},
		"link without file":  {[]*generationEntry{file("a"), link("b", "c")}, "b is a hard link to c"},
		"link before file":   {[]*generationEntry{link("a", "b"), file("b")}, "a is a hard link to b"},
		"link to itself":     {[]*generationEntry{link("a", "a")}, "a is a hard link to a"},
		"link to folder":     {[]*generationEntry{folder, link("a", "folder")}, "a is a hard link to folder"},
		"link to link":       {[]*generationEntry{file("a"), link("b", "a"), link("c", "b")}, "c is a hard link to b"},
		"entry without form": {[]*generationEntry{file("a"), empty}, "malformed manifest"},
	} {
		w, err := newManifestWriter(nil)
		check(t, err)
		s := &summary{}
		for _, e := range append([]*generationEntry{{entry: entry{name: ".", kind: kindFolder}}}, test.entries...) {
			b, err := appendHeader(nil, &e.entry)
			check(t, err)
			w.headers.Write(b)
			check(t, w.add(e))
			if s.Entries++; e.kind == kindFile {
				s.Files++
			}
		}
		b, err := w.finish(s, nil)
		check(t, err)
		m, err := decodeManifest(b)
		check(t, err)
		err = m.restorable()
		if test.want == "" {
			check(t, err)
		} else if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), `"`, ""), test.want) {
			t.Errorf("%s: %v, want %s", name, err, test.want)
		}
		if twice := strings.Contains(test.want, "twice"); errors.Is(err, ErrChanged) != twice {
			t.Errorf("%s: ErrChanged is %v", name, !twice)
		}
	}
}

// A backup that finds its manifest to be wrong does not store it.
func TestBackupStoresNoManifestThatIsNotRestorable(t *testing.T) {
	t.Parallel()
	home, o, _ := smallGeneration(t)
	former := o.generation(t, home, BackupOptions{})
	former.s.packs = nil // its files are then at addresses that no pack has
	_, err := Backup(t.Context(), home, "wrong", o.put, BackupOptions{
		Former: former, Get: o.get, now: func() time.Time { return time.Now().Add(time.Hour) },
	})
	if _, ok := o.stored["wrong"]; ok || err == nil || !strings.Contains(err.Error(), "no restore would accept the generation") {
		t.Errorf("the manifest is stored: %v, %v", ok, err)
	}
}
