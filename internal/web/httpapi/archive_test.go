package httpapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/archive"
	"codehub/internal/storage/store"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"

	"github.com/google/go-cmp/cmp"
)

// fakeBucket is a bucket in memory that fails when told to.
type fakeBucket struct {
	mu      sync.Mutex
	objects map[string][]byte
	err     error   // of every call
	openErr error   // of Open only
	stall   bool    // Open never answers
	breaks  int     // number of bytes after which reading fails; 0: never
	opened  []int64 // the requested offsets
	open    int     // bodies that are not closed
	hangs   bool    // reading blocks after the first piece
	full    bool    // too many manifests are held
}

func (f *fakeBucket) Stat(_ context.Context, key string) (store.Object, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	b, ok := f.objects[key]
	switch {
	case f.err != nil:
		return store.Object{}, f.err
	case !ok:
		return store.Object{}, fmt.Errorf("stat %s: %w", key, store.ErrNotFound)
	}
	return store.Object{Key: key, Size: int64(len(b))}, nil
}

func (f *fakeBucket) Open(ctx context.Context, key string, offset int64) (io.ReadCloser, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opened = append(f.opened, offset)
	switch {
	case f.err != nil || f.openErr != nil:
		return nil, errors.Join(f.err, f.openErr)
	case f.stall:
		f.mu.Unlock()
		<-ctx.Done()
		f.mu.Lock()
		return nil, ctx.Err()
	}
	f.open++
	return &fakeBody{f: f, ctx: ctx, r: bytes.NewReader(f.objects[key][offset:]), left: f.breaks}, nil
}

func (f *fakeBucket) Meta(_ context.Context, key string) (*archive.Meta, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	b, ok := f.objects[archive.MetaKey(key)]
	switch {
	case f.err != nil:
		return nil, f.err
	case !ok:
		return nil, fmt.Errorf("read the .meta of %s: %w", key, store.ErrNotFound)
	}
	return archive.ReadMeta(bytes.NewReader(b))
}

func (f *fakeBucket) Files(ctx context.Context, key string, size int64) (archive.Files, error) {
	if workspace.BackupOfKey(key) != "" {
		m, get, err := f.Generation(ctx, key)
		if err != nil {
			return nil, err
		}
		return m.Files(get), nil
	}
	return archive.OpenIndex(ctx, size, func(ctx context.Context, offset, length int64) (io.ReadCloser, error) {
		return f.part(ctx, key, offset, length)
	})
}

func (f *fakeBucket) ReserveManifests(string, int64) (func(), bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return func() {}, !f.full
}

func (f *fakeBucket) Generation(ctx context.Context, key string) (*archive.Manifest, archive.GetRange, error) {
	found, err := f.Stat(ctx, key)
	if err != nil {
		return nil, nil, err
	}
	r, err := f.part(ctx, key, 0, found.Size)
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	m, err := archive.ReadManifest(r)
	return m, f.part, err
}

func (f *fakeBucket) part(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	r, err := f.Open(ctx, key, offset)
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.LimitReader(r, length), r}, nil
}

type fakeBody struct {
	f    *fakeBucket
	ctx  context.Context
	r    *bytes.Reader
	left int
	once sync.Once
}

func (b *fakeBody) Read(p []byte) (int, error) {
	if b.f.hangs && b.r.Size() > int64(b.r.Len()) {
		<-b.ctx.Done()
		return 0, b.ctx.Err()
	}
	if b.f.breaks > 0 {
		if b.left == 0 {
			return 0, fmt.Errorf("cut off: %w", store.ErrUnavailable)
		}
		p = p[:min(len(p), b.left)]
	}
	n, err := b.r.Read(p)
	b.left -= n
	return n, err
}

func (b *fakeBody) Close() error {
	b.once.Do(func() {
		b.f.mu.Lock()
		defer b.f.mu.Unlock()
		b.f.open--
	})
	return nil
}

func (f *fakeBucket) set(change func(*fakeBucket)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *fakeBucket) stillOpen() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.open
}

// closed waits until all bodies are closed.
func (f *fakeBucket) closed(t *testing.T) {
	t.Helper()
	harness.EventuallyWithin(t, limit, "the object is closed", func() bool { return f.stillOpen() == 0 })
}

// archived is an environment in which ann has a workspace with an archive.
type archived struct {
	*env
	bucket  *fakeBucket
	ws      workspace.Workspace
	path    string // of its archive
	content []byte
	digest  string
}

const archivedKey = "inst/ws/op/home.tar.zst"

func newArchived(t *testing.T, name string, size int, opts ...option) *archived {
	t.Helper()
	a := &archived{content: make([]byte, size)}
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(a.content)
	a.bucket = &fakeBucket{objects: map[string][]byte{archivedKey: a.content}}
	a.env = newEnv(t, append([]option{func(c *Config) { c.Archives = a.bucket }}, opts...)...)
	a.ws = a.workspace(a.ann, name)
	sum := sha256.Sum256(a.content)
	a.digest = hex.EncodeToString(sum[:])
	a.Change(`UPDATE workspaces SET archive_key = $1, archive_digest = $2, archive_size = $3`, archivedKey, a.digest, size)
	a.path = "/workspaces/" + string(a.ws.ID) + "/archive"
	return a
}

func TestDownload(t *testing.T) {
	t.Parallel()
	e := newArchived(t, "my project", 300_000)
	a := e.want(200, "", "GET", e.path, "", as(e.ann))
	if a.body != string(e.content) {
		t.Errorf("%d bytes of %d", len(a.body), len(e.content))
	}
	sum, _ := hex.DecodeString(e.digest)
	for name, want := range map[string]string{
		"Content-Type": "application/zstd", "Content-Length": "300000", "Accept-Ranges": "bytes", "Etag": `"` + e.digest + `"`,
		"Repr-Digest":         "sha-256=:" + base64.StdEncoding.EncodeToString(sum) + ":",
		"Content-Disposition": `attachment; filename="my project.tar.zst"`, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
	} {
		if got := a.header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	h := e.want(200, "", "HEAD", e.path, "", as(e.ann))
	if h.body != "" || h.header.Get("Content-Length") != "300000" || h.header.Get("Etag") != a.header.Get("Etag") {
		t.Errorf("HEAD: %q %v", h.body, h.header)
	}
	if len(e.bucket.opened) != 1 {
		t.Errorf("opened at %v", e.bucket.opened)
	}
	w := read[api.Workspace](t, e.want(200, "", "GET", strings.TrimSuffix(e.path, "/archive"), "", as(e.ann)))
	if w.ArchiveSize == nil || *w.ArchiveSize != 300_000 {
		t.Errorf("archive_size is %v", w.ArchiveSize)
	}
	// Another user's workspace, and archives that do not exist.
	e.want(403, "forbidden", "GET", e.path, "", as(e.eve))
	e.want(400, "invalid_request", "GET", e.path+"?key=x", "", as(e.ann))
	other := e.workspace(e.ann, "never archived")
	e.want(404, "archive_not_found", "GET", "/workspaces/"+string(other.ID)+"/archive", "", as(e.ann))
	e.bucket.closed(t)
}

func TestDownloadErrors(t *testing.T) {
	t.Parallel()
	e := newArchived(t, "a", 100_000, func(c *Config) { c.ReadWithin = 100 * time.Millisecond })
	wrapped := fmt.Errorf("get it: %w", store.ErrUnavailable)
	check := func(what string, status int, code string) {
		t.Helper()
		a := e.want(status, code, "GET", e.path, "", as(e.ann), header("Range", "bytes=5-"))
		for _, h := range []string{"Etag", "Content-Disposition", "Accept-Ranges", "Content-Range", "Repr-Digest"} {
			if a.header.Get(h) != "" {
				t.Errorf("%s: an error has %s: %q", what, h, a.header.Get(h))
			}
		}
		if a.header.Get("Content-Type") != "application/json" || a.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %v", what, a.header)
		}
	}
	e.bucket.set(func(f *fakeBucket) { f.err = wrapped })
	check("down", 503, "unavailable")
	if a := e.want(503, "unavailable", "GET", e.path, "", as(e.ann)); a.header.Get("Retry-After") == "" {
		t.Error("503 without Retry-After")
	}
	e.bucket.set(func(f *fakeBucket) { f.err, f.openErr = nil, wrapped })
	check("down since", 503, "unavailable")
	e.bucket.set(func(f *fakeBucket) { f.openErr = fmt.Errorf("get it: %w", store.ErrNotFound) })
	check("gone since", 404, "archive_not_found")
	e.bucket.set(func(f *fakeBucket) { f.openErr = errors.New("secret words") })
	check("of its own", 500, "internal")
	e.bucket.set(func(f *fakeBucket) { f.openErr, f.stall = nil, true })
	check("hangs", 503, "unavailable")
	e.bucket.set(func(f *fakeBucket) { f.stall = false; delete(f.objects, archivedKey) })
	check("gone", 404, "archive_not_found")
	e.bucket.closed(t)
}

// A response that cannot be completed is aborted, so that it does not look complete.
func TestDownloadAbortsAfterBucketError(t *testing.T) {
	t.Parallel()
	e := newArchived(t, "a", 500_000)
	e.bucket.set(func(f *fakeBucket) { f.breaks = 200_000 })
	get := func(from int) (int, error) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), "GET", e.HTTP.URL+Prefix+e.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		as(e.ann)(r)
		r.Header.Set("Range", fmt.Sprintf("bytes=%d-", from))
		r.Header.Set("If-Range", `"`+e.digest+`"`)
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if !bytes.HasPrefix(e.content[from:], b) {
			t.Errorf("from %d: other bytes", from)
		}
		return len(b), err
	}
	// A client resumes until it has the whole archive.
	n, parts := 0, 0
	for n < len(e.content) && parts < 10 {
		got, err := get(n)
		if n+got < len(e.content) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("broke off with %v", err)
		}
		n += got
		parts++
	}
	if n != len(e.content) || parts != 3 {
		t.Errorf("%d bytes in %d parts", n, parts)
	}
	e.bucket.closed(t)
	if !strings.Contains(e.log.String(), "answer broken off") {
		t.Error("nothing was logged")
	}
}

// The body of the bucket is closed when the client disconnects and when its session ends.
func TestDownloadEndsWithClientOrSession(t *testing.T) {
	t.Parallel()
	e := newArchived(t, "a", 1<<20)
	e.bucket.hangs = true
	start := func(ctx context.Context) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(ctx, "GET", e.HTTP.URL+Prefix+e.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		as(e.ann)(r)
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	ctx, leave := context.WithCancel(t.Context())
	resp := start(ctx)
	leave()
	e.bucket.closed(t)
	resp.Body.Close()

	resp = start(t.Context())
	defer resp.Body.Close()
	e.want(204, "", "POST", "/logout", "", as(e.ann))
	if n, err := io.Copy(io.Discard, resp.Body); err == nil || n == 1<<20 {
		t.Errorf("after the logout: %d bytes, %v", n, err)
	}
	e.bucket.closed(t)
}

// A download ends when the workspace is handed over.
func TestDownloadEndsWithTheRight(t *testing.T) {
	t.Parallel()
	e := newArchived(t, "a", 1<<20, func(c *Config) { c.CheckEvery = 20 * time.Millisecond })
	e.bucket.hangs = true
	r, err := http.NewRequestWithContext(t.Context(), "GET", e.HTTP.URL+Prefix+e.path, nil)
	if err != nil {
		t.Fatal(err)
	}
	as(e.ann)(r)
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	e.Change(`UPDATE workspaces SET owner_user_id = (SELECT id FROM users WHERE username = 'eve')`)
	if n, err := io.Copy(io.Discard, resp.Body); err == nil || n == 1<<20 {
		t.Errorf("after the hand-over: %d bytes, %v", n, err)
	}
	e.bucket.closed(t)
}

func TestDownloadsAreBounded(t *testing.T) {
	t.Parallel()
	e := newArchived(t, "a", 1<<20)
	e.bucket.hangs = true
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for range maxDownloads {
		r, err := http.NewRequestWithContext(ctx, "GET", e.HTTP.URL+Prefix+e.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		as(e.ann)(r)
		resp, err := e.HTTP.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
	}
	e.want(429, "too_many_streams", "GET", e.path, "", as(e.ann))
	cancel()
	e.bucket.closed(t)
}

// An object that has another size than recorded is sent without the recorded digest.
func TestDownloadOfChangedSizeHasNoDigest(t *testing.T) {
	t.Parallel()
	e := newArchived(t, "a", 1000)
	e.bucket.set(func(f *fakeBucket) { f.objects[archivedKey] = e.content[:600] })
	a := e.want(200, "", "GET", e.path, "", as(e.ann), header("Range", "bytes=5-"), header("If-Range", `"`+e.digest+`"`))
	if a.body != string(e.content[:600]) || a.header.Get("Etag") != "" || a.header.Get("Repr-Digest") != "" {
		t.Errorf("%d bytes, %v", len(a.body), a.header)
	}
}

// Ranges are served as by http.ServeContent, except that several ranges get the whole
// and errors have the API's form.
func TestDownloadRangesMatchServeContent(t *testing.T) {
	t.Parallel()
	e := newArchived(t, "a", 1000)
	tag := `"` + e.digest + `"`
	reference := func(method string, h http.Header) *http.Response {
		r := httptest.NewRequest(method, "/", nil)
		r.Header = h
		w := httptest.NewRecorder()
		w.Header().Set("Etag", tag)
		w.Header().Set("Content-Type", "application/zstd")
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(e.content))
		return w.Result()
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	number := func() string {
		return slices.Concat([]string{"", "0", "1", "999", "1000", "1001", "-1", "00", "18446744073709551616", "x", " 3"}, []string{fmt.Sprint(rnd.IntN(1100))})[rnd.IntN(12)]
	}
	one := func() string { return number() + "-" + number() }
	ranges := func() string {
		switch rnd.IntN(12) {
		case 0:
			return ""
		case 1:
			return one() // no unit
		case 2:
			return "items=" + one()
		case 3:
			return "bytes=" + one() + "-"
		case 4:
			return "bytes = " + one()
		case 5:
			return "Bytes=" + one()
		case 6:
			return "bytes=" + number()
		}
		return "bytes=" + one()
	}
	tags := []string{"", tag, `W/` + tag, `"other"`, "*", e.digest, `"other", ` + tag, "Tue, 15 Nov 1994 12:45:26 GMT"}
	seen := map[int]int{}
	check := func(method string, h http.Header) {
		t.Helper()
		want := reference(method, h.Clone())
		body, _ := io.ReadAll(want.Body)
		a := e.do(method, Prefix+e.path, "", as(e.ann), func(r *http.Request) {
			for k, v := range h {
				r.Header[k] = v
			}
		})
		seen[a.status]++
		what := fmt.Sprintf("%s %v", method, h)
		if a.status != want.StatusCode {
			t.Fatalf("%s: %d %.100s, want %d", what, a.status, a.body, want.StatusCode)
		}
		names := []string{"Content-Range"}
		if a.status < 400 {
			names = append(names, "Content-Length", "Etag", "Accept-Ranges", "Content-Type")
			if a.body != string(body) {
				t.Fatalf("%s: another body, %d bytes instead of %d", what, len(a.body), len(body))
			}
		} else if method != "HEAD" && a.code() == "" {
			t.Fatalf("%s: %s is no error of the API's", what, a.body)
		}
		for _, n := range names {
			if got, want := a.header.Get(n), want.Header.Get(n); got != want && (n != "Content-Length" || want != "") {
				t.Fatalf("%s: %s is %q, want %q", what, n, got, want)
			}
		}
	}
	requests, atLeast := 300, 2
	if harness.Verifying() {
		requests, atLeast = 1500, 10
	}
	for range requests {
		h := http.Header{}
		if v := ranges(); v != "" {
			h.Set("Range", v)
		}
		for _, name := range []string{"If-Range", "If-None-Match", "If-Match"} {
			if rnd.IntN(4) == 0 {
				h.Set(name, tags[rnd.IntN(len(tags))])
			}
		}
		check([]string{"GET", "GET", "GET", "HEAD"}[rnd.IntN(4)], h)
	}
	for _, status := range []int{200, 206, 304, 412, 416} {
		if seen[status] < atLeast {
			t.Errorf("%d was seen %d times", status, seen[status])
		}
	}
	// Several ranges get the whole.
	for _, v := range []string{"bytes=0-1,5-6", "bytes=0-0,", "bytes=,", "bytes=-5,0-5,3-4"} {
		if a := e.want(200, "", "GET", e.path, "", as(e.ann), header("Range", v)); a.body != string(e.content) || a.header.Get("Content-Length") != "1000" {
			t.Errorf("%s: %d bytes", v, len(a.body))
		}
	}
	// A range is read from its offset, with one request to the bucket.
	e.bucket.set(func(f *fakeBucket) { f.opened = nil })
	e.want(206, "", "GET", e.path, "", as(e.ann), header("Range", "bytes=700-710"))
	if d := cmp.Diff([]int64{700}, e.bucket.opened); d != "" {
		t.Error(d)
	}
	e.bucket.closed(t)
}

func TestDownloadGenerations(t *testing.T) {
	t.Parallel()
	e := newArchived(t, "a", 100)
	const old, current, other = "01900000-0000-7000-8000-000000000001", "01900000-0000-7000-8000-000000000002", "01900000-0000-7000-8000-000000000003"
	insert := `INSERT INTO archives (key, workspace_id, archive_op_id, digest, size, entries, created_at, origin, complete_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, now())`
	e.Change(insert, "inst/ws/old/home.tar.zst", e.ws.ID, old, strings.Repeat("0", 64), 3, 5, time.Unix(1000, 0), "found")
	e.Change(insert, archivedKey, e.ws.ID, current, e.digest, 100, 7, time.Unix(2000, 0), "made")
	e.bucket.objects["inst/ws/old/home.tar.zst"] = []byte("old")
	list := read[api.ArchiveList](t, e.want(200, "", "GET", e.path+"s", "", as(e.ann))).Archives
	if len(list) != 2 || list[0].OpID != current || !list[0].Current || list[1].Current || !list[1].Found || list[1].Size != 3 || list[1].Entries != 5 {
		t.Errorf("%+v", list)
	}
	if a := e.want(200, "", "GET", e.path+"?archive_op_id="+old, "", as(e.ann)); a.body != "old" || !strings.HasPrefix(a.header.Get("Etag"), `"000`) {
		t.Errorf("%q %v", a.body, a.header)
	}
	e.want(404, "archive_not_found", "GET", e.path+"?archive_op_id="+other, "", as(e.ann))
	e.want(403, "forbidden", "GET", e.path+"?archive_op_id="+old, "", as(e.eve))

	recover := strings.TrimSuffix(e.path, "/archive") + "/recover"
	archive := func(op, confirm string) string {
		return fmt.Sprintf(`{"action":"archive","archive_op_id":%q,"confirm":%q}`, op, confirm)
	}
	e.want(409, "not_in_error", "POST", recover, archive(old, "a"), as(e.ann))
	e.Change(`UPDATE workspaces SET phase = 'ERROR', error_reason = 'Timeout'`)
	e.want(409, "not_lost", "POST", recover, archive(old, "a"), as(e.ann))
	e.Change(`UPDATE workspaces SET error_reason = 'DataLost'`)
	e.want(409, "confirmation_required", "POST", recover, archive(old, ""), as(e.ann))
	e.want(409, "confirmation_required", "POST", recover, archive(old, "A"), as(e.ann))
	e.want(400, "invalid_request", "POST", recover, archive("", "a"), as(e.ann))
	e.want(400, "invalid_request", "POST", recover, `{"action":"archives"}`, as(e.ann))
	e.want(400, "invalid_request", "POST", recover, `{"action":"empty","archive_op_id":"x"}`, as(e.ann))
	e.want(400, "invalid_request", "POST", recover, `{"start_empty":true,"confirm":"a"}`, as(e.ann))
	e.want(404, "archive_not_found", "POST", recover, archive(other, "a"), as(e.ann))
	e.want(403, "forbidden", "POST", recover, archive(old, "a"), as(e.eve))
	asked := func() string {
		w, err := e.DB.Workspace(t.Context(), e.ann.Caller, e.ws.ID)
		if err != nil {
			t.Fatal(err)
		}
		if w.RecoverFrom == nil {
			return w.RecoverAction
		}
		return w.RecoverAction + " " + w.RecoverFrom.OpID
	}
	if got := asked(); got != "" {
		t.Fatalf("asked for %s", got)
	}
	e.want(202, "", "POST", recover, archive(old, "a"), as(e.ann))
	if got := asked(); got != "archive "+old {
		t.Errorf("asked for %s", got)
	}
	e.want(404, "archive_not_found", "POST", recover, archive(current, "a"), as(e.ann)) // this archive is the lost one
	if got := asked(); got != "archive "+old {
		t.Errorf("asked for %s", got)
	}
	// The other recovery options have names in the same field.
	e.want(202, "", "POST", recover, `{"action":"afresh"}`, as(e.ann))
	e.want(409, "confirmation_required", "POST", recover, `{"action":"empty"}`, as(e.ann))
	e.want(202, "", "POST", recover, `{"action":"empty","confirm":"a"}`, as(e.ann))
}

func TestArchiveFileName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][2]string{
		"web":                    {"web", `filename="web.tar.zst"`},
		"my project":             {"my project", `filename="my project.tar.zst"`},
		"../../etc/passwd":       {"_.._etc_passwd", ""},
		`a"b\c/d:e*f?g<h>i|j`:    {"a_b_c_d_e_f_g_h_i_j", ""},
		"50%":                    {"50%", `filename="50_.tar.zst"; filename*=UTF-8''50%25.tar.zst`},
		"블로그":                    {"블로그", `filename="workspace.tar.zst"; filename*=UTF-8''%EB%B8%94%EB%A1%9C%EA%B7%B8.tar.zst`},
		"café":                   {"café", `filename="caf_.tar.zst"; filename*=UTF-8''caf%C3%A9.tar.zst`},
		"...":                    {"workspace", ""},
		".bashrc":                {"bashrc", ""},
		"a\r\nSet-Cookie: x=1":   {"a__Set-Cookie_ x=1", ""},
		"a\u202eb":               {"a_b", ""},
		"it's":                   {"it's", `filename="it's.tar.zst"`},
		strings.Repeat("가", 255): {strings.Repeat("가", 66), ""},
		"\xff":                   {"_", ""},
		"":                       {"workspace", ""},
	} {
		file := api.ArchiveFileName(name)
		if file != want[0]+".tar.zst" || len(file) > 255 || filepath.Base(file) != file {
			t.Errorf("%q: the file is %q, want %q", name, file, want[0])
		}
		d := attachment(file)
		if want[1] != "" && d != "attachment; "+want[1] {
			t.Errorf("%q: %s", name, d)
		}
		kind, params, err := mime.ParseMediaType(d)
		if err != nil || kind != "attachment" || params["filename"] != file {
			t.Errorf("%q: %s is read as %q, %v", name, d, params["filename"], err)
		}
	}
}

func FuzzAttachment(f *testing.F) {
	f.Add("a\"b\\c/d")
	f.Add("가\r\n%00")
	f.Fuzz(func(t *testing.T, name string) {
		file := api.ArchiveFileName(name)
		if filepath.Base(file) != file || strings.ContainsAny(file, "/\\\r\n\x00") || len(file) > 255 {
			t.Errorf("%q becomes %q", name, file)
		}
		d := attachment(file)
		for i := range len(d) {
			if d[i] < 0x20 || d[i] > 0x7e {
				t.Errorf("%q: %q", name, d)
			}
		}
	})
}
