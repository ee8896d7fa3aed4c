package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// FuzzUnpack passes tars to Unpack: it always ends, with success or ErrCorrupted, and changes
// nothing outside the home.
func FuzzUnpack(f *testing.F) {
	f.Add(tarOf(f, tar.Header{Typeflag: tar.TypeDir, Name: "./"}, tar.Header{Typeflag: tar.TypeReg, Name: "./a"},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "./l", Linkname: "../.."}, tar.Header{Typeflag: tar.TypeLink, Name: "./h", Linkname: "./a"}))
	small := f.TempDir()
	check(f, os.WriteFile(filepath.Join(small, "sparse"), nil, 0o600))
	check(f, os.Truncate(filepath.Join(small, "sparse"), 1<<20))
	check(f, os.WriteFile(filepath.Join(small, "\xff"), []byte("x"), 0o4755))
	check(f, unix.Setxattr(filepath.Join(small, "sparse"), "user.x", []byte("y"), 0))
	packed, _ := pack(f, small)
	d, err := newDecompressor(f.Context(), bytes.NewReader(packed))
	check(f, err)
	raw, err := (&source{refill: d.next}).appendTo(nil, 5<<10)
	check(f, err)
	f.Add(raw)
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	check(f, err)
	f.Fuzz(func(t *testing.T, raw []byte) {
		fixChecksums(raw)
		base := t.TempDir()
		home := filepath.Join(base, "home")
		check(t, os.Mkdir(home, 0o700))
		d, err := newDecompressor(t.Context(), bytes.NewReader(z.EncodeAll(raw, nil)))
		check(t, err)
		defer d.stop()
		stats, err := unpack(t.Context(), d, home,
			UnpackOptions{MaxBytes: 1 << 20, MaxEntries: 100}, func(int) error { return nil })
		var errno unix.Errno
		if err != nil && !errors.Is(err, ErrCorrupted) && !errors.As(err, &errno) {
			t.Errorf("err = %v, neither corruption nor the system's", err)
		}
		if list, _ := os.ReadDir(base); len(list) != 1 {
			t.Errorf("outside the home there is %v", list)
		}
		if err == nil && stats.Entries > 100 {
			t.Errorf("%d entries", stats.Entries)
		}
	})
}

// fixChecksums corrects the checksums of headers, so that the fuzzer gets past them.
func fixChecksums(raw []byte) {
	for b := raw; len(b) >= blockSize; b = b[blockSize:] {
		if string(b[257:262]) == "ustar" {
			octal(b[148:155], checksum(b[:blockSize]))
		}
	}
}

// FuzzFrames passes bytes to the decompressor: its output is zstd's, or an error.
func FuzzFrames(f *testing.F) {
	f.Add(compressed(f, []byte("hello, hello, hello")))
	f.Add(append(compressed(f, bytes.Repeat([]byte("x"), 100<<10)), compressed(f, nil)...))
	f.Add([]byte("\x50\x2a\x4d\x18\x03\x00\x00\x00abc"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := newDecompressor(t.Context(), bytes.NewReader(b))
		check(t, err)
		defer d.stop()
		for total := 0; total < 64<<20; {
			p, err := d.next()
			if err == io.EOF {
				return
			}
			if err != nil {
				if !errors.Is(err, ErrCorrupted) {
					t.Errorf("err = %v", err)
				}
				return
			}
			total += len(p)
		}
	})
}

func FuzzReadMeta(f *testing.F) {
	good, err := metaOf(Stats{Entries: 1, Size: 10, SHA256: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}).Encode()
	check(f, err)
	f.Add(good)
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ReadMeta(bytes.NewReader(b))
		if err != nil {
			if !errors.Is(err, ErrCorrupted) {
				t.Errorf("err = %v", err)
			}
			return
		}
		again, err := m.Encode()
		check(t, err)
		back, err := ReadMeta(bytes.NewReader(again))
		check(t, err)
		if diff := cmp.Diff(m, back); diff != "" {
			t.Errorf("read otherwise than written:\n%s", diff)
		}
	})
}

// The header of any entry reads back as it was written.
func TestHeadersReadBack(t *testing.T) {
	t.Parallel()
	part := rapid.Map(rapid.SliceOfN(rapid.Byte(), 1, 120), func(b []byte) string {
		s := strings.NewReplacer("/", "x", "\x00", "y").Replace(string(b))
		if s == "." || s == ".." || len(s) > maxName {
			return "y"
		}
		return s
	})
	name := rapid.Map(rapid.SliceOfN(part, 1, 6), func(parts []string) string { return strings.Join(parts, "/") })
	id := rapid.Uint32Max(math.MaxUint32 - 1)
	moment := rapid.Custom(func(t *rapid.T) unix.Timespec {
		return unix.Timespec{Sec: rapid.Int64Range(-1<<40, 1<<40).Draw(t, "sec"), Nsec: rapid.Int64Range(0, 999_999_999).Draw(t, "nsec")}
	})
	rapid.Check(t, func(t *rapid.T) {
		e := entry{
			name: name.Draw(t, "name"), kind: rapid.SampledFrom([]byte{kindFile, kindFolder, kindSymlink, kindHardLink}).Draw(t, "kind"),
			mode: rapid.Uint32Max(0o7777).Draw(t, "mode"), uid: id.Draw(t, "uid"), gid: id.Draw(t, "gid"),
			mtime: moment.Draw(t, "mtime"), atime: moment.Draw(t, "atime"),
		}
		switch e.kind {
		case kindFile:
			e.size = rapid.Int64Range(0, 1<<50).Draw(t, "size")
			if rapid.Bool().Draw(t, "sparse") {
				e.extents = []extent{}
				for at := int64(0); at < e.size && len(e.extents) < 50; {
					from := rapid.Int64Range(at, e.size-1).Draw(t, "from")
					x := extent{from, rapid.Int64Range(1, e.size-from).Draw(t, "length")}
					e.extents = append(e.extents, x)
					at = x.offset + x.length + 1
				}
			}
		case kindSymlink, kindHardLink:
			e.link = name.Draw(t, "link")
		}
		for i := range rapid.IntRange(0, 3).Draw(t, "xattrs") {
			e.xattrs = append(e.xattrs, xattr{"user." + string(rune('a'+i)) + rapid.StringMatching(`[ -~]{0,30}`).Draw(t, "key"), rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "value")})
		}
		b, err := appendHeader(nil, &e)
		if err != nil {
			t.Fatal(err)
		}
		sent := false
		r := tarReader{src: &source{refill: func() ([]byte, error) {
			if sent {
				return nil, io.EOF
			}
			sent = true
			return b, nil
		}}}
		got, err := r.next()
		if err != nil {
			t.Fatalf("%+v: %v", e, err)
		}
		if diff := cmp.Diff(&e, got, cmp.AllowUnexported(entry{}, xattr{}, extent{})); diff != "" {
			t.Fatalf("header reads back otherwise:\n%s", diff)
		}
		if r.left != e.stored() {
			t.Fatalf("%d bytes of content are expected, want %d", r.left, e.stored())
		}
	})
}
