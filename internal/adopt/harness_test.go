package adopt_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"codehub/internal/adopt"
	"codehub/internal/archive"
	"codehub/internal/archive/store"
	"codehub/internal/archive/store/s3test"
	"codehub/internal/auth"
	"codehub/internal/bucket"
	"codehub/internal/pgtest"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

func TestMain(m *testing.M) {
	// The S3 server of the tests has one account; store.Open finds it here.
	os.Setenv("AWS_ACCESS_KEY_ID", s3test.AccessKey)
	os.Setenv("AWS_SECRET_ACCESS_KEY", s3test.SecretKey)
	pgtest.Main(m)
}

// place is a database, and its part of a bucket.
type place struct {
	testing.TB
	dsn    string
	db     *postgres.DB
	raw    *pgxpool.Pool
	store  store.Store
	id     string
	cfg    adopt.Config
	auth   *auth.Auth
	taking int // how often it was made sure that no server runs
}

func folder(t testing.TB) store.Store {
	s := store.NewFolder(filepath.Join(t.TempDir(), "archives"))
	check(t, s.Check(t.Context()))
	return s
}

func s3(t testing.TB) store.Store {
	s, err := store.Open(s3test.Start(t, "bucket").URL("bucket/prefix"))
	check(t, err)
	return s
}

func newPlace(t testing.TB, store store.Store) *place {
	t.Helper()
	p := &place{TB: t, dsn: pgtest.New(t, postgres.Migrate), store: store}
	var err error
	p.db, err = postgres.Open(t.Context(), p.dsn, postgres.Options{})
	check(t, err)
	t.Cleanup(p.db.Close)
	p.raw, err = pgxpool.New(t.Context(), p.dsn)
	check(t, err)
	t.Cleanup(p.raw.Close)
	p.id, err = p.db.Installation(t.Context())
	check(t, err)
	p.auth = auth.New(p.db, auth.Config{Log: slog.New(slog.DiscardHandler), CheapHashes: true})
	p.cfg = adopt.Config{
		DB: p.db, Session: p.session(), Own: p.open(p.id),
		Open:       func(id string) (*bucket.Bucket, error) { return p.open(id), nil },
		Alone:      func(context.Context) error { p.taking++; return nil },
		CreateUser: p.auth.CreateUser,
		Image:      "image", Storage: workspace.StorageDockerVolume,
		Log: slog.New(slog.DiscardHandler),
	}
	return p
}

func (p *place) session() *postgres.Controller {
	cfg, err := postgres.ConnConfig(p.dsn, "test")
	check(p, err)
	conn, err := pgx.ConnectConfig(p.Context(), cfg)
	check(p, err)
	p.Cleanup(func() { _ = conn.Close(context.Background()) })
	return postgres.NewController(postgres.NewSession(conn))
}

func (p *place) open(installation string) *bucket.Bucket {
	cfg := bucket.Config{Store: p.store, Installation: installation, Version: "test"}
	if _, ok := p.store.(store.Presigner); ok {
		cfg.SocketDir, cfg.HostSocketDir = "/", "/"
	} else {
		cfg.Folder, cfg.HostFolder = "/", "/"
	}
	b, err := bucket.New(cfg)
	check(p, err)
	return b
}

func (p *place) run() *adopt.Report {
	p.Helper()
	r, err := adopt.Run(p.Context(), p.cfg)
	check(p, err)
	return r
}

func (p *place) exec(sql string, args ...any) {
	p.Helper()
	_, err := p.raw.Exec(p.Context(), sql, args...)
	if err != nil {
		p.Fatalf("%s: %v", sql, err)
	}
}

func query[T any](p *place, sql string, args ...any) (v T) {
	p.Helper()
	if err := p.raw.QueryRow(p.Context(), sql, args...).Scan(&v); err != nil {
		p.Fatalf("%s: %v", sql, err)
	}
	return v
}

// rows is all that the database holds, as text.
func (p *place) rows() string {
	var b strings.Builder
	for _, table := range []string{"installation", "users", "workspaces", "archives", "audit_log"} {
		b.WriteString(query[string](p, `SELECT COALESCE(string_agg(t::text, E'\n' ORDER BY t::text), '') FROM `+table+` t`) + "\n")
	}
	return b.String()
}

func (p *place) objects() (keys []string) {
	for o, err := range p.store.List(p.Context(), "") {
		check(p, err)
		keys = append(keys, fmt.Sprint(o.Key, " ", o.Size))
	}
	return keys
}

// lost are archives that an installation has left in a bucket.
type lost struct {
	p            *place
	installation string
	began        time.Time
}

func (p *place) lose() *lost {
	l := &lost{p: p, installation: uuid.NewString(), began: time.Now().UTC().Add(-24 * time.Hour).Truncate(time.Microsecond)}
	check(p, p.open(l.installation).Check(p.Context(), false))
	return l
}

// put puts an archive that was made so long after the begin.
func (l *lost) put(id workspace.ID, owner, name, content string, after time.Duration) (key string, meta *archive.Meta) {
	l.p.Helper()
	home := l.p.TempDir()
	check(l.p, os.WriteFile(filepath.Join(home, "content"), []byte(content), 0o600))
	op := uuid.Must(uuid.NewV7()).String()
	key = l.installation + "/" + archive.HomeKey(string(id), op)
	stats, err := archive.PackTo(l.p.Context(), home, archive.PackOptions{}, func(ctx context.Context, r io.Reader) (int64, error) {
		return l.p.store.Put(ctx, key, r)
	})
	check(l.p, err)
	meta = &archive.Meta{
		CodehubVersion: "test", WorkspaceID: string(id), WorkspaceName: name, Owner: owner, ArchiveOpID: op, CreatedAt: l.began.Add(after),
	}
	meta.Describe(stats)
	b, err := meta.Encode()
	check(l.p, err)
	l.p.putObject(archive.MetaKey(key), b)
	return key, meta
}

func (p *place) putObject(key string, b []byte) {
	_, err := p.store.Put(p.Context(), key, bytes.NewReader(b))
	check(p, err)
}

func newID() workspace.ID { return workspace.ID(uuid.Must(uuid.NewV7()).String()) }

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func onBoth(t *testing.T, f func(t *testing.T, p *place)) {
	t.Parallel()
	for name, store := range map[string]func(testing.TB) store.Store{"folder": folder, "s3": s3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, newPlace(t, store(t)))
		})
	}
}

type outcome struct {
	Result      adopt.Result
	Owner, Name string
	Archives    int
}

func outcomes(r *adopt.Report) map[workspace.ID]outcome {
	out := map[workspace.ID]outcome{}
	for _, w := range r.Workspaces {
		out[w.ID] = outcome{w.Result, w.Owner, w.Name, w.Archives}
	}
	return out
}
