package httpapi

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/archive"
	"codehub/internal/storage/store"

	"golang.org/x/sys/unix"
)

// packed makes the archive that of a home.
func (a *archived) packed(t *testing.T, home string) {
	t.Helper()
	r, w := io.Pipe()
	go func() {
		_, err := archive.Pack(context.Background(), home, w, archive.PackOptions{})
		w.CloseWithError(err)
	}()
	content, err := io.ReadAll(r)
	check(t, err)
	a.put(content)
}

// random returns content that does not compress.
func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(b)
	return b
}

func (a *archived) put(content []byte) {
	a.bucket.set(func(f *fakeBucket) { f.objects[archivedKey] = content })
	a.Change(`UPDATE workspaces SET archive_size = $1`, len(content))
}

func TestFileOfArchive(t *testing.T) {
	t.Parallel()
	e := newArchived(t, "web", 10)
	home := t.TempDir()
	large := make([]byte, 9<<20)
	check(t, os.WriteFile(filepath.Join(home, "large"), large, 0o600))
	check(t, os.WriteFile(filepath.Join(home, "a \"b\".html"), []byte("<script>"), 0o600))
	e.packed(t, home)
	file := e.path + "/file?path="
	a := e.want(200, "", "GET", file+"a%20%22b%22.html", "", as(e.ann))
	for name, want := range map[string]string{
		"Content-Type": "application/octet-stream", "Content-Length": "8", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store",
		"Content-Disposition": `attachment; filename="a _b_.html"; filename*=UTF-8''a%20%22b%22.html`,
	} {
		if got := a.header.Get(name); got != want || a.body != "<script>" {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if h := e.want(200, "", "HEAD", file+"large", "", as(e.ann)); h.header.Get("Content-Length") != fmt.Sprint(len(large)) {
		t.Errorf("HEAD: %v", h.header)
	}
	e.want(404, "not_found", "GET", file+"none", "", as(e.ann))
	e.want(400, "invalid_request", "GET", file+".", "", as(e.ann))
	e.bucket.closed(t)
	// A credential that is missing on the server is not a missing file.
	e.bucket.set(func(f *fakeBucket) { f.openErr = fmt.Errorf("%w: %w", store.ErrUnavailable, os.ErrNotExist) })
	e.want(503, "unavailable", "GET", file+"large", "", as(e.ann))
}

// A bucket that stops sending ends the response.
func TestFileOfArchiveFromStalledBucket(t *testing.T) {
	t.Parallel()
	e := newArchived(t, "web", 10, func(c *Config) { c.ReadWithin = 500 * time.Millisecond })
	home := t.TempDir()
	check(t, os.WriteFile(filepath.Join(home, "large"), random(1<<20), 0o600))
	e.packed(t, home)
	e.bucket.set(func(f *fakeBucket) { f.hangs = true })
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "GET", e.HTTP.URL+Prefix+e.path+"/file?path=large", nil)
	check(t, err)
	as(e.ann)(r)
	resp, err := http.DefaultTransport.RoundTrip(r)
	check(t, err)
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); resp.StatusCode == 200 && err == nil || ctx.Err() != nil {
		t.Errorf("%d with %d bytes, %v", resp.StatusCode, len(b), err)
	}
	e.bucket.closed(t)
}

func TestListOfArchiveWithoutEntries(t *testing.T) {
	t.Parallel()
	e := newArchived(t, "web", 10)
	content, _, err := archive.Empty()
	check(t, err)
	e.put(content)
	for _, path := range []string{"", ".", "/"} {
		if list := read[api.ArchiveFiles](t, e.want(200, "", "GET", e.path+"/files?path="+path, "", as(e.ann))); len(list.Files) != 0 {
			t.Errorf("%+v", list)
		}
	}
	e.want(404, "not_found", "GET", e.path+"/files?path=x", "", as(e.ann))
}

func TestListOfArchiveHasPages(t *testing.T) {
	t.Parallel()
	e := newArchived(t, "web", 10)
	home := t.TempDir()
	for i := range 7 {
		check(t, os.WriteFile(filepath.Join(home, fmt.Sprint("f", i)), nil, 0o600))
	}
	check(t, os.Mkdir(filepath.Join(home, "z"), 0o700))
	e.packed(t, home)
	var got []string
	for cursor, pages := "", 0; pages == 0 || cursor != ""; pages++ {
		list := read[api.ArchiveFiles](t, e.want(200, "", "GET", e.path+"/files?limit=3&cursor="+cursor, "", as(e.ann)))
		for _, f := range list.Files {
			got = append(got, f.Path)
		}
		cursor = list.NextCursor
	}
	if want := []string{"z", "f0", "f1", "f2", "f3", "f4", "f5", "f6"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	e.want(200, "", "GET", e.path+"/files?limit=10000", "", as(e.ann))
	for _, query := range []string{"limit=10001", "limit=0", "limit=x", "cursor=!"} {
		e.want(400, "invalid_request", "GET", e.path+"/files?"+query, "", as(e.ann))
	}
}

// A folder of hard links to a file with a very long path has an answer of bounded size.
func TestListOfArchiveIsBounded(t *testing.T) {
	t.Parallel()
	e := newArchived(t, "web", 10)
	home := t.TempDir()
	root, err := unix.Open(home, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	check(t, err)
	defer unix.Close(root)
	name, dir := strings.Repeat("a", 250), root
	for range 200 {
		check(t, unix.Mkdirat(dir, name, 0o755))
		in, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		check(t, err)
		defer unix.Close(in)
		dir = in
	}
	check(t, unix.Mknodat(dir, "file", unix.S_IFREG|0o600, 0))
	check(t, unix.Mkdirat(root, "links", 0o755))
	const links = 400
	for i := range links {
		check(t, unix.Linkat(dir, "file", root, fmt.Sprint("links/", i), 0))
	}
	e.packed(t, home)
	a := e.want(200, "", "GET", e.path+"/files?path=links", "", as(e.ann))
	if list := read[api.ArchiveFiles](t, a); list.NextCursor == "" || len(list.Files) == 0 || len(a.body) > 2*maxArchiveNames {
		t.Errorf("%d bytes with %d files", len(a.body), len(list.Files))
	}
	c, _ := e.tokenClient(e.ann) // reads all pages
	if list, err := c.ArchiveFiles(t.Context(), string(e.ws.ID), "", "links"); err != nil || len(list) != links {
		t.Errorf("the client lists %d files, %v", len(list), err)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
