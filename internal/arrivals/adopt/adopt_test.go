package adopt_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"codehub/internal/archive"
	"codehub/internal/arrivals"
	"codehub/internal/control/gc"
	"codehub/internal/control/mark"
	"codehub/internal/postgres"
	"codehub/internal/storage/store"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/runtimetest"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

// The whole of a lost database comes back, as far as archives tell.
func TestAdoptRebuildsLostDatabase(t *testing.T) {
	onBoth(t, func(t *testing.T, p *place) {
		ctx := t.Context()
		l := p.lose()
		one, two, same, broken := newID(), newID(), newID(), newID()
		oldest, _ := l.put(one, "ann", "first name", "1", 0)
		l.put(one, "ann", "first name", "2", time.Hour)
		current, meta := l.put(one, "ann", "work", "3", 2*time.Hour)
		l.put(two, "bob", "work", "4", time.Hour)
		l.put(same, "ann", "work", "5", time.Hour)
		_, cut := l.put(broken, "ann", "broken", "6", time.Hour)
		check(t, p.store.Delete(ctx, l.installation+"/"+archive.HomeKey(string(broken), cut.ArchiveOpID)))
		half := l.installation + "/" + archive.HomeKey(string(one), uuid.NewString())
		p.putObject(half, []byte("half"))
		p.putObject(l.installation+"/collection.json", []byte("{}"))
		p.cfg.Admin = "bob"

		before, objects := p.rows(), p.objects()
		p.cfg.DryRun = true
		would := p.run()
		if d := cmp.Diff(before, p.rows()); d != "" {
			t.Errorf("a dry run has written: %s", d)
		}
		if d := cmp.Diff(objects, p.objects()); d != "" || p.taking != 0 {
			t.Errorf("a dry run has touched the bucket: %s", d)
		}
		p.cfg.DryRun = false
		r := p.run()
		if would.Source != l.installation || r.Source != l.installation || len(would.Users) != 2 || password(would.Users[0]) != "" {
			t.Errorf("%+v, and then %+v", would, r)
		}
		want := map[workspace.ID]outcome{
			one: {arrivals.Added, "ann", "work"}, two: {arrivals.Added, "bob", "work"}, same: {arrivals.Added, "ann", "work (2)"},
		}
		if d := cmp.Diff(want, outcomes(r)); d != "" {
			t.Error(d)
		}
		if skipped := strings.Count(strings.Join(r.Warnings, "\n"), "archive skipped"); skipped != 2 || r.Left != 0 {
			t.Errorf("%+v", r)
		}

		// The database is the lost one's, and its people can log in.
		if id, err := p.DB.Installation(ctx); err != nil || id != l.installation || p.taking != 1 {
			t.Errorf("installation %s, %v", id, err)
		}
		admins := 0
		for _, u := range r.Users {
			if _, err := p.auth.Login(ctx, u.Username, password(u), auth.Client{UserAgent: "test"}); err != nil {
				t.Errorf("%s: %v", u.Username, err)
			}
			if u.Admin {
				admins++
			}
			if made, err := p.DB.UserByName(ctx, u.Username); err != nil || made.Admin != u.Admin || u.Admin != (u.Username == "bob") {
				t.Errorf("%+v, %v", made, err)
			}
		}
		if len(r.Users) != 2 || admins != 1 {
			t.Errorf("%+v", r.Users)
		}
		ann, err := p.DB.UserByName(ctx, "ann")
		check(t, err)
		caller := workspace.Caller{UserID: ann.ID}
		ws, err := p.DB.Workspace(ctx, caller, one)
		check(t, err)
		if ws.ArchiveKey != current || ws.ArchiveDigest != meta.SHA256 || ws.ArchiveSize != meta.Size ||
			ws.ArchiveOpID != meta.ArchiveOpID || ws.DesiredState != workspace.DesiredArchived || ws.Phase != workspace.PhasePending ||
			ws.Home.State != workspace.HomeAbsent || ws.ImageRef != "image" || !ws.CreatedAt.Equal(l.began) {
			t.Errorf("%+v", ws)
		}
		list, _, err := p.DB.Archives(ctx, caller, one, postgres.Page{})
		if err != nil || len(list) != 3 || list[0].Key != current || list[2].Key != oldest {
			t.Errorf("%+v, %v", list, err)
		}

		// Again nothing is done.
		p.cfg.Bucket, p.cfg.Admin = p.open(l.installation), ""
		before, objects = p.rows(), p.objects()
		r = p.run()
		for id, o := range outcomes(r) {
			if o.Result != arrivals.Already {
				t.Errorf("%s: %+v", id, o)
			}
		}
		if d := cmp.Diff(before, p.rows()); d != "" || len(r.Users) != 0 {
			t.Errorf("the second time: %s", d)
		}
		if d := cmp.Diff(objects, p.objects()); d != "" {
			t.Error(d)
		}

		// Collections take the archives for what they are.
		set := gc.Settings{Keep: 1, Delay: time.Hour, DeleteGrace: time.Hour}
		keeper := mark.New(mark.Config{Runtime: runtimetest.NewFake(), Bucket: p.cfg.Bucket, Log: p.cfg.Log})
		check(t, keeper.Move(ctx, p.Controller())) // the marks are the lost database's
		g := gc.Config{Bucket: p.cfg.Bucket, Settings: set, Server: true, Log: p.cfg.Log}
		report, err := gc.Collect(ctx, g, p.Controller(), gc.Options{})
		check(t, err)
		if n, _ := report.Removed(); n != 0 {
			t.Errorf("%d removed", n)
		}
		p.Exec(`UPDATE archives SET unprotected_since = unprotected_since - interval '2 h'`)
		p.Exec(`UPDATE gc_state SET restored_at = restored_at - interval '2 h'`)
		report, err = gc.Collect(ctx, g, p.Controller(), gc.Options{})
		check(t, err)
		if n, _ := report.Removed(); n != 1 {
			t.Errorf("%d removed", n)
		}
		if _, err := p.cfg.Bucket.Meta(ctx, oldest); !errors.Is(err, store.ErrNotFound) {
			t.Error(err)
		}
	})
}

// An adoption that is ended anywhere is gone on with by the next.
func TestAdoptContinuesAfterInterruption(t *testing.T) {
	t.Parallel()
	p := newPlace(t, fixture.NewFolder(t))
	l := p.lose()
	var ids []workspace.ID
	for i := range 4 {
		ids = append(ids, newID())
		l.put(ids[i], fmt.Sprint("user", i%2), fmt.Sprint("w", i), "x", 0)
	}
	p.cfg.Admin = "user0"
	create := p.cfg.NewUser
	calls := 0
	p.cfg.NewUser = func(ctx context.Context, caller workspace.Caller, name, password string) (postgres.User, error) {
		if calls++; calls == 2 {
			return postgres.User{}, errors.New("the database is gone")
		}
		return create(ctx, caller, name, password)
	}
	r, err := p.cfg.run(t.Context())
	if err == nil || len(r.Users) != 1 || password(r.Users[0]) == "" {
		t.Fatalf("%v, %+v", err, r)
	}
	p.cfg.NewUser, p.cfg.Bucket, p.cfg.Admin = create, p.open(l.installation), ""
	r = p.run()
	if len(added(r)) != 1 || fixture.Query[int](p, `SELECT count(*) FROM workspaces`) != 4 {
		t.Errorf("%+v", r)
	}
}

// The adopted installation must have an administrator.
func TestAdoptRequiresAdministrator(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		owners   []string
		existing string // existing administrator; empty: none
		admin    string
		want     string // in the error; empty: none
		becomes  string
	}{
		"nobody":               {owners: []string{"ann"}, want: "--admin"},
		"named":                {owners: []string{"ann", "bob"}, admin: "ann", becomes: "ann"},
		"named, and not one":   {owners: []string{"ann"}, admin: "eve", want: "eve"},
		"one is there":         {owners: []string{"ann"}, existing: "root"},
		"and no other by name": {owners: []string{"ann", "admin"}, existing: "root"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, fixture.NewFolder(t))
			l := p.lose()
			for _, o := range c.owners {
				l.put(newID(), o, "w", "x", 0)
			}
			if c.existing != "" {
				_, err := p.auth.CreateUser(t.Context(), c.existing, "a long password", true)
				check(t, err)
			}
			p.cfg.Admin = c.admin
			before := p.rows()
			r, err := p.cfg.run(t.Context())
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) || before != p.rows() {
					t.Errorf("%v", err)
				}
				return
			}
			check(t, err)
			for _, u := range added(r) {
				if u.Admin != (u.Username == c.becomes) {
					t.Errorf("%+v", u)
				}
			}
		})
	}
}

func TestAdoptOwners(t *testing.T) {
	t.Parallel()
	p := newPlace(t, fixture.NewFolder(t))
	_, err := p.auth.CreateUser(t.Context(), "root", "a long password", true)
	check(t, err)
	l := p.lose()
	a, b, c, d := newID(), newID(), newID(), newID()
	l.put(a, "Root", "a", "x", 0) // in whatever case
	l.put(b, "bob", "b", "x", 0)
	l.put(c, "carol", "c", "x", 0)
	l.put(d, "no\x00body", strings.Repeat("ü", 300), "x", 0)
	p.cfg.Owners = map[string]string{"bob": "root"}
	r := p.run()
	got := outcomes(r)
	if got[a].Owner != "root" || got[b].Owner != "root" || got[c].Owner != "carol" || got[d].Result != arrivals.Left || r.Left != 2 {
		t.Errorf("%+v", got)
	}
	if list := added(r); len(list) != 1 || list[0].Username != "carol" {
		t.Errorf("%+v", r.Users)
	}
	// The one that is left finds an owner in a second run.
	p.cfg.Bucket, p.cfg.Owner = p.open(l.installation), "root"
	if got = outcomes(p.run()); got[d].Result != arrivals.Added || got[d].Owner != "root" || len([]rune(got[d].Name)) != 255 {
		t.Errorf("%+v", got[d])
	}
	p.cfg.Owner = "nobody"
	if _, err := p.cfg.run(t.Context()); err != nil {
		t.Errorf("with nothing to adopt nobody is needed: %v", err)
	}
	l.put(newID(), "dave", "d", "x", 0)
	if _, err := p.cfg.run(t.Context()); err == nil || !strings.Contains(err.Error(), "nobody") {
		t.Error(err)
	}
}

// Whose archives: never by guessing.
func TestAdoptChoosesInstallation(t *testing.T) {
	t.Parallel()
	p := newPlace(t, fixture.NewFolder(t))
	_, err := p.auth.CreateUser(t.Context(), "root", "a long password", true)
	check(t, err)
	p.cfg.Owner = "root"
	fails := func(want string) {
		t.Helper()
		before := p.rows()
		if _, err := p.cfg.run(t.Context()); err == nil || !strings.Contains(err.Error(), want) || before != p.rows() {
			t.Errorf("%v, want %q", err, want)
		}
	}
	fails("no archives")
	one, two := p.lose(), p.lose()
	a, b := newID(), newID()
	one.put(a, "ann", "a", "x", 0)
	two.put(b, "ann", "b", "x", 0)
	fails("--installation")
	p.cfg.Installation = uuid.NewString()
	fails("has no installation")
	p.cfg.Installation = one.installation
	p.cfg.Alone = func(context.Context) error { return errors.New("a server runs") }
	fails("a server runs")
	p.cfg.Alone = func(context.Context) error { return nil }
	r := p.run()
	others := "also has archives of other installations: " + two.installation
	if len(r.Workspaces) != 1 || r.Workspaces[0].ID != string(a) || !strings.Contains(strings.Join(r.Warnings, "\n"), others) {
		t.Errorf("%+v", r)
	}
	// From now on it has its own, and says that there are others.
	p.cfg.Bucket, p.cfg.Installation = p.open(one.installation), ""
	if r = p.run(); r.Source != one.installation || len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], others) {
		t.Errorf("%+v", r)
	}
}

// What another installation has archived is copied, and stays what it is there.
func TestAdoptCopiesOtherInstallation(t *testing.T) {
	onBoth(t, func(t *testing.T, p *place) {
		ctx := t.Context()
		root, err := p.auth.CreateUser(ctx, "root", "a long password", true)
		check(t, err)
		_, err = p.DB.CreateWorkspace(ctx, workspace.Caller{UserID: root.ID}, postgres.NewWorkspace{
			Name: "mine", ImageRef: "i", Desired: workspace.DesiredStandby, StorageBackend: workspace.StorageDockerVolume,
		})
		check(t, err)
		l := p.lose()
		good, bad, old := newID(), newID(), newID()
		l.put(good, "root", "mine", "1", 0)
		key, meta := l.put(good, "root", "mine", "2", time.Hour)
		damaged, m := l.put(bad, "root", "bad", "3", time.Hour)
		p.putObject(damaged, bytes.Repeat([]byte("x"), int(m.Size)))
		oldDamaged, m := l.put(old, "root", "old", "4", 0)
		p.putObject(oldDamaged, bytes.Repeat([]byte("x"), int(m.Size)))
		l.put(old, "root", "old", "5", time.Hour)
		theirs := func() (out []string) {
			for _, o := range p.objects() {
				if strings.HasPrefix(o, l.installation) {
					out = append(out, o)
				}
			}
			return out
		}
		before := theirs()
		p.cfg.Installation = l.installation
		r := p.run()
		want := map[workspace.ID]outcome{
			good: {arrivals.Added, "root", "mine (2)"}, bad: {arrivals.Left, "root", "bad"}, old: {arrivals.Added, "root", "old"},
		}
		if d := cmp.Diff(want, outcomes(r)); d != "" || p.taking != 0 || len(r.Warnings) != 1 {
			t.Errorf("%s %+v", d, r)
		}
		if id, err := p.DB.Installation(ctx); err != nil || id != p.id {
			t.Errorf("%s, %v", id, err)
		}
		if d := cmp.Diff(before, theirs()); d != "" {
			t.Errorf("the other installation's: %s", d)
		}
		ws, err := p.DB.Workspace(ctx, workspace.System, good)
		check(t, err)
		if ws.ArchiveKey != strings.Replace(key, l.installation, p.id, 1) || ws.ArchiveDigest != meta.SHA256 {
			t.Errorf("%+v", ws)
		}
		body, err := p.cfg.Bucket.Open(ctx, ws.ArchiveKey, 0)
		check(t, err)
		defer body.Close()
		if _, err := archive.Verify(ctx, body, meta, nil); err != nil {
			t.Error(err)
		}
		// It can be restored like any other.
		if look, err := p.cfg.Bucket.State(ctx, ws); err != nil || fmt.Sprint(look) != "1" {
			t.Errorf("%v, %v", look, err)
		}
		if n := fixture.Query[int](p, `SELECT count(*) FROM archives WHERE key NOT LIKE $1`, p.id+"/%"); n != 0 {
			t.Errorf("%d archives are another installation's", n)
		}
		// Again: what is here is here.
		r = p.run()
		if got := outcomes(r); got[good].Result != arrivals.Left || got[bad].Result != arrivals.Left {
			t.Errorf("%+v", got)
		}
	})
}

// A bucket that fails while it is read has nothing adopted.
func TestAdoptNothingOnBucketError(t *testing.T) {
	t.Parallel()
	folder := fixture.NewFolder(t)
	p := newPlace(t, folder)
	l := p.lose()
	l.put(newID(), "admin", "w", "x", 0)
	before := p.rows()
	check(t, os.Rename(folder.Dir, folder.Dir+".away"))
	if _, err := p.cfg.run(t.Context()); !errors.Is(err, store.ErrUnavailable) || before != p.rows() {
		t.Error(err)
	}
}
