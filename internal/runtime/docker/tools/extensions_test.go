package tools

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"codehub/internal/base/setting"
)

const extensionManifest = `{"publisher": "Acme", "name": "Lint", "version": "1.2.0", "engines": {"vscode": "^1.80.0"}}`

// vsix returns a .vsix file with these entries, stored without compression so that their
// content is found in it.
func vsix(t *testing.T, entries ...zipEntry) []byte {
	t.Helper()
	var b bytes.Buffer
	zw := zip.NewWriter(&b)
	for _, e := range entries {
		h := &zip.FileHeader{Name: e.name, Method: zip.Store}
		h.SetMode(0o644 | e.mode)
		w, err := zw.CreateHeader(h)
		check(t, err)
		_, err = w.Write([]byte(e.content))
		check(t, err)
	}
	check(t, zw.Close())
	return b.Bytes()
}

type zipEntry struct {
	name, content string
	mode          fs.FileMode
}

// lint is an extension with a program.
func lint(t *testing.T, version string) []byte {
	t.Helper()
	return vsix(t, zipEntry{name: "[Content_Types].xml"},
		zipEntry{name: "extension.vsixmanifest", content: `<PackageManifest xmlns="http://schemas.microsoft.com/developer/vsx-schema/2011"><Metadata><Identity Id="lint"/></Metadata></PackageManifest>`},
		zipEntry{name: "extension/package.json", content: "\xef\xbb\xbf" + strings.Replace(extensionManifest, "1.2.0", version, 1)},
		zipEntry{name: "extension/bin/lint", content: "program", mode: 0o4711})
}

func TestReadExtensions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if e, err := readExtensions(dir); err != nil || e.digest != "" || e.on("ide") != "ide" {
		t.Errorf("an empty folder: %+v, %v", e, err)
	}
	putFileWith(t, dir, "README.md", "not an extension")
	putFileWith(t, dir, ".lint.vsix.part", "incomplete")
	putFileWith(t, dir, "any name.VSIX", string(lint(t, "1.2.0")))
	e, err := readExtensions(dir)
	if err != nil || len(e.files) != 1 || e.files[0].folder != "acme.lint-1.2.0" || e.on("ide") == "ide" {
		t.Fatalf("%+v, %v", e, err)
	}
	check(t, os.Rename(filepath.Join(dir, "any name.VSIX"), filepath.Join(dir, "lint.vsix")))
	if renamed, err := readExtensions(dir); err != nil || renamed.digest != e.digest {
		t.Errorf("after a change of the name: %+v, %v", renamed, err)
	}
	putFileWith(t, dir, "lint.vsix", string(lint(t, "1.3.0")))
	if newer, err := readExtensions(dir); err != nil || newer.digest == e.digest {
		t.Errorf("a newer version: %+v, %v", newer, err)
	}
}

// The error names the file, and says what is wrong with it.
func TestUnusableExtensionsAreRefused(t *testing.T) {
	t.Parallel()
	whole := lint(t, "1.2.0")
	damaged := bytes.Replace(whole, []byte("program"), []byte("PROGRAM"), 1)
	manifest := zipEntry{name: "extension/package.json", content: extensionManifest}
	for what, test := range map[string]struct {
		content []byte
		says    string
	}{
		"empty":             {nil, "not a valid zip file"},
		"truncated":         {whole[:len(whole)-30], "not a valid zip file"},
		"a changed byte":    {damaged, "checksum"},
		"no manifest":       {vsix(t, zipEntry{name: "package.json", content: extensionManifest}), "no extension/package.json"},
		"a broken manifest": {vsix(t, zipEntry{name: "extension/package.json", content: "{"}), "package.json"},
		"no version":        {vsix(t, zipEntry{name: "extension/package.json", content: strings.Replace(extensionManifest, "1.2.0", "", 1)}), "lacks a valid publisher, name, version"},
		"a name with a path": {vsix(t, zipEntry{name: "extension/package.json", content: strings.Replace(extensionManifest, "Lint", "../lint", 1)}),
			"lacks a valid publisher, name"},
		"a path out of it":     {vsix(t, manifest, zipEntry{name: "extension/../../start", content: "#!/evil"}), "not a valid path"},
		"an absolute path":     {vsix(t, manifest, zipEntry{name: "extension//start", content: "#!/evil"}), "not a valid path"},
		"a backslash":          {vsix(t, manifest, zipEntry{name: `extension/..\start`, content: "#!/evil"}), "not a valid path"},
		"a link":               {vsix(t, manifest, zipEntry{name: "extension/link", content: "/etc", mode: fs.ModeSymlink}), "neither a file nor a folder"},
		"a file twice":         {vsix(t, manifest, manifest), "twice"},
		"a file and a folder":  {vsix(t, manifest, zipEntry{name: "extension/a"}, zipEntry{name: "extension/a/b"}), "a file and a folder"},
		"a folder and a file":  {vsix(t, manifest, zipEntry{name: "extension/a/b"}, zipEntry{name: "extension/a"}), "twice"},
		"another system":       {vsix(t, manifest, zipEntry{name: "extension.vsixmanifest", content: `<PackageManifest><Metadata><Identity TargetPlatform="win32-x64"/></Metadata></PackageManifest>`}), `"win32-x64"`},
		"a second of the same": {vsix(t, zipEntry{name: "extension/package.json", content: strings.ToLower(strings.Replace(extensionManifest, "1.2.0", "1.3.0", 1))}), "the same extension acme.lint"},
	} {
		dir := t.TempDir()
		putFileWith(t, dir, "bad.vsix", string(test.content))
		if strings.HasPrefix(what, "a second") {
			putFileWith(t, dir, "good.vsix", string(whole))
		}
		err := CheckExtensions(dir)
		var p *setting.Problem
		if !errors.As(err, &p) || !strings.Contains(p.Why, filepath.Join(dir, "bad.vsix")) || !strings.Contains(p.Why, test.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
	dir := t.TempDir()
	check(t, syscall.Mkfifo(filepath.Join(dir, "pipe.vsix"), 0o600))
	if _, err := readExtensions(dir); err == nil {
		t.Error("a pipe was accepted")
	}
	if _, err := readExtensions(filepath.Join(dir, "missing")); err == nil {
		t.Error("a missing folder was accepted")
	}
}

// While the folder cannot be used, the last extensions stay.
func TestExtensionFolderKeepsLastUsableExtensions(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "extensions")
	check(t, os.Mkdir(dir, 0o755))
	putFileWith(t, dir, "lint.vsix", string(lint(t, "1.2.0")))
	var folder extensionFolder
	now := func() (string, error) {
		e, err := folder.current(dir)
		return e.digest, err
	}
	first, err := now()
	if err != nil || first == "" {
		t.Fatalf("%q, %v", first, err)
	}
	putFileWith(t, dir, "lint.vsix", "being copied")
	for range 2 {
		if got, err := now(); err == nil || got != first {
			t.Errorf("a damaged file: %q, %v", got, err)
		}
	}
	check(t, os.Rename(dir, dir+"-away"))
	if got, err := now(); err == nil || got != first {
		t.Errorf("a missing folder: %q, %v", got, err)
	}
	check(t, os.Rename(dir+"-away", dir))
	putFileWith(t, dir, "lint.vsix", string(lint(t, "1.3.0")))
	if got, err := now(); err != nil || got == first {
		t.Errorf("a newer version: %q, %v", got, err)
	}
	check(t, os.Remove(filepath.Join(dir, "lint.vsix")))
	if got, err := now(); err != nil || got != "" {
		t.Errorf("without a file: %q, %v", got, err)
	}
}

// A file that changes between its reading and its copy fills no volume.
func TestChangedExtensionIsNotPacked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	content := lint(t, "1.2.0")
	putFileWith(t, dir, "lint.vsix", string(content))
	e, err := readExtensions(dir)
	check(t, err)
	for _, changed := range [][]byte{bytes.ToUpper(content), content[1:]} {
		putFileWith(t, dir, "lint.vsix", string(changed))
		if err := e.pack(tar.NewWriter(&bytes.Buffer{})); err == nil {
			t.Error("a changed file was packed")
		}
	}
}
