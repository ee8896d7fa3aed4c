package main

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	home := filepath.Join(dir, "home")
	if err := os.Mkdir(home, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "outside"), []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../outside", filepath.Join(home, "link")); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(newHandler("", home, nil))
	t.Cleanup(srv.Close)

	// In order: each step builds on the ones before it.
	steps := []struct {
		method, path, body string
		status             int
		want               string // contained in the answer
	}{
		{"GET", "/file?path=a/b.txt", "", 404, ""},
		{"PUT", "/file?path=a/b.txt&mode=600", "content", 200, `"bytes":7`},
		{"GET", "/file?path=a/b.txt", "", 200, "content"},
		{"GET", "/file?path=" + home + "/a/b.txt", "", 200, "content"},
		{"GET", "/stat?path=a/b.txt", "", 200, `"mode":"-rw-------"`},
		{"PUT", "/file?path=a/b.txt", "less", 200, `"bytes":4`},
		{"GET", "/file?path=a/b.txt", "", 200, "less"},
		{"PUT", "/file?path=top", "x", 200, ""},
		{"GET", "/file?path=a", "", 400, "not a file"},
		{"GET", "/stat", "", 200, `"dir":true`},
		{"DELETE", "/file?path=top", "", 204, ""},
		{"GET", "/file?path=top", "", 404, ""},
		{"GET", "/file?path=../outside", "", 400, "escapes"},
		{"GET", "/file?path=link", "", 400, "escapes"},
		{"PUT", "/file?path=../new", "x", 400, "escapes"},
		{"PUT", "/file?path=x&mode=9", "x", 400, "mode"},
		{"GET", "/file?path=" + dir + "/outside", "", 400, "escapes"},
	}
	for _, s := range steps {
		res, text := request(t, s.method, srv.URL+s.path, s.body)
		if res.StatusCode != s.status || !strings.Contains(text, s.want) {
			t.Errorf("%s %s: %d %q, want %d with %q", s.method, s.path, res.StatusCode, text, s.status, s.want)
		}
	}
	for query, want := range map[string]string{"": "application/octet-stream", "&type=text/javascript": "text/javascript"} {
		if res, _ := request(t, "GET", srv.URL+"/file?path=a/b.txt"+query, ""); res.Header.Get("Content-Type") != want {
			t.Errorf("a file with %q is %q, want %q", query, res.Header.Get("Content-Type"), want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "new")); !os.IsNotExist(err) {
		t.Errorf("a file was written outside the home: %v", err)
	}
}
