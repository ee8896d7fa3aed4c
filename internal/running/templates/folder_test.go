package templates

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"codehub/internal/workspace/template"
)

// put writes a file with a time of its own, so that it counts as changed.
func put(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	changes++
	if err := os.Chtimes(path, time.Time{}, time.Unix(1e9+changes, 0)); err != nil {
		t.Fatal(err)
	}
}

var changes int64

// TestFolderKeepsLastGoodVersion: a mistake in a file is named with its line, and its last good
// version stays; other files are read. A folder that is gone keeps all.
func TestFolderKeepsLastGoodVersion(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "templates")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	f := folder{dir: dir}
	read := func(names, problems string) {
		t.Helper()
		list, wrong := f.read()
		var got []string
		for _, e := range list {
			got = append(got, e.Name+"="+e.Env["V"])
		}
		text := ""
		if err := joined(wrong); err != nil {
			text = err.Error()
		}
		if strings.Join(got, " ") != names || !strings.Contains(text, problems) || problems == "" && text != "" {
			t.Errorf("%q, %q; want %q, %q", got, text, names, problems)
		}
	}
	read("", "")
	put(t, dir, "api.yaml", "env: {V: 1}\n")
	put(t, dir, "web.yml", "env: {V: 1}\n")
	put(t, dir, "README.md", "# not a template")
	put(t, dir, ".hidden.yaml", "nothing: here")
	read("api=1 web=1", "")
	put(t, dir, "api.yaml", "env: {V: 2}\nsizes: x\n")
	put(t, dir, "web.yml", "env: {V: 2}\n")
	put(t, dir, "new.yaml", "title: [")
	read("api=1 web=2", "api.yaml: line 2: sizes is unknown; the fields are: ")
	read("api=1 web=2", "new.yaml: line 1: This is not YAML")
	if err := os.Remove(filepath.Join(dir, "new.yaml")); err != nil {
		t.Fatal(err)
	}
	put(t, dir, "api.yaml", "env: {V: 3}\n")
	put(t, dir, "api.yml", "env: {V: 4}\n")
	read("api=3 web=2", "api.yml: api.yaml is the same template")
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	read("api=3 web=2", "no such file")
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"api.yml", "web.yml"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("api.yaml", filepath.Join(dir, "link.yaml")); err != nil { // as of a ConfigMap
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "lost.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "dir.yaml"), 0o700); err != nil {
		t.Fatal(err)
	}
	read("api=3 link=3", "dir.yaml: it is not a file")
	put(t, dir, "api.yaml", "title: "+strings.Repeat("a", template.MaxBytes)+"\n")
	read("api=3 link=3", "api.yaml: line 1: The template is longer than 65536 bytes")
}

// TestMerge: a saved template comes before one of the folder, and that before a built-in one; the
// built-in ones are last.
func TestMerge(t *testing.T) {
	t.Parallel()
	entry := func(name, source string, hidden bool) Entry {
		return Entry{Template: template.Template{Name: name, Hidden: hidden}, Source: source}
	}
	c := merge([]Entry{entry("zoo", FromFolder, false), entry("go", FromFolder, false), entry("api", FromFolder, false)},
		[]Entry{entry("api", FromSaved, false), entry("java", FromSaved, true)})
	var got []string
	for _, e := range c.list {
		hidden := ""
		if e.Hidden {
			hidden = " hidden"
		}
		got = append(got, e.Name+" "+e.Source+hidden)
	}
	want := "api saved, zoo folder, empty built-in, go folder, python built-in, node built-in, java saved hidden, cpp built-in, data built-in"
	if text := strings.Join(got, ", "); text != want {
		t.Errorf("%s\nwant %s", text, want)
	}
}
