package adopt_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"codehub/internal/archive"
	"codehub/internal/arrivals"
	"codehub/internal/arrivals/adopt"
	"codehub/internal/postgres"
	"codehub/internal/storage/bucket"
	"codehub/internal/storage/store"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/pgtest"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// place is a database, and its part of a bucket.
type place struct {
	testing.TB
	*fixture.Database
	store  store.Store
	id     string
	cfg    config
	auth   *auth.Auth
	taking int // how often it was made sure that no server runs
}

func newPlace(t testing.TB, store store.Store) *place {
	t.Helper()
	p := &place{TB: t, Database: fixture.NewDatabase(t, postgres.Options{}), store: store}
	var err error
	p.id, err = p.DB.Installation(t.Context())
	check(t, err)
	p.auth = auth.New(p.DB, auth.Config{Log: slog.New(slog.DiscardHandler), CheapHashes: true})
	p.cfg = config{
		arrival: arrival{DB: p.DB, Bucket: p.open(p.id), DefaultImage: "image", Storage: workspace.StorageDockerVolume, Log: slog.New(slog.DiscardHandler)},
		bucketOf: bucketOf{
			Open:    func(id string) (*bucket.Bucket, error) { return p.open(id), nil },
			Alone:   func(context.Context) error { p.taking++; return nil },
			NewUser: p.auth.NewUser,
		},
	}
	return p
}

// config configures an import from the bucket.
type config struct {
	arrival
	bucketOf
}

type (
	arrival  = arrivals.Config
	bucketOf = adopt.Config
)

func (c config) run(ctx context.Context) (arrivals.Report, error) {
	c.Source = adopt.New(c.bucketOf)
	return arrivals.Run(ctx, c.arrival)
}

func (p *place) open(installation string) *bucket.Bucket {
	p.Helper()
	return fixture.OpenBucket(p, p.store, installation)
}

func (p *place) run() arrivals.Report {
	p.Helper()
	r, err := p.cfg.run(p.Context())
	check(p, err)
	return r
}

// rows is all that the database holds, as text.
func (p *place) rows() string {
	p.Helper()
	return p.Rows("installation", "users", "workspaces", "archives", "audit_log")
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
	op := uuid.Must(uuid.NewV7()).String()
	key = l.installation + "/" + archive.HomeKey(string(id), op)
	meta = &archive.Meta{
		CodehubVersion: "test", WorkspaceID: string(id), WorkspaceName: name, Owner: owner, ArchiveOpID: op, CreatedAt: l.began.Add(after),
	}
	fixture.PutArchive(l.p, l.p.store, key, meta, content)
	return key, meta
}

func (p *place) putObject(key string, b []byte) {
	p.Helper()
	fixture.PutObject(p, p.store, key, b)
}

func newID() workspace.ID { return workspace.ID(uuid.Must(uuid.NewV7()).String()) }

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func onBoth(t *testing.T, f func(t *testing.T, p *place)) {
	fixture.EachStore(t, func(t *testing.T, s store.Store) { f(t, newPlace(t, s)) })
}

type outcome struct{ Result, Owner, Name string }

func outcomes(r arrivals.Report) map[workspace.ID]outcome {
	out := map[workspace.ID]outcome{}
	for _, w := range r.Workspaces {
		out[workspace.ID(w.OldID)] = outcome{w.Result, w.Owner, cmp.Or(w.Name, w.OldName)}
	}
	return out
}

// password is that of a user who was added.
func password(u arrivals.User) string {
	_, password, _ := strings.Cut(strings.Join(u.Notes, ""), "password, shown only once: ")
	return password
}

// added are the users that were added.
func added(r arrivals.Report) (list []arrivals.User) {
	for _, u := range r.Users {
		if u.Result == arrivals.Added {
			list = append(list, u)
		}
	}
	return list
}
