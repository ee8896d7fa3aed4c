package bucket

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"codehub/internal/archive"
	"codehub/internal/runtime"
	"codehub/internal/storage/encryption"
	"codehub/internal/storage/storagejob"
	"codehub/internal/storage/store"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/s3test"
	"codehub/internal/workspace"
)

// The environment has the credentials of the S3 servers, and the certificate of httptest's
// servers is trusted.
func TestMain(m *testing.M) {
	os.Exit(func() int {
		server := httptest.NewTLSServer(http.NotFoundHandler())
		cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
		server.Close()
		dir, err := os.MkdirTemp("", "bucket-test-")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		file := filepath.Join(dir, "cert.pem")
		if err := os.WriteFile(file, cert, 0o600); err != nil {
			panic(err)
		}
		for _, v := range []string{"AWS_ACCESS_KEY_ID=" + s3test.AccessKey, "AWS_SECRET_ACCESS_KEY=" + s3test.SecretKey, "SSL_CERT_FILE=" + file} {
			name, value, _ := strings.Cut(v, "=")
			if err := os.Setenv(name, value); err != nil {
				panic(err)
			}
		}
		return m.Run()
	}())
}

const (
	installation = "11111111-1111-4111-8111-111111111111"
	another      = "22222222-2222-4222-8222-222222222222"
	hostFolder   = "/on/the/host/archives"
)

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func wantErr(tb testing.TB, err, want error) {
	tb.Helper()
	if !errors.Is(err, want) {
		tb.Errorf("%v, want %v", err, want)
	}
}

// newID returns a new id of a workspace or claim.
func newID() string {
	b := sha256.Sum256(fmt.Append(nil, rand.Uint64(), rand.Uint64()))
	s := hex.EncodeToString(b[:])
	return s[:8] + "-" + s[8:12] + "-7" + s[13:16] + "-8" + s[17:20] + "-" + s[20:32]
}

// newRow returns a workspace in an operation.
func newRow() workspace.Workspace {
	return workspace.Workspace{ID: workspace.ID(newID()), Name: "my workspace", OpID: newID()}
}

// fixture is a Bucket with its storage.
type fixture struct {
	*Bucket
	server *s3test.Server // nil: a folder
	proxy  *faults        // in front of the server
}

func newFolder(tb testing.TB) *fixture {
	tb.Helper()
	dir := filepath.Join(tb.TempDir(), "archives")
	b, err := New(Config{
		Store: store.NewFolder(dir), Installation: installation, Version: "test", Folder: dir, HostFolder: hostFolder,
	})
	check(tb, err)
	check(tb, b.Check(tb.Context(), false))
	return &fixture{Bucket: b}
}

// newS3 returns a bucket on a real S3 server behind a proxy that injects faults. Its relay
// runs.
func newS3(tb testing.TB) *fixture {
	tb.Helper()
	f := newS3Stopped(tb, false)
	f.relay(tb)
	return f
}

func newS3Stopped(tb testing.TB, secure bool) *fixture {
	tb.Helper()
	server := s3test.Share(tb, "the-bucket")
	proxy := newFaults(tb, server.Endpoint, secure)
	store, err := store.Open("s3://the-bucket/" + newID() + "/some?path-style=true&region=us-east-1&endpoint=" + proxy.URL)
	check(tb, err)
	dir := filepath.Join(tb.TempDir(), strings.Repeat("a-long-path/", 12))
	b, err := New(Config{
		Store: store, Installation: installation, Version: "test", SocketDir: dir, HostSocketDir: "/on/the/host/bucket",
	})
	check(tb, err)
	check(tb, b.Check(tb.Context(), false))
	return &fixture{b, server, proxy}
}

// relay runs the relay until the function that it returns is called.
func (f *fixture) relay(tb testing.TB) (stop func()) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Relay(ctx) }()
	stopped := false
	stop = func() {
		tb.Helper()
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			tb.Errorf("Relay: %v", err)
		}
	}
	tb.Cleanup(stop)
	harness.Eventually(tb, "the relay listens on the socket", func() bool { return listened(ctx, f.SocketDir) })
	return stop
}

// onBoth runs a test with a folder and with S3.
func onBoth(t *testing.T, test func(t *testing.T, f *fixture)) {
	t.Parallel()
	t.Run("folder", func(t *testing.T) { t.Parallel(); test(t, newFolder(t)) })
	t.Run("s3", func(t *testing.T) { t.Parallel(); test(t, newS3(t)) })
}

// onAll is onBoth, and the same with encryption.
func onAll(t *testing.T, test func(t *testing.T, f *fixture)) {
	onBoth(t, test)
	t.Run("folder encrypted", func(t *testing.T) { t.Parallel(); test(t, newFolder(t).encrypt(t, newKeyFile(t))) })
	t.Run("s3 encrypted", func(t *testing.T) { t.Parallel(); test(t, newS3(t).encrypt(t, newKeyFile(t))) })
}

// newKeyFile returns the keys of a new file.
func newKeyFile(tb testing.TB) *encryption.KeyFile {
	tb.Helper()
	key, err := encryption.NewKey()
	check(tb, err)
	keys, err := encryption.ParseKeyFile([]byte(key.String()))
	check(tb, err)
	return keys
}

// encrypt is a restart with keys; nil: without encryption.
func (f *fixture) encrypt(tb testing.TB, keys *encryption.KeyFile) *fixture {
	tb.Helper()
	c := f.Config
	c.Store = f.encrypted.Store
	c.Keys, c.Encrypt = keys, true
	b, err := New(c)
	check(tb, err)
	check(tb, b.Check(tb.Context(), false))
	f.Bucket = b
	return f
}

// dirs returns the folders that the container of a job has mounted.
func (f *fixture) dirs(tb testing.TB, spec runtime.JobSpec, home string) storagejob.Dirs {
	tb.Helper()
	dirs := storagejob.Dirs{Home: home, Backoff: 200 * time.Millisecond}
	if !f.Reaches(runtime.Job{BucketDir: spec.BucketDir}) || f.Reaches(runtime.Job{BucketDir: "/another/server"}) {
		tb.Error("it does not recognize its own jobs")
	}
	if f.server == nil {
		rel, ok := strings.CutPrefix(spec.ObjectDir, hostFolder+"/")
		if !ok || spec.BucketDir != "" {
			tb.Fatalf("the job gets %+v", spec)
		}
		dirs.Object = filepath.Join(f.Folder, rel)
		return dirs
	}
	if spec.ObjectDir != "" || spec.BucketDir != f.HostSocketDir {
		tb.Fatalf("the job gets %+v", spec)
	}
	dirs.Bucket = f.SocketDir
	return dirs
}

// run runs the storage job of a spec, as its container would.
func (f *fixture) run(ctx context.Context, tb testing.TB, spec runtime.JobSpec, home string) storagejob.Result {
	tb.Helper()
	var out bytes.Buffer
	storagejob.Run(ctx, bytes.NewReader(spec.Input), &out, f.dirs(tb, spec, home))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	var e storagejob.Event
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &e); err != nil || e.Result == nil {
		tb.Fatalf("the job reported %s", out.String())
	}
	return *e.Result
}

func (f *fixture) archiveJob(tb testing.TB, row workspace.Workspace) runtime.JobSpec {
	tb.Helper()
	var spec runtime.JobSpec
	check(tb, f.ArchiveJob(tb.Context(), row, "alice", &spec))
	return spec
}

func (f *fixture) restoreJob(tb testing.TB, row workspace.Workspace) runtime.JobSpec {
	tb.Helper()
	meta, err := f.Meta(tb.Context(), row.ArchiveKey)
	check(tb, err)
	var spec runtime.JobSpec
	check(tb, f.RestoreJob(tb.Context(), row, meta, &spec))
	return spec
}

// archived archives a home and returns the resulting row.
func (f *fixture) archived(tb testing.TB, home string) workspace.Workspace {
	tb.Helper()
	row := newRow()
	result := f.run(tb.Context(), tb, f.archiveJob(tb, row), home)
	if result.Error != nil || result.Claim != row.OpID {
		tb.Fatalf("the job ended with %+v %+v", result, result.Error)
	}
	row.ArchiveKey = f.Key(row.ID, row.OpID)
	meta, err := f.ReadBack(tb.Context(), row.ArchiveKey, result.Stats, nil)
	check(tb, err)
	row.ArchiveDigest, row.ArchiveSize = meta.SHA256, meta.Size
	row.OpID = newID()
	return row
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n >> 8)}).Read(b)
	return b
}

// homeOf creates a home with one incompressible file of this size.
func homeOf(tb testing.TB, size int) string {
	tb.Helper()
	home := tb.TempDir()
	check(tb, os.WriteFile(filepath.Join(home, "file"), randomBytes(size), 0o640))
	return home
}

func (f *fixture) put(tb testing.TB, key string, content []byte) {
	tb.Helper()
	_, err := f.Store.Put(tb.Context(), key, bytes.NewReader(content))
	check(tb, err)
}

// putMeta stores a changed .meta.
func (f *fixture) putMeta(tb testing.TB, key string, change func(*archive.Meta)) {
	tb.Helper()
	meta, err := f.Meta(tb.Context(), key)
	check(tb, err)
	change(meta)
	b, err := meta.Encode()
	check(tb, err)
	f.put(tb, archive.MetaKey(key), b)
}

// over sends requests over the relay's socket.
func (f *fixture) over() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			dir, err := os.Open(f.SocketDir)
			if err != nil {
				return nil, err
			}
			defer dir.Close()
			var d net.Dialer
			return d.DialContext(ctx, "unix", inFolder(dir, storagejob.SocketName))
		},
	}}
}
