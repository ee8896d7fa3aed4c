package dashboard

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// The pages of a backup show its files, those that were changed, and lead to the downloads.
func TestFilesOfBackup(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", standby)
	home := t.TempDir()
	write(t, home, map[string]string{"readme.md": "# old <b>", "same": "same", "gone": "gone", "dir/\x1b\u202e<i>\xff": "x"})
	now := time.Now().Add(-time.Hour)
	first := w.backUp(id, home, "", now, nil)
	write(t, home, map[string]string{"readme.md": "# new <b>", "dir/new<u>": "y", "large": strings.Repeat("x", textShown+1)})
	for _, name := range []string{"gone", "dir/\x1b\u202e<i>\xff"} {
		if err := os.Remove(filepath.Join(home, name)); err != nil {
			t.Fatal(err)
		}
	}
	second := w.backUp(id, home, "two", now.Add(time.Minute), first)
	at := func(x *backedUp) string { return "/workspaces/" + string(id) + "/backups/" + x.id + "/" }
	a := b.get(at(first) + "files?path=.")
	contains(t, "the home", a.body, "Files of a backup", ">dir<", "gone", "readme.md")
	contains(t, "the old file", b.get(at(first)+"file?path=readme.md").body, "# old &lt;b&gt;</pre>", "/api/v1"+at(first)+"file?path=readme.md")
	contains(t, "the new file", b.get(at(second)+"file?path=readme.md").body, "# new &lt;b&gt;</pre>")
	contains(t, "a folder", b.get(at(first)+"files?path=dir").body, "&lt;i&gt;\uFFFD")
	for _, name := range []string{"files?path=none", "file?path=dir", "file?path=../../etc/passwd", "file"} {
		if a := b.get(at(first) + name); a.status != http.StatusNotFound {
			t.Errorf("%s: %d", name, a.status)
		}
	}
	for _, name := range []string{at(second) + "changes", "/workspaces/" + string(id) + "/backups/newest/changes?since=" + first.id} {
		a = b.get(name)
		contains(t, name, a.body, "Changed files", "dir/new&lt;u&gt;", "dir/\uFFFD\uFFFD&lt;i&gt;\uFFFD", `class="change-added"`, `class="change-changed"`, `class="change-removed"`,
			at(second)+"file?path=readme.md", at(first)+"file?path=gone", "/api/v1"+at(second)+"file?path=large")
		lacks(t, name, a.body, ">same<", "\x1b", "\u202e", "<i>")
	}
	ann, other := w.person("ann"), "/workspaces/"+string(w.add("other", standby))+"/backups/"+second.id+"/"
	for _, page := range []string{"files?path=.", "file?path=readme.md", "changes"} {
		if a := ann.get(at(second) + page); a.status != http.StatusForbidden || strings.Contains(a.body, "project") {
			t.Errorf("%s for another user: %d", page, a.status)
		}
		for _, unknown := range []string{other, "/workspaces/" + string(id) + "/backups/" + uuid.NewString() + "/", "/workspaces/" + string(id) + "/backups/x/"} {
			if a := b.get(unknown + page); a.status != http.StatusNotFound {
				t.Errorf("%s%s: %d", unknown, page, a.status)
			}
		}
	}
	for _, page := range []string{at(first) + "changes", at(second) + "changes?since=x"} { // none is before the first
		if a := b.get(page); a.status != http.StatusNotFound {
			t.Errorf("%s: %d", page, a.status)
		}
	}
	contains(t, "no changes", b.get(at(first)+"changes?since="+first.id).body, "No files differ.")
	contains(t, "in Korean", b.get(at(second)+"changes", "Accept-Language", "ko").body, "변경된 파일", "추가", "삭제")
	w.bucket.mu.Lock()
	damaged := bytes.Clone(w.bucket.content[first.key])
	damaged[len(damaged)-60] ^= 1
	w.bucket.content[first.key] = damaged
	w.bucket.mu.Unlock()
	contains(t, "damaged", b.get(at(first)+"files?path=.").body, "This backup is damaged.")
	contains(t, "damaged", b.get(at(second)+"changes").body, "This backup is damaged.")
	w.bucket.mu.Lock()
	delete(w.bucket.have, first.key)
	w.bucket.mu.Unlock()
	for _, name := range []string{at(first) + "files?path=.", at(second) + "changes"} {
		if a := b.get(name); a.status != http.StatusNotFound || !strings.Contains(a.body, "Backup not found") {
			t.Errorf("%s without its object: %d", name, a.status)
		}
	}
}
