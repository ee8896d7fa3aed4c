package archive

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/testing/archivetest"
)

// An archive of an earlier version, which had files and folders sorted together
// and attributes sorted by name, is unpacked as before.
func TestUnpackArchiveOfEarlierVersion(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root: its files are root's")
	}
	f, err := os.Open("testdata/files-between-folders.tar.zst")
	check(t, err)
	defer f.Close()
	home := t.TempDir()
	_, err = Unpack(t.Context(), f, home, UnpackOptions{})
	check(t, err)
	got := map[string]string{}
	for _, name := range []string{"a", "b/c/d", "b/z", "m", "n/o", "n/d-too", "z"} {
		content, err := os.ReadFile(filepath.Join(home, name))
		check(t, err)
		got[name] = string(content)
	}
	want := map[string]string{
		"a": "first", "b/c/d": "deep", "b/z": "after a folder", "m": "between", "n/o": "in another", "n/d-too": "deep", "z": "last",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	s := archivetest.Snapshot(t, home)
	if diff := cmp.Diff(map[string]string{"user.a": "user.a", "user.m": "user.m", "user.z": "user.z"}, s["./m"].Xattrs); diff != "" {
		t.Errorf("attributes (-want +got):\n%s", diff)
	}
	if s["./n/link"].Link != "../a" || s["./n/d-too"].SameAs != "./b/c/d" || len(s) != 12 {
		t.Errorf("link %q, second name of %q, %d entries", s["./n/link"].Link, s["./n/d-too"].SameAs, len(s))
	}
}

// Earlier versions split a name of more than 100 bytes between two fields of the header.
func TestUnpackSplitNamesOfEarlierVersion(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	name := "./"
	check(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755, Format: tar.FormatUSTAR}))
	for range 20 {
		name += "folder/"
		check(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755, Format: tar.FormatUSTAR}))
	}
	name += "file"
	check(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: 4, Format: tar.FormatUSTAR}))
	_, err := w.Write([]byte("deep"))
	check(t, err)
	check(t, w.Close())
	home, frames := t.TempDir(), append(compressed(t, b.Bytes()[:700]), compressed(t, b.Bytes()[700:])...)
	_, err = Unpack(t.Context(), bytes.NewReader(frames), home, UnpackOptions{})
	check(t, err)
	if content, err := os.ReadFile(filepath.Join(home, name)); err != nil || string(content) != "deep" {
		t.Errorf("content is %q, %v", content, err)
	}
}
