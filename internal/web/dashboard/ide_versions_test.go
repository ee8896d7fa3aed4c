package dashboard

import (
	"encoding/json"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"codehub/internal/postgres"
	"codehub/internal/storage/store"
	"codehub/internal/users/auth"
	"codehub/internal/web/proxy"
	"codehub/internal/workspace"
)

// The owner's IDE gets versions of files and their texts. Guests and other users get none, and the owner gets
// none while the workspace is shared for use.
func TestVersionsInIDE(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.add("alpha", running)
	home := t.TempDir()
	write(t, home, map[string]string{"a.txt": "one", "binary": "\x00", "large": strings.Repeat("x", maxIDEText+1)})
	now := time.Now().Add(-time.Hour)
	first := w.backUp(id, home, "", now, nil)
	write(t, home, map[string]string{"a.txt": "second"})
	second := w.backUp(id, home, "<two>", now.Add(time.Minute), first)
	if err := os.Remove(filepath.Join(home, "a.txt")); err != nil {
		t.Fatal(err)
	}
	third := w.backUp(id, home, "", now.Add(2*time.Minute), second)
	ann := w.caller(auth.AdminUsername)
	ask := func(c workspace.Caller, f proxy.IDEFile, language string) (string, error) {
		t.Helper()
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/", nil)
		r.Header.Set("Accept-Language", language)
		read := w.dash.FileVersions
		if f.Backup != "" {
			read = w.dash.FileText
		}
		answer, err := read(r, c, id, f)
		if err != nil {
			return "", err
		}
		text, err := json.Marshal(answer)
		return string(text), err
	}
	for _, c := range []struct {
		path, backup, language string
		want                   []string
	}{
		{"/home/coder/a.txt", "", "en", []string{third.id, `"detail":"removed","removed":true`, second.id, `"label":"\u003ctwo\u003e","detail":"6 B"`, first.id, `"detail":"added, 3 B"`}},
		{"/home/coder/a.txt", "", "ko", []string{"삭제", "추가"}},
		{"/etc/passwd", "", "en", []string{`{"versions":[]}`}},
		{"/home/coder/../../etc/passwd", "", "en", []string{`{"versions":[]}`}},
		{"/home/coder/a.txt", first.id, "en", []string{`{"text":"one"}`}},
		{"/home/coder/a.txt", second.id, "en", []string{`{"text":"second"}`}},
		{"/home/coder/a.txt", third.id, "en", []string{"no longer kept"}},
		{"/home/coder/binary", first.id, "en", []string{"not a text file"}},
		{"/home/coder/large", first.id, "en", []string{"too large"}},
		{"/home/coder", first.id, "en", []string{}},
	} {
		got, err := ask(ann, proxy.IDEFile{Path: c.path, Backup: c.backup}, c.language)
		if len(c.want) == 0 {
			if workspace.CodeOf(err) != workspace.CodeNotFound {
				t.Errorf("%s: %s, %v", c.path, got, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s of %q: %v", c.path, c.backup, err)
		}
		contains(t, c.path, got, c.want...)
	}
	file, text := proxy.IDEFile{Path: "/home/coder/a.txt"}, proxy.IDEFile{Path: "/home/coder/a.txt", Backup: first.id}
	if _, err := ask(ann, proxy.IDEFile{Path: file.Path, Backup: uuid.NewString()}, "en"); workspace.CodeOf(err) != workspace.CodeNotFound {
		t.Errorf("an unknown backup: %v", err)
	}
	if _, err := ask(ann, proxy.IDEFile{Path: file.Path, Cursor: "x"}, "en"); workspace.CodeOf(err) != workspace.CodeInvalid {
		t.Errorf("an unknown cursor: %v", err)
	}

	w.person("uma")
	share := func(access workspace.Access) {
		t.Helper()
		if _, err := w.DB.Share(t.Context(), ann, id, postgres.NewShare{User: "uma", Access: access}); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(what string, c workspace.Caller, want bool) {
		t.Helper()
		for _, f := range []proxy.IDEFile{file, text} {
			if got, err := ask(c, f, "en"); (workspace.CodeOf(err) == workspace.CodeForbidden) != want {
				t.Errorf("%s: %s, %v", what, got, err)
			}
		}
	}
	uma := w.caller("uma")
	refused("another user", uma, true)
	share(workspace.AccessView)
	refused("a guest who may view it", uma, true)
	refused("the owner, with a guest who may view it", ann, false)
	share(workspace.AccessUse)
	refused("a guest who may use it", uma, true)
	refused("the owner, with a guest who may use it", ann, true)
	share(workspace.AccessView)

	w.bucket.mu.Lock()
	w.bucket.err = store.ErrUnavailable
	w.bucket.mu.Unlock()
	if _, err := ask(ann, file, "en"); workspace.CodeOf(err) != workspace.CodeUnavailable {
		t.Errorf("without the bucket: %v", err)
	}
	if got, err := ask(ann, text, "en"); err != nil || !strings.Contains(got, "not responding") {
		t.Errorf("without the bucket: %s, %v", got, err)
	}
}
