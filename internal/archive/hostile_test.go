package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"codehub/internal/testing/archivetest"
)

// compressed returns b in one zstd frame.
func compressed(tb testing.TB, b []byte) []byte {
	tb.Helper()
	z, err := zstd.NewWriter(nil)
	check(tb, err)
	defer z.Close()
	return z.EncodeAll(b, nil)
}

// tarOf writes entries as another tool does; the content is the name.
func tarOf(tb testing.TB, headers ...tar.Header) []byte {
	tb.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(h.Name))
		}
		h.Format = tar.FormatPAX
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		check(tb, w.WriteHeader(&h))
		if h.Typeflag == tar.TypeReg {
			_, err := io.WriteString(w, h.Name)
			check(tb, err)
		}
	}
	check(tb, w.Close())
	return b.Bytes()
}

func TestHostileArchives(t *testing.T) {
	t.Parallel()
	root := tar.Header{Typeflag: tar.TypeDir, Name: "./"}
	dir := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeDir, Name: name} }
	file := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name} }
	symlink := func(name, to string) tar.Header {
		return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
	}
	hard := func(name, to string) tar.Header {
		return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to}
	}
	records := func(h tar.Header, kv ...string) tar.Header {
		h.PAXRecords = map[string]string{}
		for i := 0; i < len(kv); i += 2 {
			h.PAXRecords[kv[i]] = kv[i+1]
		}
		return h
	}
	for name, headers := range map[string][]tar.Header{
		"absolute path":               {root, file("/tmp/evil")},
		"absolute folder":             {root, dir("/tmp/evil/")},
		"parent":                      {root, file("../evil")},
		"parent within":               {root, dir("./a"), file("./a/../../evil")},
		"parent folder":               {root, dir("./..")},
		"dot within":                  {root, dir("./a"), file("./a/./b")},
		"empty component":             {root, dir("./a"), file("./a//b")},
		"written through a link":      {root, symlink("./a", "OUT"), file("./a/evil")},
		"folder over a link":          {root, symlink("./a", "OUT"), dir("./a"), file("./a/evil")},
		"file over a link":            {root, symlink("./a", "OUT/victim"), file("./a")},
		"through a relative link":     {root, dir("./d"), symlink("./d/a", "../../out"), file("./d/a/evil")},
		"link over a folder":          {root, dir("./a"), symlink("./a", "OUT"), file("./a/evil")},
		"hard link to outside":        {root, hard("./a", "OUT/victim")},
		"hard link up":                {root, hard("./a", "../out/victim")},
		"hard link through a link":    {root, symlink("./a", "OUT"), hard("./b", "./a/victim")},
		"hard link to a folder":       {root, dir("./a"), hard("./b", "./a")},
		"hard link to a missing file": {root, hard("./b", "./a")},
		"hard link to a later one":    {root, hard("./a", "./b"), file("./b")},
		"hard link to itself":         {root, hard("./a", "./a")},
		"hard link to the home":       {root, hard("./a", ".")},
		"character device":            {root, {Typeflag: tar.TypeChar, Name: "./null", Devmajor: 1, Devminor: 3}},
		"block device":                {root, {Typeflag: tar.TypeBlock, Name: "./disk", Devmajor: 8}},
		"FIFO":                        {root, {Typeflag: tar.TypeFifo, Name: "./fifo"}},
		"duplicate file":              {root, file("./a"), file("./a")},
		"duplicate folder":            {root, dir("./a"), dir("./a")},
		"duplicate home":              {root, root},
		"home after other entries":    {dir("./a"), root},
		"no home":                     {file("./a")},
		"home is a file":              {file(".")},
		"home is a link":              {symlink(".", "OUT"), file("./evil")},
		"folder reentered":            {root, dir("./a"), dir("./b"), file("./a/late")},
		"missing parent":              {root, file("./a/b")},
		"file as parent":              {root, file("./a"), file("./a/b")},
		"name too long":               {root, file("./" + strings.Repeat("n", 256))},
		"link too long":               {root, symlink("./a", strings.Repeat("n", 4096))},
		"trusted attribute":           {root, records(file("./a"), "SCHILY.xattr.trusted.overlay.opaque", "y")},
		"security attribute":          {root, records(file("./a"), "SCHILY.xattr.security.ima", "y")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refuse(t, func(out string) []byte {
				hs := slices.Clone(headers)
				for i := range hs {
					hs[i].Name = strings.Replace(hs[i].Name, "/tmp", out, 1)
					hs[i].Linkname = strings.Replace(hs[i].Linkname, "OUT", out, 1)
				}
				return compressed(t, tarOf(t, hs...))
			}, UnpackOptions{})
		})
	}
}

// refuse unpacks the archive that make returns for a folder outside the target, and checks that
// the result is ErrCorrupted and the folder unchanged.
func refuse(t *testing.T, make func(out string) []byte, opts UnpackOptions) {
	t.Helper()
	base := t.TempDir()
	out, home := filepath.Join(base, "out"), filepath.Join(base, "home")
	check(t, os.Mkdir(out, 0o755))
	check(t, os.Mkdir(home, 0o755))
	check(t, os.WriteFile(filepath.Join(out, "victim"), []byte("untouched"), 0o644))
	before := archivetest.Snapshot(t, out)
	_, err := Unpack(t.Context(), bytes.NewReader(make(out)), home, opts)
	if !errors.Is(err, ErrCorrupted) {
		t.Errorf("err = %v, want ErrCorrupted", err)
	}
	if diff := cmp.Diff(before, archivetest.Snapshot(t, out)); diff != "" {
		t.Errorf("something outside changed:\n%s", diff)
	}
	list, err := os.ReadDir(base)
	check(t, err)
	if len(list) != 2 {
		t.Errorf("outside the home there is %v", list)
	}
}

func TestDamagedArchives(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	random := rand.New(rand.NewPCG(3, 4))
	for i := range 15 {
		content := make([]byte, random.IntN(400<<10))
		for j := range content {
			content[j] = byte(random.IntN(8))
		}
		check(t, os.WriteFile(filepath.Join(home, fmt.Sprint(i)), content, 0o600))
	}
	good, meta := pack(t, home)
	sparse := t.TempDir()
	check(t, os.WriteFile(filepath.Join(sparse, "file"), nil, 0o600))
	check(t, os.Truncate(filepath.Join(sparse, "file"), 1<<20))
	packed, _ := pack(t, sparse)
	d, err := newDecompressor(t.Context(), bytes.NewReader(packed))
	check(t, err)
	defer d.stop()
	var raw []byte
	for err == nil {
		var b []byte
		b, err = d.next()
		raw = append(raw, b...)
	}
	otherDigest := *meta
	otherDigest.SHA256 = strings.Repeat("0", 64)
	moreEntries := *meta
	moreEntries.Entries++
	for name, c := range map[string]struct {
		archive []byte
		meta    *Meta
	}{
		"empty":                       {nil, meta},
		"no archive":                  {[]byte("<html>not found</html>"), meta},
		"cut short":                   {good[:len(good)-1], meta},
		"cut in half":                 {good[:len(good)/2], meta},
		"cut within its magic number": {good[:2], meta},
		"garbage at the end":          {append(slices.Clone(good), "garbage"...), meta},
		"zeros at the end":            {append(slices.Clone(good), make([]byte, 4096)...), meta},
		"frame at the end":            {append(slices.Clone(good), compressed(t, []byte("data"))...), meta},
		"padding at the end":          {append(slices.Clone(good), compressed(t, make([]byte, 512))...), meta},
		"twice":                       {append(slices.Clone(good), good...), meta},
		"other digest":                {good, &otherDigest},
		"too few entries":             {good, &moreEntries},
		"without its end":             {compressed(t, tarOf(t, tar.Header{Typeflag: tar.TypeDir, Name: "./"})[:512]), nil},
		"cut at the map of a file":    {compressed(t, raw[:bytes.LastIndex(raw, []byte("1\n1048576\n0\n"))]), nil},
		"empty zstd":                  {compressed(t, nil), nil},
		"one zero block":              {compressed(t, make([]byte, 512)), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refuse(t, func(string) []byte { return c.archive }, UnpackOptions{Expect: c.meta})
			if c.meta != nil {
				_, err := Verify(t.Context(), bytes.NewReader(c.archive), c.meta, nil)
				if !errors.Is(err, ErrCorrupted) {
					t.Errorf("Verify: err = %v, want ErrCorrupted", err)
				}
			}
		})
	}
	t.Run("any byte", func(t *testing.T) {
		t.Parallel()
		for range 30 {
			bad := slices.Clone(good)
			bad[random.IntN(len(bad))] ^= byte(1 + random.IntN(255))
			if _, err := Verify(t.Context(), bytes.NewReader(bad), meta, nil); !errors.Is(err, ErrCorrupted) {
				t.Fatalf("Verify: err = %v, want ErrCorrupted", err)
			}
		}
	})
	t.Run("source fails", func(t *testing.T) {
		t.Parallel()
		want := errors.New("line cut")
		r := io.MultiReader(bytes.NewReader(good[:len(good)/2]), readerFunc(func([]byte) (int, error) { return 0, want }))
		if _, err := Unpack(t.Context(), r, t.TempDir(), UnpackOptions{}); !errors.Is(err, want) || errors.Is(err, ErrCorrupted) {
			t.Errorf("err = %v, want %v, which is not corruption", err, want)
		}
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestDecompressionBombs(t *testing.T) {
	t.Parallel()
	zeros := make([]byte, 16<<20)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	check(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o700}))
	for i := range 4 {
		check(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("./%d", i), Size: int64(len(zeros)), Mode: 0o600, ModTime: time.Unix(1, 0)}))
		_, err := w.Write(zeros)
		check(t, err)
	}
	check(t, w.Close())
	bomb := compressed(t, b.Bytes())
	meta := metaOf(Stats{Entries: 5, Bytes: 25 << 20, Size: int64(len(bomb)), SHA256: strings.Repeat("0", 64)})
	for name, opts := range map[string]UnpackOptions{
		"bytes":           {MaxBytes: 25 << 20},
		"entries":         {MaxEntries: 3},
		"meta":            {Expect: meta},
		"meta and limits": {Expect: meta, MaxBytes: 1 << 40},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refuse(t, func(string) []byte { return bomb }, opts)
		})
	}
	// An impossible size takes neither memory nor disk space.
	refuse(t, func(string) []byte {
		raw := tarOf(t, tar.Header{Typeflag: tar.TypeDir, Name: "./"})
		putUstar(raw[len(raw)-1024:], &entry{name: "./x", kind: kindPAX}, 1<<40)
		return compressed(t, append(raw, make([]byte, 512)...))
	}, UnpackOptions{})
}

func TestUnpackRequiresEmptyFolder(t *testing.T) {
	t.Parallel()
	b, _, err := Empty()
	check(t, err)
	dir := t.TempDir()
	check(t, os.Mkdir(filepath.Join(dir, "full"), 0o755))
	check(t, os.WriteFile(filepath.Join(dir, "full", "x"), nil, 0o644))
	check(t, os.Mkdir(filepath.Join(dir, "empty"), 0o755))
	check(t, os.Symlink("empty", filepath.Join(dir, "link")))
	for name, want := range map[string]error{"full": nil, "link": unix.ENOTDIR, "missing": fs.ErrNotExist} {
		_, err := Unpack(t.Context(), bytes.NewReader(b), filepath.Join(dir, name), UnpackOptions{})
		if err == nil || (want != nil && !errors.Is(err, want)) || errors.Is(err, ErrCorrupted) {
			t.Errorf("%s: err = %v", name, err)
		}
	}
}
