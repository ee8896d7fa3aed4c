package bucket

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"codehub/internal/archive"
	"codehub/internal/storage/store"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace/lifecycle"
)

// The relay forwards signed requests for this installation's archives, and refuses all others
// without asking the bucket.
func TestRelayRefuses(t *testing.T) {
	t.Parallel()
	f := newS3(t)
	ctx := t.Context()
	row := f.archived(t, homeOf(t, 1000))
	signed := func(key string) string {
		u, err := f.presigner.PresignGet(ctx, key, time.Hour)
		check(t, err)
		return u
	}
	good := signed(row.ArchiveKey)
	manifest := f.ManifestKey(row.ID, time.Unix(1000, 0), newID())
	pack := f.homeBackups(row.ID) + archive.PackName("20260101T000000Z-x", 1)
	foreign := strings.Replace(row.ArchiveKey, installation, another, 1)
	f.put(t, foreign, []byte("secret"))
	query := good[strings.Index(good, "?"):]
	endpoint := good[:strings.Index(good, "/the-bucket")]
	path := strings.TrimPrefix(good[:strings.Index(good, "?")], endpoint)
	client := f.over()
	ask := func(method, u string, change func(*http.Request)) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, method, u, nil)
		check(t, err)
		if change != nil {
			change(req)
		}
		res, err := client.Do(req)
		check(t, err)
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		check(t, err)
		return res.StatusCode, string(b)
	}
	f.proxy.on(nil)
	for name, c := range map[string]struct {
		method, url string
		change      func(*http.Request)
	}{
		"not signed":                 {"GET", endpoint + path, nil},
		"not signed, authorized":     {"GET", endpoint + path, func(r *http.Request) { r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=x") }},
		"partly signed":              {"GET", endpoint + path + "?X-Amz-Signature=abc", nil},
		"empty signature":            {"GET", endpoint + path + strings.Replace(query, "X-Amz-Signature=", "X-Amz-Signature=&x=", 1), nil},
		"signed twice":               {"GET", good + "&X-Amz-Signature=abc", nil},
		"malformed query":            {"GET", good + "&%zz", nil},
		"semicolons":                 {"GET", good + ";a=b", nil},
		"another installation":       {"GET", signed(foreign), nil},
		"the marker":                 {"GET", signed(installation + "/" + markerName), nil},
		"another's manifest":         {"GET", signed(strings.Replace(manifest, installation, another, 1)), nil},
		"another's pack":             {"GET", signed(strings.Replace(pack, installation, another, 1)), nil},
		"not a pack":                 {"GET", signed(strings.Replace(pack, ".zst", ".txt", 1)), nil},
		"a backup of the database":   {"GET", signed(installation + "/database/20260101T000000Z.backup.zst"), nil},
		"not an archive":             {"GET", signed(installation + "/readme"), nil},
		"the bucket":                 {"GET", endpoint + "/the-bucket" + query, nil},
		"a listing":                  {"GET", endpoint + "/the-bucket/" + query + "&list-type=2", nil},
		"another bucket":             {"GET", endpoint + strings.Replace(path, "/the-bucket/", "/another/", 1) + query, nil},
		"another prefix":             {"GET", endpoint + strings.Replace(path, "/some/", "/", 1) + query, nil},
		"another installation by ..": {"GET", endpoint + strings.Replace(path, installation, another+"/../"+installation, 1) + query, nil},
		"outside by ..":              {"GET", endpoint + path + "/../../../../" + another + "/x" + query, nil},
		"up, encoded":                {"GET", endpoint + path + "%2f..%2f..%2f" + query, nil},
		"an encoded name":            {"GET", endpoint + strings.Replace(path, "home.tar", "home%2etar", 1) + query, nil},
		"an encoded slash":           {"GET", endpoint + strings.Replace(path, "/home.tar", "%2fhome.tar", 1) + query, nil},
		"double slash":               {"GET", endpoint + strings.Replace(path, "/home", "//home", 1) + query, nil},
		"a folder":                   {"GET", endpoint + path + "/" + query, nil},
		"another host":               {"GET", good, func(r *http.Request) { r.Host = "evil.example" }},
		"a similar host":             {"GET", good, func(r *http.Request) { r.Host = r.Host + "." }},
		"no host":                    {"GET", good, func(r *http.Request) { r.Host = "bucket.sock" }},
		"all":                        {"OPTIONS", endpoint + "/" + query, nil},
		"a post":                     {"POST", endpoint + "/the-bucket" + query + "&delete", nil},
	} {
		if status, body := ask(c.method, c.url, c.change); status != http.StatusForbidden || strings.Contains(body, "secret") {
			t.Errorf("%s: %d %s", name, status, body)
		}
	}
	for _, r := range f.proxy.requests() {
		t.Errorf("the bucket received %s", r.URL)
	}

	for _, key := range []string{manifest, pack} {
		if status, body := ask("GET", signed(key), nil); status != http.StatusNotFound || !strings.Contains(body, "NoSuchKey") {
			t.Errorf("%s: %d %s", key, status, body)
		}
	}

	// The bucket refuses a wrong signature.
	for name, u := range map[string]string{
		"a wrong signature": strings.Replace(good, "X-Amz-Signature=", "X-Amz-Signature=0", 1),
		"another archive":   strings.Replace(good, row.ArchiveKey, f.Key(row.ID, newID()), 1),
	} {
		if status, _ := ask("GET", u, nil); status != http.StatusForbidden {
			t.Errorf("%s: %d", name, status)
		}
	}
	for _, method := range []string{"PUT", "DELETE", "POST"} {
		if status, _ := ask(method, good, nil); status/100 != 4 {
			t.Errorf("%s with a URL for GET: %d", method, status)
		}
	}

	f.proxy.on(nil)
	status, body := ask("GET", good, func(r *http.Request) {
		r.Header.Set("Range", "bytes=0-3")
		for _, name := range []string{"X-Amz-Copy-Source", "Authorization", "Cookie", "X-Forwarded-Host", "Proxy-Authorization", "X-Amz-Acl"} {
			r.Header.Set(name, "/the-bucket/some/prefix/"+foreign)
		}
	})
	if status != http.StatusPartialContent || body != "\x28\xb5\x2f\xfd" { // the magic number of zstd
		t.Errorf("a valid request: %d %q", status, body)
	}
	for _, r := range f.proxy.requests() {
		for name := range r.Header {
			if name != "Range" && name != "User-Agent" {
				t.Errorf("the header %s was forwarded to the bucket", name)
			}
		}
	}
}

// Buckets are addressed by path or by host: the relay uses the address of the signed URLs.
func TestRelayAddressing(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{
		"s3://the-bucket/pre/fix?region=eu-central-1",
		"s3://the-bucket?region=eu-central-1&path-style=true",
		"s3://the-bucket/pre?region=x&endpoint=https://minio.example:9000&path-style=true",
		"s3://the-bucket?region=x&endpoint=https://s3.example&path-style=false",
		"s3://the-bucket/deep/prefix?region=x&endpoint=http://127.0.0.1:9000&path-style=true",
	} {
		store, err := store.Open(raw)
		check(t, err)
		b, err := New(Config{Store: store, Installation: installation, Version: "1", SocketDir: "/x", HostSocketDir: "/x"})
		check(t, err)
		e, err := b.endpoint(t.Context())
		check(t, err)
		key := b.Key("01900000-0000-7000-8000-000000000001", newID())
		permits := func(key string, change func(*url.URL)) bool {
			signed, err := b.presigner.PresignGet(t.Context(), key, time.Hour)
			check(t, err)
			u, err := url.Parse(signed)
			check(t, err)
			change(u)
			req, err := http.NewRequest(http.MethodGet, u.String(), nil)
			check(t, err)
			if u.Scheme != e.scheme {
				t.Errorf("%s: the scheme is %s", raw, e.scheme)
			}
			return e.permits(req) == nil
		}
		same := func(*url.URL) {}
		if !permits(key, same) || !permits(archive.MetaKey(key), same) {
			t.Errorf("%s: refuses its own at %+v", raw, e)
		}
		if permits(strings.Replace(key, installation, another, 1), same) {
			t.Errorf("%s: permits another installation's", raw)
		}
		if permits(key, func(u *url.URL) { u.Host = "x" + u.Host }) || permits(key, func(u *url.URL) { u.Host = u.Hostname() + ":1" }) {
			t.Errorf("%s: permits another host", raw)
		}
		if permits(key, func(u *url.URL) { u.Path = "/x" + u.Path }) {
			t.Errorf("%s: permits another path", raw)
		}
	}
}

// Other users cannot enter the folder of the socket; a socket that a killed server left is
// replaced; the folder itself may be removed.
func TestRelaySocket(t *testing.T) {
	t.Parallel()
	f := newS3Stopped(t, false)
	check(t, os.MkdirAll(f.SocketDir, 0o755))
	l, err := bind(f.SocketDir) // closing it does not remove the socket
	check(t, err)
	check(t, l.Close())
	stop := f.relay(t)
	st, err := os.Stat(f.SocketDir)
	check(t, err)
	if st.Mode().Perm() != 0o700 {
		t.Errorf("the folder's mode is %v", st.Mode())
	}
	row := f.archived(t, homeOf(t, 1000))
	check(t, os.RemoveAll(f.SocketDir))
	harness.Eventually(t, "the socket is created again", func() bool { return listened(t.Context(), f.SocketDir) })
	if result := f.run(t.Context(), t, f.restoreJob(t, row), t.TempDir()); result.Error != nil {
		t.Errorf("%+v", result.Error)
	}
	list, err := os.ReadDir(f.SocketDir)
	check(t, err)
	if len(list) != 1 {
		t.Errorf("the folder holds %v", list)
	}
	stop()
	if _, err := os.Stat(filepath.Join(f.SocketDir, "bucket.sock")); err != nil {
		t.Errorf("the socket, which may belong to another server by now, was removed: %v", err)
	}
}

// A folder that cannot be created is an error at once.
func TestRelayWithoutFolder(t *testing.T) {
	t.Parallel()
	f := newS3Stopped(t, false)
	f.SocketDir = filepath.Join(t.TempDir(), "file", "bucket")
	check(t, os.WriteFile(filepath.Dir(f.SocketDir), nil, 0o600))
	if err := f.Relay(t.Context()); err == nil {
		t.Error("the relay runs without a folder")
	}
}

// Of two servers one listens, and the other takes over when it ends.
func TestTwoServers(t *testing.T) {
	t.Parallel()
	f := newS3Stopped(t, false)
	stop := f.relay(t)
	config := f.Config
	config.Store = f.encrypted.Store
	second, err := New(config)
	check(t, err)
	other := &fixture{second, f.server, f.proxy}
	other.relay(t)
	row := f.archived(t, homeOf(t, 1000))
	stop()
	if result := f.run(t.Context(), t, f.restoreJob(t, row), t.TempDir()); result.Error != nil {
		t.Errorf("%+v", result.Error)
	}
	f.relay(t)
	row = f.archived(t, homeOf(t, 2000))
	if _, err := f.Stat(t.Context(), row.ArchiveKey); err != nil {
		t.Error(err)
	}
}

// For a folder store the relay only waits for its context.
func TestRelayOfFolder(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Relay(ctx) }()
	select {
	case err := <-ended:
		t.Errorf("it ended with %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	cancel()
	check(t, <-ended)
}

// The job uses plain HTTP on the socket, and the relay TLS to the bucket.
func TestRelayTLS(t *testing.T) {
	t.Parallel()
	f := newS3Stopped(t, true)
	f.relay(t)
	row := f.archived(t, homeOf(t, 1<<20))
	if result := f.run(t.Context(), t, f.restoreJob(t, row), t.TempDir()); result.Error != nil {
		t.Errorf("%+v", result.Error)
	}
	for _, r := range f.proxy.requests() {
		if r.TLS == nil {
			t.Errorf("%s %s was sent without TLS", r.Method, r.URL.Path)
		}
	}
}

// The relay cancels its request to the bucket when a job is stopped within a request or a
// response.
func TestRelayCancelsAbandonedRequests(t *testing.T) {
	t.Parallel()
	f := newS3(t)
	row := f.archived(t, homeOf(t, 8<<20))
	get, err := f.presigner.PresignGet(t.Context(), row.ArchiveKey, time.Hour)
	check(t, err)
	put, err := f.presigner.PresignPut(t.Context(), f.Key(row.ID, newID()), time.Hour)
	check(t, err)
	var begun, open atomic.Int32
	f.proxy.on(func(w http.ResponseWriter, r *http.Request) bool {
		begun.Add(1)
		open.Add(1)
		defer open.Add(-1)
		f.proxy.next.ServeHTTP(w, r)
		return true
	})
	wait := func(what string, done func() bool) {
		t.Helper()
		harness.Await(t, 20*time.Second, what+": begun and open",
			func() [2]int32 { return [2]int32{begun.Load(), open.Load()} }, func([2]int32) bool { return done() })
	}
	const n = 20
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	client := f.over()
	body, sent := io.Pipe()
	defer sent.Close()
	for i := range 2 * n {
		go func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, get, nil)
			if i%2 == 0 {
				req, err = http.NewRequestWithContext(ctx, http.MethodPut, put, body)
				req.ContentLength = 1 << 30
			}
			if err != nil {
				t.Error(err)
				return
			}
			if res, err := client.Do(req); err == nil {
				<-ctx.Done() // without reading the body
				res.Body.Close()
			}
		}()
	}
	wait("begin", func() bool { return begun.Load() == 2*n })
	cancel()
	wait("end", func() bool { return open.Load() == 0 })
	f.proxy.on(nil)
	if a, err := f.State(t.Context(), row); a != lifecycle.ArchivePresent || err != nil {
		t.Errorf("State: %v, %v", a, err)
	}
}
