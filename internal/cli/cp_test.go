package cli

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// What is packed comes out the same, under another name.
func TestCopyKeepsFiles(t *testing.T) {
	t.Parallel()
	from, to := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(from, "src/deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"src/run.sh": 0o755, "src/deep/한글 name": 0o640} {
		if err := os.WriteFile(filepath.Join(from, name), []byte(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("run.sh", filepath.Join(from, "src/link")); err != nil {
		t.Fatal(err)
	}
	var stream bytes.Buffer
	if err := pack(&stream, filepath.Join(from, "src"), "src"); err != nil {
		t.Fatal(err)
	}
	if err := unpack(to, &stream, "src", "copy"); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"copy/run.sh": "src/run.sh", "copy/deep/한글 name": "src/deep/한글 name", "copy/link": "src/run.sh"} {
		if b, err := os.ReadFile(filepath.Join(to, name)); err != nil || string(b) != want {
			t.Errorf("%s: %q %v", name, b, err)
		}
	}
	if info, err := os.Stat(filepath.Join(to, "copy/run.sh")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("mode %v %v", info, err)
	}
}

// A workspace cannot write outside of the folder that was asked for, neither by a name nor through
// a link.
func TestCopyStaysInItsFolder(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	for name, entries := range map[string][]tar.Header{
		"another name": {{Name: "other", Typeflag: tar.TypeReg}},
		"up":           {{Name: "src/../../evil", Typeflag: tar.TypeReg}},
		"absolute":     {{Name: "/evil", Typeflag: tar.TypeReg}},
		"through a link": {
			{Name: "src", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "src/a", Typeflag: tar.TypeSymlink, Linkname: outside},
			{Name: "src/a/evil", Typeflag: tar.TypeReg},
		},
		"a hard link": {{Name: "src", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "src/a", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}},
	} {
		to := t.TempDir()
		var stream bytes.Buffer
		w := tar.NewWriter(&stream)
		for _, h := range entries {
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := unpack(to, &stream, "src", "src"); err == nil {
			t.Errorf("%s: no error", name)
		}
		if left, _ := os.ReadDir(outside); len(left) > 0 {
			t.Fatalf("%s: it wrote outside", name)
		}
	}
}
