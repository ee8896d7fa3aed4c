package archive

import (
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
