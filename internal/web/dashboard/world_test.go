package dashboard

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"codehub/internal/archive"
	"codehub/internal/control/admin"
	"codehub/internal/gateway/origin"
	"codehub/internal/gateway/shortway"
	"codehub/internal/postgres"
	"codehub/internal/running/devcontainers"
	"codehub/internal/running/service"
	"codehub/internal/running/templates"
	"codehub/internal/runtime"
	"codehub/internal/storage/store"
	"codehub/internal/testing/harness"
	chromium "codehub/internal/testing/harness/browser"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/harness/web"
	"codehub/internal/users/auth"
	"codehub/internal/users/gitaccess"
	"codehub/internal/users/gitidentity"
	"codehub/internal/users/sealed"
	"codehub/internal/users/secrets"
	"codehub/internal/web/proxy"
	"codehub/internal/workspace"

	"github.com/google/uuid"
)

// TestMain runs the tests with one browser for all of them; the database server ends with
// the process. The tests mostly wait for streams and browsers, so more of them run at once
// than there are cores.
func TestMain(m *testing.M) {
	harness.Parallel(4)
	harness.HeedSignals()
	code := m.Run()
	chromium.CloseShared()
	if screenshots != "" && code == 0 {
		if err := pictures.write(screenshots); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// patience bounds every wait for something that must happen.
const patience = 60 * time.Second

const adminPassword = "correct horse battery"

// world is the dashboard on a real database, with real sessions and events, behind a real
// server. Only the containers are fake.
type world struct {
	t *testing.T
	*web.Server
	ctrl   *postgres.Controller
	dash   *Dashboard
	proxy  *proxy.Proxy
	layout origin.Layout
	mux    *http.ServeMux
	logs   *containers
	bucket *bucket

	arrived sync.Map // "METHOD http://host/path" → *atomic.Int64, the requests that have arrived
}

// requests returns how many requests for an address have arrived.
func (w *world) requests(method, address string) int64 {
	n, ok := w.arrived.Load(method + " " + address)
	if !ok {
		return 0
	}
	return n.(*atomic.Int64).Load()
}

// bucket is the part of the bucket that pages use.
type bucket struct {
	mu   sync.Mutex
	err  error
	have map[string]int64
	// content is that of archives by key, for those that are read.
	content map[string][]byte
}

// Files is the list of files of the archive's or backup's content; an archive without content has none.
func (b *bucket) Files(ctx context.Context, key string, size int64) (archive.Files, error) {
	if _, err := b.Stat(ctx, key); err != nil {
		return nil, err
	}
	if _, is := archive.IsManifest(path.Base(key)); is {
		m, get, err := b.Generation(ctx, key)
		if err != nil {
			return nil, err
		}
		return m.Files(get), nil
	}
	b.mu.Lock()
	content := b.content[key]
	b.mu.Unlock()
	if len(content) == 0 {
		return nil, archive.ErrNoIndex
	}
	return archive.OpenIndex(ctx, size, func(_ context.Context, offset, length int64) (io.ReadCloser, error) {
		return io.NopCloser(io.NewSectionReader(bytes.NewReader(content), offset, length)), nil
	})
}

func (*bucket) ReserveManifests(string, int64) (func(), bool) { return func() {}, true }

// Generation reads the manifest of a backup.
func (b *bucket) Generation(ctx context.Context, key string) (*archive.Manifest, archive.GetRange, error) {
	if _, err := b.Stat(ctx, key); err != nil {
		return nil, nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	m, err := archive.ReadManifest(bytes.NewReader(b.content[key]))
	return m, b.pack, err
}

// pack reads a part of a pack.
func (b *bucket) pack(_ context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return io.NopCloser(io.NewSectionReader(bytes.NewReader(b.content[name]), offset, length)), nil
}

// pack stores a real archive of a home in the bucket, in the place of one that keep has stored.
func (w *world) pack(key, home string) (size int64) {
	w.t.Helper()
	var b bytes.Buffer
	if _, err := archive.Pack(w.t.Context(), home, &b, archive.PackOptions{}); err != nil {
		w.t.Fatal(err)
	}
	size = int64(b.Len())
	w.Exec(`UPDATE archives SET size = $2 WHERE key = $1`, key, size)
	w.Exec(`UPDATE workspaces SET archive_size = $2 WHERE archive_key = $1`, key, size)
	w.bucket.mu.Lock()
	defer w.bucket.mu.Unlock()
	w.bucket.have[key], w.bucket.content[key] = size, b.Bytes()
	return size
}

func (b *bucket) Stat(_ context.Context, key string) (store.Object, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	size, ok := b.have[key]
	switch {
	case b.err != nil:
		return store.Object{}, b.err
	case !ok:
		return store.Object{}, store.ErrNotFound
	}
	return store.Object{Key: key, Size: size}, nil
}

// keep stores an archive of a workspace in the bucket.
func (w *world) keep(id workspace.ID, opID string, size, entries int64, at time.Time) (key string) {
	w.t.Helper()
	key = "inst/" + string(id) + "/" + opID + "/home.tar.zst"
	w.Exec(`INSERT INTO archives (key, workspace_id, archive_op_id, digest, size, entries, created_at, verified_at)
		VALUES ($1, $2, $3, 'digest', $4, $5, $6, $6)`, key, string(id), opID, size, entries, at)
	w.bucket.mu.Lock()
	defer w.bucket.mu.Unlock()
	w.bucket.have[key] = size
	return key
}

// containers has the logs and the address of the fake containers.
type containers struct {
	mu    sync.Mutex
	text  string
	err   error
	addr  string       // of the IDE; empty while there is none
	in    workspace.ID // which has the agent
	agent string
	ends  int           // how often a container has ended
	hold  chan struct{} // what a read of the log waits for; nil: nothing
}

// print makes the container print text; end ends it, and another one begins.
func (l *containers) print(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text += text
}

func (l *containers) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = ""
	l.ends++
}

func (l *containers) read() (text string, ends int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text, l.ends, l.err
}

func (l *containers) Logs(ctx context.Context, _ workspace.ID, _ int, follow bool, w io.Writer) error {
	if l.hold != nil {
		<-l.hold
	}
	_, of, _ := l.read()
	for sent := 0; ; {
		text, ends, err := l.read()
		if err != nil || ends != of {
			return err
		}
		if _, err := io.WriteString(w, text[sent:]); err != nil || !follow {
			return err
		}
		sent = len(text)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (l *containers) Upstream(_ context.Context, id workspace.ID) (runtime.Upstream, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.agent != "" && id == l.in {
		return runtime.Upstream{ContainerID: "c", Agent: l.agent, Secret: "s"}, nil
	}
	if l.addr == "" {
		return runtime.Upstream{}, runtime.ErrNotFound
	}
	return runtime.Upstream{ContainerID: "c", Addr: l.addr, Secret: "s"}, nil
}

func newWorld(t *testing.T, change ...func(*Config)) *world {
	t.Helper()
	w := newEmptyWorld(t, change...)
	w.AddAccount(auth.AdminUsername, adminPassword, true)
	return w
}

// newOriginWorld gives each workspace an origin of its own, below localhost.
func newOriginWorld(t *testing.T) *world {
	t.Helper()
	w := makeWorld(t, "", web.AtLocalhost)
	w.AddAccount(auth.AdminUsername, adminPassword, true)
	return w
}

// session begins one of the user's, as a login would, and returns its cookie.
func (w *world) session(name string) *http.Cookie {
	w.t.Helper()
	var secret [32]byte
	_, _ = rand.Read(secret[:])
	id := base64.RawURLEncoding.EncodeToString(secret[:])
	hash, expires := sha256.Sum256([]byte(id)), time.Now().Add(time.Hour)
	if err := w.DB.CreateSession(w.t.Context(), hash[:], w.userID(name), "", expires, postgres.Client{UserAgent: "test"}); err != nil {
		w.t.Fatal(err)
	}
	return w.Auth.Cookie(auth.Session{ID: id, Expires: expires})
}

// as is a browser in which the user is logged in.
func (w *world) as(name string) *browser {
	w.t.Helper()
	b := w.browser()
	b.c.Jar.SetCookies(w.URL, []*http.Cookie{w.session(name)})
	return b
}

// newEmptyWorld has no user yet. Workspaces share the origin of the pages.
func newEmptyWorld(t *testing.T, change ...func(*Config)) *world {
	t.Helper()
	return makeWorld(t, origin.PathMode, func(*web.Server) {}, change...)
}

// makeWorld creates a world with this value of CODEHUB_WORKSPACE_URL and no user.
func makeWorld(t *testing.T, workspaces string, server web.Option, change ...func(*Config)) *world {
	t.Helper()
	sizes := workspace.Sizes{Default: workspace.Size{Name: workspace.DefaultSize, NanoCPUs: 2e9, Memory: 4 << 30}}
	return makeSizedWorld(t, sizes, workspaces, server, change...)
}

// makeSizedWorld is makeWorld with these sizes of workspaces.
func makeSizedWorld(t *testing.T, sizes workspace.Sizes, workspaces string, server web.Option, change ...func(*Config)) *world {
	t.Helper()
	log := harness.Logger(t, slog.LevelWarn)
	db := fixture.NewDatabase(t, postgres.Options{Limits: postgres.Limits{PerUser: 2, Global: 100}, Sizes: sizes, Log: log, MaxConns: 8, Sharing: true})
	w := &world{t: t, Server: web.New(t, db, log, server), ctrl: db.Controller(), logs: &containers{}, bucket: &bucket{have: map[string]int64{}, content: map[string][]byte{}}}
	w.HTTP.Config.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelWarn)
	keys, err := sealed.OpenOrCreate(filepath.Join(t.TempDir(), "secret.key"))
	if err != nil {
		t.Fatal(err)
	}
	config := Config{
		Secrets: secrets.New(w.DB, keys), Git: gitaccess.New(w.DB, keys),
		Store: w.DB, Auth: w.Auth, Events: w.Hub, Logs: w.logs, Log: log,
		Settings: service.Settings{
			URL:         w.URL,
			Defaults:    service.Defaults{DefaultImage: "codehub/workspace:latest", StorageBackend: workspace.StorageDockerVolume, Sizes: sizes},
			Idle:        service.Idle{StandbyTTL: int(testTTL.Standby.Seconds()), ArchiveTTL: int(testTTL.Archive.Seconds()), KeepAwakeMax: 24 * time.Hour},
			DeleteGrace: 2 * time.Hour,
		},
		Admin:      admin.New(admin.Config{Store: w.DB, Passwords: w.Auth, URL: w.URL, Settings: testSettings, OrphanDelay: time.Hour}),
		MaxRunning: 2, Archives: w.bucket,
		Templates:     templates.New(templates.Config{Store: w.DB, DefaultImage: "codehub/workspace:latest", Sizes: sizes, Log: log}),
		Devcontainers: devcontainers.New(devcontainers.Config{Store: w.DB, Agents: &descriptions{}, Sizes: sizes}),
	}
	var missing sync.Map // texts, with the stack of the first use
	config.MissingText = func(language, key string) { missing.LoadOrStore(language+": "+key, string(debug.Stack())) }
	t.Cleanup(func() {
		for text, stack := range missing.Range {
			t.Errorf("a page used a text that is not in the catalogue: %v\n%v", text, stack)
		}
	})
	config.GitIdentities = gitidentity.New(w.DB, keys)
	for _, f := range change {
		f(&config)
	}
	if w.layout, err = origin.Parse(w.URL, workspaces); err != nil {
		t.Fatal(err)
	}
	w.dash = New(config)
	w.mux = http.NewServeMux()
	w.dash.Routes(w.mux.HandleFunc)
	w.proxy = proxy.New(proxy.Config{
		Auth: w.Auth, Sessions: w.Auth, Store: w.DB, Runtime: w.logs, Pages: w.dash, Log: log,
		Layout: w.layout, Visitors: w.Auth, CookieNames: slices.Concat(auth.CookieNames(), CookieNames()), IsToken: auth.IsToken, IDE: w.dash,
	})
	served := w.proxy.Wrap(w.mux)
	w.Serve(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		n, _ := w.arrived.LoadOrStore(r.Method+" http://"+r.Host+r.URL.Path, new(atomic.Int64))
		n.(*atomic.Int64).Add(1)
		ctx, rest := w.Streams.Allow(r.Context())
		served.ServeHTTP(rw, r.WithContext(ctx))
		if rest.Begun() {
			rest.Go(func(_ int64, panicked *shortway.Panic) {
				if panicked != nil {
					t.Errorf("an event stream panicked: %v", panicked.Value)
				}
			})
		}
	}), w.proxy.InvalidateAll)
	return w
}

// caller returns the caller of a user.
func (w *world) caller(username string) workspace.Caller {
	w.t.Helper()
	u, err := w.DB.UserByName(w.t.Context(), username)
	if err != nil {
		w.t.Fatal(err)
	}
	return workspace.Caller{UserID: u.ID, Username: u.Username, Admin: u.Admin}
}

// add creates a workspace of the admin in a state that the controller leaves.
func (w *world) add(name string, change func(*workspace.Workspace)) workspace.ID {
	w.t.Helper()
	id := w.AddWorkspace(w.caller(auth.AdminUsername), name).ID
	w.observe(id, change)
	return id
}

// row reads a workspace of the admin.
func (w *world) row(id workspace.ID) workspace.Workspace {
	w.t.Helper()
	ws, err := w.DB.Workspace(w.t.Context(), w.caller(auth.AdminUsername), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return ws
}

// used sets how long ago the workspace was active and changed its phase.
func (w *world) used(id workspace.ID, ago time.Duration) {
	w.t.Helper()
	w.Exec(`UPDATE workspaces SET last_access_at = now() - $2::interval, last_access_kind = 'typing', phase_changed_at = now() - $2::interval - interval '1 minute' WHERE id = $1`, string(id), ago)
}

// person creates a user who is not an administrator, and a browser that is logged in.
func (w *world) person(name string) *browser {
	w.t.Helper()
	w.AddAccount(name, "another password", false)
	return w.as(name)
}

// want sets the desired state, as the API layer does, without its checks.
func (w *world) want(id workspace.ID, column string, value any) {
	w.t.Helper()
	w.Exec(fmt.Sprintf("UPDATE workspaces SET %s = $1 WHERE id = $2", column), value, string(id))
}

// observe changes columns that the controller writes, and clears the request columns.
func (w *world) observe(id workspace.ID, change func(*workspace.Workspace)) {
	w.t.Helper()
	list, err := w.ctrl.Candidates(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	for _, seen := range list {
		if seen.ID != id {
			continue
		}
		next := *seen
		change(&next)
		if next.Operation == workspace.OpNone {
			next.OpID, next.OpStartedAt = "", nil
		} else if next.OpID == "" {
			now := time.Now().UTC()
			next.OpID, next.OpStartedAt = uuid.NewString(), &now
		}
		landed, err := w.ctrl.Apply(w.t.Context(), []postgres.Change{{Seen: *seen, Next: next, ClearRecover: true, ClearCancel: true, ClearForceStop: true}})
		if err != nil || !landed[0] {
			w.t.Fatalf("write the observation: landed %v, %v", landed, err)
		}
		return
	}
	w.t.Fatalf("no workspace %s", id)
}

// The states that the controller leaves a workspace in.
func standby(w *workspace.Workspace) {
	now := time.Now().UTC()
	w.Phase, w.Operation, w.Home, w.Progress = workspace.PhaseStandby, workspace.OpNone, workspace.Home{State: workspace.HomeLive}, nil
	w.Conditions = w.Conditions.With(workspace.VolumeReady, true, workspace.ReasonVolumeReady, "", now).
		With(workspace.ContainerReady, false, workspace.ReasonNoContainer, "", now).With(workspace.Healthy, true, workspace.ReasonHealthy, "", now).
		With(workspace.ArchiveReady, false, workspace.ReasonNoArchive, "", now)
}

func running(w *workspace.Workspace) {
	standby(w)
	w.Phase = workspace.PhaseRunning
	w.Conditions = w.Conditions.With(workspace.ContainerReady, true, workspace.ReasonContainerReady, "", time.Now().UTC())
}

// archived is a workspace whose home is in the archive of that key.
func archived(key string, size int64) func(*workspace.Workspace) {
	return func(w *workspace.Workspace) {
		now := time.Now().UTC()
		w.Phase, w.Operation, w.Progress, w.Home = workspace.PhaseArchived, workspace.OpNone, nil, workspace.Home{State: workspace.HomeAbsent}
		w.ArchiveKey, w.ArchiveDigest, w.ArchiveSize = key, "digest", size
		w.Conditions = w.Conditions.With(workspace.VolumeReady, false, workspace.ReasonNoVolume, "", now).
			With(workspace.ContainerReady, false, workspace.ReasonNoContainer, "", now).With(workspace.Healthy, true, workspace.ReasonHealthy, "", now).
			With(workspace.ArchiveReady, true, workspace.ReasonArchiveReady, key, now)
	}
}

// moving is the progress of an operation on a home.
func moving(base func(*workspace.Workspace), op workspace.Operation, p workspace.Progress) func(*workspace.Workspace) {
	return func(w *workspace.Workspace) {
		operating(base, op)(w)
		w.Progress = &p
	}
}

func operating(base func(*workspace.Workspace), op workspace.Operation) func(*workspace.Workspace) {
	return func(w *workspace.Workspace) {
		base(w)
		w.Operation = op
	}
}

func failed(reason workspace.ErrorReason, message string) func(*workspace.Workspace) {
	return func(w *workspace.Workspace) {
		standby(w)
		w.Phase, w.ErrorReason, w.ErrorMessage = workspace.PhaseError, reason, message
	}
}

// browser is a client with cookies that does not follow redirects.
type browser struct {
	w *world
	c *http.Client
}

func (w *world) browser() *browser {
	jar, err := cookiejar.New(nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return &browser{w, &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// loggedIn is a browser in which the admin is logged in.
func (w *world) loggedIn() *browser {
	return w.as(auth.AdminUsername)
}

type answer struct {
	status int
	header http.Header
	body   string
}

func (b *browser) do(method, path string, form url.Values, header ...string) answer {
	b.w.t.Helper()
	r, err := http.NewRequestWithContext(b.w.t.Context(), method, b.w.HTTP.URL+path, strings.NewReader(form.Encode()))
	if err != nil {
		b.w.t.Fatal(err)
	}
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := b.c.Do(r)
	if err != nil {
		b.w.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		b.w.t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(body)}
}

func (b *browser) get(path string, header ...string) answer {
	return b.do(http.MethodGet, path, nil, header...)
}

func (b *browser) post(path string, form url.Values, header ...string) answer {
	return b.do(http.MethodPost, path, form, header...)
}

// htmx posts as htmx does.
func (b *browser) htmx(path string, form url.Values) answer {
	return b.post(path, form, "HX-Request", "true")
}
