package dashboard

import (
	"fmt"
	"html"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"codehub/internal/postgres"
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
)

// packed adds an archived workspace with this home.
func (w *world) packed(name, home string) workspace.ID {
	w.t.Helper()
	id := w.add(name, standby)
	key := w.keep(id, generation1, 1, 1, time.Now())
	w.observe(id, archived(key, w.pack(key, home)))
	w.want(id, "desired_state", "ARCHIVED")
	return id
}

// write writes files of a home; the names are paths.
func write(t *testing.T, home string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		at := filepath.Join(home, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

var links = regexp.MustCompile(`href="([^"]*)"`)

// to returns the links of a page that begin with a prefix.
func to(page, prefix string) (out []string) {
	for _, m := range links.FindAllStringSubmatch(page, -1) {
		if u := html.UnescapeString(m[1]); strings.HasPrefix(u, prefix) {
			out = append(out, u)
		}
	}
	return out
}

// Links lead from the workspace's page to each file, also to one with bytes in its name that are no text.
func TestBrowseFilesOfArchive(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	home := t.TempDir()
	files := map[string]string{
		"readme.md": "\n# <script>alert(1)</script>\n\nx", "empty": "", `<b a="'&">.html`: "<b>bold</b>", "b\xff\xfe.txt": "latin", "b\xff.txt": "other",
		"line\nbreak\u202e\x1b[31m": "red", "한글/파일?x=1&y#z%41+ .txt": "글", "deep/er/%2e%2e": "dots", "trailing ": "space",
	}
	write(t, home, files)
	write(t, home, map[string]string{"large": strings.Repeat("x", textShown+1), "binary": "a\x00b", "latin1": "\xe9"})
	for _, err := range []error{os.Link(filepath.Join(home, "large"), filepath.Join(home, "same")), os.Symlink("/etc/<passwd>", filepath.Join(home, "link"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	id := w.packed("project", home)
	base := "/workspaces/" + string(id) + "/archive/"
	download := "/api/v1" + base + "file?"
	queue := to(b.get("/workspaces/"+string(id)).body, base+"files?")
	if len(queue) != 1 {
		t.Fatalf("the workspace's page has the links %q", queue)
	}
	seen, downloads := map[string]bool{}, map[string]bool{}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		if seen[at] {
			continue
		}
		seen[at] = true
		a := b.get(at)
		if a.status != http.StatusOK || !utf8.ValidString(a.body) || strings.ContainsAny(a.body, "\x1b\u202e") || strings.Contains(a.body, "<script>alert") || strings.Contains(a.body, "<b a=") {
			t.Errorf("%s: %d with %.3000s", at, a.status, a.body[strings.Index(a.body, "<main"):])
		}
		queue = append(queue, to(a.body, base)...)
		for _, d := range to(a.body, download) {
			q, err := url.ParseQuery(strings.TrimPrefix(d, download))
			if err != nil {
				t.Fatal(err)
			}
			downloads[q.Get("path")] = true
		}
		u, err := url.Parse(at)
		if err != nil {
			t.Fatal(err)
		}
		if want, ok := files[u.Query().Get("path")]; ok {
			contains(t, at, a.body, "\n"+html.EscapeString(want)+"</pre>")
			delete(files, u.Query().Get("path"))
		}
	}
	if len(files) > 0 {
		t.Errorf("no links lead to %q", files)
	}
	for _, name := range []string{"readme.md", "b\xff\xfe.txt", "b\xff.txt", "line\nbreak\u202e\x1b[31m", "한글/파일?x=1&y#z%41+ .txt", "deep/er/%2e%2e", "trailing ", "large", "same", "binary"} {
		if !downloads[name] {
			t.Errorf("%q has no download", name)
		}
	}
	page := b.get(base + "files").body
	if a, c := strings.Index(page, "deep"), strings.Index(page, "binary"); a < 0 || c < a {
		t.Error("folders are not first")
	}
	contains(t, "the home", page, "→ <bdi>/etc/&lt;passwd&gt;</bdi>", "256 KiB", "= <bdi>large</bdi>", "b\uFFFD\uFFFD.txt")
	contains(t, "a path", b.get(base+"files?path=deep/er").body, `>Home</a>`, `path=deep"`, "er")
	for name, want := range map[string]string{"large": "too large to be shown", "same": "too large to be shown", "binary": "not a text file", "latin1": "not a text file"} {
		a := b.get(base + "file?path=" + name)
		contains(t, name, a.body, want, html.EscapeString(download+"path="+name))
		lacks(t, name, a.body, "<pre")
	}
	for _, at := range []string{"files?path=none", "file?path=none", "file?path=deep", "file", "files?path=..", "files?cursor=!", "files?archive_op_id=" + generation3} {
		if a := b.get(base + at); a.status != http.StatusNotFound || !strings.Contains(a.body, "not found") {
			t.Errorf("%s: %d", at, a.status)
		}
	}
}

// A folder with many entries has pages, of which each entry is on one.
func TestFolderOfArchiveHasPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	home := t.TempDir()
	const n = 2*filesShown + 10
	for i := range n {
		write(t, home, map[string]string{fmt.Sprintf("many/f%04d", i): ""})
	}
	id, b := w.packed("project", home), w.loggedIn()
	base := "/workspaces/" + string(id) + "/archive/"
	var got []string
	at, pages := base+"files?path=many&archive_op_id="+generation1, 0
	for ; at != ""; pages++ {
		page := b.get(at).body
		got = append(got, to(page, base+"file?")...)
		at = ""
		for _, next := range to(page, base+"files?") {
			if strings.Contains(next, "cursor=") {
				at = next
			}
		}
	}
	slices.Sort(got)
	if got = slices.Compact(got); len(got) != n || pages != 3 {
		t.Errorf("%d files on %d pages", len(got), pages)
	}
}

// Without an index, or without the archive, the page says what to do. Only the owner can open it.
func TestFilesOfArchiveAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ann, uma := w.person("ann"), w.person("uma")
	b := w.loggedIn()
	home := t.TempDir()
	write(t, home, map[string]string{"name": "its content"})
	id := w.packed("project", home)
	old := w.keep(id, generation0, 1000, 1, time.Now().Add(-time.Hour)) // without an index
	base := "/workspaces/" + string(id) + "/archive/"
	if _, err := w.DB.Share(t.Context(), w.caller("admin"), id, postgres.NewShare{User: "uma", Access: workspace.AccessUse}); err != nil {
		t.Fatal(err)
	}
	w.Exec(`UPDATE users SET admin = true WHERE username = 'ann'`)
	w.Auth.InvalidateAll()
	for _, other := range []*browser{ann, uma} {
		for _, at := range []string{"files", "file?path=name", "files?archive_op_id=" + generation1} {
			if a := other.get(base + at); a.status != http.StatusForbidden || strings.Contains(a.body, "its content") || strings.Contains(a.body, "project") {
				t.Errorf("%s for another user: %d", at, a.status)
			}
		}
	}
	for _, what := range []string{"files", "file"} {
		a := b.get(base + what + "?path=//x/../x&archive_op_id=" + generation0)
		contains(t, "no index", a.body, "earlier version of codehub", `href="/workspaces/`+string(id)+`/download?archive_op_id=`+generation0+`"`)
	}
	contains(t, "no index, in Korean", b.get(base+"files?archive_op_id="+generation0, "Accept-Language", "ko").body, "파일 목록이 없습니다", "아카이브 다운로드")
	w.bucket.mu.Lock()
	w.bucket.content[old] = make([]byte, 1000)
	key := w.row(id).ArchiveKey
	damaged := slices.Clone(w.bucket.content[key])
	damaged[len(damaged)-60] ^= 1
	w.bucket.content[key] = damaged
	w.bucket.mu.Unlock()
	contains(t, "zeros", b.get(base+"files?archive_op_id="+generation0).body, "earlier version of codehub")
	contains(t, "damaged", b.get(base+"files").body, "is damaged", `/download"`)
	w.bucket.mu.Lock()
	w.bucket.err = fmt.Errorf("get: %w: %w", store.ErrUnavailable, os.ErrNotExist)
	w.bucket.mu.Unlock()
	if a := b.get(base + "files"); a.status != http.StatusServiceUnavailable {
		t.Errorf("an outage: %d", a.status)
	}
	w.bucket.mu.Lock()
	w.bucket.err = nil
	delete(w.bucket.have, key)
	w.bucket.mu.Unlock()
	if a := b.get(base + "files"); a.status != http.StatusNotFound {
		t.Errorf("a lost archive: %d", a.status)
	}
}
