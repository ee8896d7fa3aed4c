package archive

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"codehub/internal/testing/archivetest"
	"codehub/internal/testing/harness"
)

// counted is an archive in memory that counts requests and the bytes that were requested.
type counted struct {
	archive         []byte
	requests, bytes int64
}

func (c *counted) open(_ context.Context, offset, length int64) (io.ReadCloser, error) {
	c.requests++
	c.bytes += length
	return io.NopCloser(io.NewSectionReader(bytes.NewReader(c.archive), offset, length)), nil
}

func (c *counted) index(tb testing.TB) *Index {
	tb.Helper()
	x, err := OpenIndex(context.Background(), int64(len(c.archive)), c.open)
	check(tb, err)
	return x
}

// read returns the content of a file.
func (x *Index) readAll(ctx context.Context, name string) ([]byte, Entry, error) {
	r, e, err := x.Open(ctx, name)
	if err != nil {
		return nil, e, err
	}
	b, err := io.ReadAll(r)
	if closed := r.Close(); err == nil {
		err = closed
	}
	return b, e, err
}

func TestIndexDescribesHome(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	archivetest.Corpus(t, home)
	before := archivetest.Snapshot(t, home)
	packed, meta := pack(t, home)
	x := (&counted{archive: packed}).index(t)
	var n int64
	for e, err := range x.Entries(t.Context()) {
		check(t, err)
		n++
		name := "./" + e.Name
		if e.Name == "." {
			name = "."
		}
		s, ok := before[name]
		if !ok {
			t.Errorf("%q is not in the home", e.Name)
			continue
		}
		mtime := fmt.Sprintf("%d.%09d", e.ModTime.Unix(), e.ModTime.Nanosecond())
		kinds := map[uint32]fs.FileMode{unix.S_IFREG: 0, unix.S_IFDIR: fs.ModeDir, unix.S_IFLNK: fs.ModeSymlink}
		sticky := map[fs.FileMode]uint32{fs.ModeSetuid: unix.S_ISUID, fs.ModeSetgid: unix.S_ISGID, fs.ModeSticky: unix.S_ISVTX}
		mode := uint32(e.Mode.Perm())
		for bit, unixBit := range sticky {
			if e.Mode&bit != 0 {
				mode |= unixBit
			}
		}
		if e.SameAs == "" && (e.Mode.Type() != kinds[s.Mode&unix.S_IFMT] || e.Link != s.Link) || mode != s.Mode&0o7777 || e.UID != s.UID || e.GID != s.GID || mtime != s.Mtime ||
			e.Mode.IsRegular() && e.SameAs == "" && e.Size != s.Size {
			t.Errorf("%q is %+v in the index and %+v in the home", e.Name, e, s)
		}
		if s.Mode&unix.S_IFMT != unix.S_IFREG {
			if _, _, err := x.Open(t.Context(), e.Name); !errors.Is(err, fs.ErrInvalid) {
				t.Errorf("%q, which is no file: %v", e.Name, err)
			}
			continue
		}
		r, _, err := x.Open(t.Context(), e.Name)
		check(t, err)
		f, err := os.Open(filepath.Join(home, e.Name))
		check(t, err)
		const much = 4 << 20 // of a file of 9 GiB
		got, err := io.ReadAll(io.LimitReader(r, much))
		check(t, err)
		want, err := io.ReadAll(io.LimitReader(f, much))
		check(t, err)
		if !bytes.Equal(got, want) {
			t.Errorf("%q has %d bytes of other content", e.Name, len(got))
		}
		check(t, r.Close())
		check(t, f.Close())
	}
	if n != meta.Entries {
		t.Errorf("%d entries, want %d", n, meta.Entries)
	}
	for _, name := range []string{"", "/", "no-such-file", "./."} {
		if _, _, err := x.Open(t.Context(), name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: err = %v", name, err)
		}
	}
}

// large returns a home of several frames, and the name and content of a file in the middle.
func large(tb testing.TB) (home, name string, content []byte) {
	tb.Helper()
	home = tb.TempDir()
	for i := range 40 {
		b := randomBytes(1 << 20)
		binary.LittleEndian.PutUint32(b, uint32(i))
		check(tb, os.WriteFile(filepath.Join(home, fmt.Sprintf("file-%02d", i)), b, 0o600))
		if i == 20 {
			content = b
		}
	}
	return home, "file-20", content
}

func TestFileCostsTwoRequests(t *testing.T) {
	t.Parallel()
	home, name, content := large(t)
	packed, _ := pack(t, home)
	c := &counted{archive: packed}
	x := c.index(t)
	for _, err := range x.Entries(t.Context()) {
		check(t, err)
	}
	if c.requests != 1 {
		t.Errorf("a list took %d requests", c.requests)
	}
	got, _, err := x.readAll(t.Context(), name)
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("content of %d bytes, %v", len(got), err)
	}
	if c.requests != 2 || c.bytes > tailSize+2*frameSize+(1<<20) {
		t.Errorf("a file took %d requests of %d bytes in all", c.requests, c.bytes)
	}
}

// A home with many long names has several frames of the table of contents, also between other
// frames, and packing it holds no more than one of them in memory.
func TestIndexInSeveralFrames(t *testing.T) {
	t.Parallel()
	files, often := 20_000, 6_000 // cut more often than in packing, which needs more entries
	if harness.Verifying() {
		files, often = 200_000, math.MaxInt
	}
	name := func(i int) string {
		b := make([]byte, 127) // which do not compress
		rand.NewChaCha8([32]byte{byte(i), byte(i >> 8), byte(i >> 16)}).Read(b)
		return hex.EncodeToString(b)
	}
	var out bytesWriter
	c, err := newCompressor(t.Context(), &out)
	check(t, err)
	p := packer{compressor: c, contents: c.toc()}
	check(t, p.head(&entry{name: ".", kind: kindFolder, mode: 0o755}))
	most := 0
	for i := range files {
		check(t, p.head(&entry{name: name(i), kind: kindFile, mode: 0o644}))
		most = max(most, len(p.contents.out)+len(p.after)+cap(p.contents.records))
		if i%often == often-1 {
			p.contents.flush()
			p.after = p.contents.frame()
		}
	}
	_, err = p.Write(make([]byte, 2*blockSize))
	check(t, err)
	check(t, c.finish(p.contents))
	if most > tocFrame+5*tocPiece {
		t.Errorf("packing held %d bytes of the table of contents", most)
	}
	check(t, verified(t, out))
	requests := &counted{archive: out}
	x := requests.index(t)
	if len(x.toc) < 2 {
		t.Errorf("the table of contents has %d frames", len(x.toc))
	}
	i := -1
	for e, err := range x.Entries(t.Context()) {
		check(t, err)
		if i >= 0 && e.Name != name(i) {
			t.Fatalf("entry %d is %q", i, e.Name)
		}
		i++
	}
	if i != files || requests.requests > int64(len(x.toc))+1 {
		t.Errorf("%d files in %d requests, for %d frames", i, requests.requests, len(x.toc))
	}
	if content, _, err := x.readAll(t.Context(), name(files/2)); err != nil || len(content) > 0 {
		t.Errorf("an empty file: %d bytes, %v", len(content), err)
	}
}

// verified verifies an archive of any counts.
func verified(tb testing.TB, packed []byte) error {
	tb.Helper()
	sum := sha256.Sum256(packed)
	d, err := newDecompressor(context.Background(), bytes.NewReader(packed))
	check(tb, err)
	defer d.stop()
	tar := tarReader{src: &source{refill: d.next}}
	meta := metaOf(Stats{Size: int64(len(packed)), SHA256: hex.EncodeToString(sum[:])})
	for {
		e, err := tar.next()
		if err != nil {
			break
		}
		meta.Entries++
		meta.Bytes += e.stored()
	}
	_, err = Verify(context.Background(), bytes.NewReader(packed), meta, nil)
	return err
}

// parts are those of an archive whose table of contents is in one frame.
type parts struct {
	frames  []byte // with content
	table   seekTable
	records []byte // without the last one
	entries uint64
}

func split(tb testing.TB, packed []byte) parts {
	tb.Helper()
	x := (&counted{archive: packed}).index(tb)
	var p parts
	for _, err := range x.Entries(context.Background()) {
		check(tb, err)
		p.entries++
	}
	toc := x.toc[0]
	for i := range toc {
		p.table.add(int(x.frames[i].end-x.start(i)), int(x.total(i)-x.total(i-1)))
	}
	p.frames = packed[:x.start(toc)]
	r, err := openTOC(bytes.NewReader(packed[x.start(toc)+skipHeader : x.frames[toc].end]))
	check(tb, err)
	defer r.Close()
	p.records, err = io.ReadAll(r)
	check(tb, err)
	last := sha256.Size + len(binary.AppendUvarint([]byte{kindEnd}, p.entries))
	p.records = p.records[:len(p.records)-last]
	return p
}

// join returns an archive with a right digest of its records.
func (p parts) join(tb testing.TB) []byte {
	tb.Helper()
	z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	check(tb, err)
	defer z.Close()
	t := newTOCWriter(z.EncodeAll)
	t.records, t.entries = bytes.Clone(p.records), p.entries
	t.end()
	toc, table := t.frame(), slices.Clone(p.table)
	table.add(len(toc), 0)
	return slices.Concat(p.frames, toc, table.frame())
}

// A table of contents that differs from the tar, or a seek table that differs from the frames, is
// found when the archive is verified, and no file is read wrongly by it.
func TestWrongIndexIsFound(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	for i := range 9 {
		check(t, os.WriteFile(filepath.Join(home, fmt.Sprint("file", i)), randomBytes(1<<20+i), 0o600))
	}
	good, _ := pack(t, home)
	check(t, verified(t, good))
	again := split(t, good).join(t)
	check(t, verified(t, again))
	// entries returns the records of other entries at the same offsets.
	entries := func(change func(i int, e *record)) func(p *parts) {
		return func(p *parts) {
			w, i := newTOCWriter(func(piece, to []byte) []byte { return to }), 0
			for r, err := range (&counted{archive: good}).index(t).records(t.Context()) {
				check(t, err)
				change(i, &r)
				w.add(&r.entry, r.offset)
				i++
			}
			p.records = w.records
		}
	}
	for name, change := range map[string]func(p *parts){
		"other size":     entries(func(i int, e *record) { e.size++ }),
		"other name":     entries(func(i int, e *record) { e.name = strings.Replace(e.name, "file3", "file33", 1) }),
		"other mode":     entries(func(i int, e *record) { e.mode ^= 0o100 }),
		"other owner":    entries(func(i int, e *record) { e.uid++ }),
		"other group":    entries(func(i int, e *record) { e.gid++ }),
		"other second":   entries(func(i int, e *record) { e.mtime.Sec-- }),
		"other fraction": entries(func(i int, e *record) { e.mtime.Nsec = (e.mtime.Nsec + 1) % 1e9 }),
		"other offset":   entries(func(i int, e *record) { e.offset += int64(min(i, 1)) * blockSize }),
		"other kind":     entries(func(i int, e *record) { e.kind, e.link = kindSymlink, "file1" }),
		"two names exchanged": entries(func(i int, e *record) {
			e.name = map[string]string{"file3": "file4", "file4": "file3"}[e.name] + strings.Repeat(e.name, 1-min(1, strings.Count("file3file4", e.name)))
		}),
		"one entry less":                func(p *parts) { p.entries-- },
		"other length":                  func(p *parts) { p.table[0]++; p.table[seekEntry]-- },
		"other content":                 func(p *parts) { p.table[4]-- },
		"frame without data":            func(p *parts) { clear(p.table[4:8]) },
		"shared bytes that no name has": func(p *parts) { p.records = binary.AppendUvarint([]byte{kindFolder, 0}, math.MaxUint64) },
		"half of the records":           func(p *parts) { p.records = p.records[:len(p.records)/2] },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := split(t, good)
			change(&p)
			wrong := p.join(t)
			if err := verified(t, wrong); !errors.Is(err, ErrCorrupted) {
				t.Errorf("verified with err = %v", err)
			}
			readRight(t, wrong, home)
			to := t.TempDir()
			if _, err := Unpack(t.Context(), bytes.NewReader(wrong), to, UnpackOptions{}); err != nil {
				t.Errorf("it cannot be unpacked: %v", err)
			}
		})
	}
	table := len(split(t, good).table) + seekEntry + seekFooter + skipHeader
	for name, wrong := range map[string][]byte{
		"without its seek table":  good[:len(good)-table],
		"two seek tables":         slices.Concat(good, good[len(good)-table:]),
		"damaged records":         damaged(good, len(good)-table-5),
		"without its index's end": slices.Concat(good[:len(good)-table-40], good[len(good)-table:]),
	} {
		if err := verified(t, wrong); !errors.Is(err, ErrCorrupted) {
			t.Errorf("%s: verified with err = %v", name, err)
		}
		readRight(t, wrong, home)
	}
}

func damaged(b []byte, at int) []byte {
	b = bytes.Clone(b)
	b[at] ^= 1
	return b
}

// readRight reads all files of an archive by its index: each read fails, or results in what is in
// the home.
func readRight(tb testing.TB, packed []byte, home string) {
	tb.Helper()
	x, err := OpenIndex(tb.Context(), int64(len(packed)), (&counted{archive: packed}).open)
	if err != nil {
		if !errors.Is(err, ErrCorrupted) && !errors.Is(err, ErrNoIndex) {
			tb.Errorf("err = %v", err)
		}
		return
	}
	for e, err := range x.Entries(tb.Context()) {
		if err != nil {
			if !errors.Is(err, ErrCorrupted) {
				tb.Errorf("err = %v", err)
			}
			return
		}
		got, _, err := x.readAll(tb.Context(), e.Name)
		if err != nil {
			if !errors.Is(err, ErrCorrupted) && !errors.Is(err, fs.ErrInvalid) && !errors.Is(err, fs.ErrNotExist) {
				tb.Errorf("%q: err = %v", e.Name, err)
			}
			continue
		}
		want, err := os.ReadFile(filepath.Join(home, e.Name))
		if err != nil || !bytes.Equal(got, want) {
			tb.Errorf("%q: %d bytes that are not those of the file (%d, %v)", e.Name, len(got), len(want), err)
		}
	}
}

// FuzzIndex passes the records and seek table of an archive: no file is read wrongly.
func FuzzIndex(f *testing.F) {
	home := f.TempDir()
	for i := range 3 {
		check(f, os.WriteFile(filepath.Join(home, fmt.Sprint("file", i)), bytes.Repeat([]byte{byte(i)}, 700*i), 0o600))
	}
	check(f, os.Link(filepath.Join(home, "file1"), filepath.Join(home, "same")))
	check(f, os.Symlink("file1", filepath.Join(home, "link")))
	packed, _ := pack(f, home)
	good := split(f, packed)
	f.Add(good.records, []byte(good.table), good.entries, []byte{})
	f.Add([]byte{kindEnd}, []byte{}, uint64(0), packed[len(packed)-200:])
	f.Fuzz(func(t *testing.T, records, table []byte, entries uint64, end []byte) {
		p := parts{good.frames, table[:len(table)/seekEntry*seekEntry], records, entries}
		readRight(t, p.join(t), home)
		readRight(t, append(bytes.Clone(good.frames), end...), home)
	})
}

func TestArchiveOfEarlierVersionHasNoIndex(t *testing.T) {
	t.Parallel()
	old, err := os.ReadFile("testdata/files-between-folders.tar.zst")
	check(t, err)
	check(t, verified(t, old))
	for name, b := range map[string][]byte{
		"of an earlier version": old, "empty": nil, "short": {1, 2, 3},
	} {
		if _, err := OpenIndex(t.Context(), int64(len(b)), (&counted{archive: b}).open); !errors.Is(err, ErrNoIndex) {
			t.Errorf("%s: err = %v", name, err)
		}
	}
}

// zstd reads the stream of an archive, without a byte of its index.
func TestZstdReadsArchiveWithIndex(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	archivetest.Corpus(t, home)
	packed, _ := pack(t, home)
	cmd := exec.Command("zstd", "-dc")
	cmd.Stdin = bytes.NewReader(packed)
	got, err := cmd.Output()
	check(t, err)
	d, err := newDecompressor(t.Context(), bytes.NewReader(packed))
	check(t, err)
	defer d.stop()
	x := (&counted{archive: packed}).index(t)
	want, err := (&source{refill: d.next}).appendTo(nil, x.total(len(x.frames)-1))
	check(t, err)
	if _, err := d.next(); err != io.EOF || !bytes.Equal(got, want) {
		t.Errorf("zstd reads %d bytes, want %d, %v", len(got), len(want), err)
	}
}

// A restore needs no index, so an archive with one that this version does not know is verified by
// its tar.
func TestVerifyIgnoresUnknownIndex(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	check(t, os.WriteFile(filepath.Join(home, "file"), []byte("content"), 0o600))
	good, _ := pack(t, home)
	p := split(t, good)
	withTOC := func(toc []byte) []byte {
		table := slices.Clone(p.table)
		table.add(len(toc), 0)
		return slices.Concat(p.frames, toc, table.frame())
	}
	table := slices.Clone(p.table)
	for name, b := range map[string][]byte{
		"later version":                withTOC(appendSkippable(nil, magicTOC, []byte("codehub\x02later"))),
		"skippable frame of a tool":    withTOC(appendSkippable(nil, magicTOC, []byte("x"))),
		"seekable format of a tool":    slices.Concat(p.frames, table.frame()),
		"seek table with its checksum": slices.Concat(p.frames, appendSkippable(nil, magicSeek, make([]byte, 12+seekFooter))),
	} {
		if err := verified(t, b); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		x, err := OpenIndex(t.Context(), int64(len(b)), (&counted{archive: b}).open)
		if err == nil {
			_, _, err = x.Open(t.Context(), "file")
		}
		if !errors.Is(err, ErrNoIndex) {
			t.Errorf("%s: read with err = %v", name, err)
		}
	}
}

// Verification takes time in proportion to the archive, also of one that consists of seek tables.
func TestVerifyManySeekTables(t *testing.T) {
	t.Parallel()
	good, _ := pack(t, t.TempDir())
	many := func(n int) []byte {
		return slices.Concat(bytes.Repeat(appendSkippable(nil, magicSeek, make([]byte, seekFooter)), n), good)
	}
	if err := verified(t, many(200_000)); !errors.Is(err, ErrCorrupted) {
		t.Errorf("err = %v", err)
	}
}

// Reading a large file, or a long list, slowly holds little memory: one user may do it many times
// at once.
func TestReadingFilesHoldsLittleMemory(t *testing.T) {
	home := t.TempDir()
	check(t, os.WriteFile(filepath.Join(home, "file"), randomBytes(40<<20), 0o600))
	packed, _ := pack(t, home)
	x := (&counted{archive: packed}).index(t)
	live := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := live()
	const readers = 4
	for range readers {
		r, _, err := x.Open(t.Context(), "file")
		check(t, err)
		defer r.Close()
		_, err = io.CopyN(io.Discard, r, 5<<20)
		check(t, err)
	}
	if held := (live() - before) / readers; held > 12<<20 {
		t.Errorf("each reader holds %d bytes", held)
	}
	runtime.KeepAlive(packed)
}

// An error of the bucket is returned unchanged, wherever it occurs.
func TestErrorOfSourceIsNotDamage(t *testing.T) {
	t.Parallel()
	home, name, _ := large(t)
	packed, _ := pack(t, home)
	broken := errors.New("the connection is broken")
	for _, after := range []int64{0, 5, 1 << 20} {
		failing := func(_ context.Context, offset, length int64) (io.ReadCloser, error) {
			return io.NopCloser(io.MultiReader(bytes.NewReader(packed[offset:offset+min(after, length)]), iotest.ErrReader(broken))), nil
		}
		if _, err := OpenIndex(t.Context(), int64(len(packed)), failing); after < tailSize && !errors.Is(err, broken) {
			t.Errorf("index, after %d bytes: err = %v", after, err)
		}
		x := (&counted{archive: packed}).index(t)
		x.open = failing
		if _, _, err := x.readAll(t.Context(), name); !errors.Is(err, broken) {
			t.Errorf("file, after %d bytes: err = %v", after, err)
		}
		x.tailAt = int64(len(packed)) // so that the table of contents is read
		for _, err := range x.Entries(t.Context()) {
			if err != nil && !errors.Is(err, broken) {
				t.Errorf("list, after %d bytes: err = %v", after, err)
			}
		}
	}
}
