package postgres_test

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"codehub/internal/postgres"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/workspace"
)

// administrator creates an administrator.
func administrator(e *env, name string) workspace.Caller {
	e.Helper()
	u, err := e.CreateUser(e.Context(), postgres.User{Username: name, PasswordHash: "x", Admin: true})
	if err != nil {
		e.Fatal(err)
	}
	return workspace.Caller{UserID: u.ID, Username: u.Username, Admin: true}
}

// TestAdministrationRequiresAdministrator: rights come from the database, not from the Caller.
func TestAdministrationRequiresAdministrator(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	boss := administrator(e, "boss")
	u, err := e.CreateUser(ctx, postgres.User{Username: "eve", PasswordHash: "x"})
	if err != nil {
		t.Fatal(err)
	}
	yes := true
	for who, caller := range map[string]workspace.Caller{
		"a user": {UserID: u.ID}, "one who says so": {UserID: u.ID, Admin: true}, "nobody": {}, "an id that is none": {UserID: "x", Admin: true},
	} {
		calls := map[string]func() error{
			"status":  func() error { _, err := e.Overview(ctx, caller); return err },
			"orphans": func() error { _, _, err := e.Orphans(ctx, caller, postgres.Page{}); return err },
			"names":   func() error { _, err := e.NamesOf(ctx, caller, nil); return err },
			"node":    func() error { return e.RecordDeadNode(ctx, caller, "node1") },
			"list":    func() error { _, err := e.Accounts(ctx, caller, postgres.AccountFilter{}); return err },
			"read":    func() error { _, err := e.Account(ctx, caller, boss.UserID); return err },
			"create": func() error {
				_, err := e.CreateAccount(ctx, caller, postgres.User{Username: "new", PasswordHash: "x"})
				return err
			},
			"patch": func() error {
				_, err := e.PatchAccount(ctx, caller, u.ID, postgres.AccountPatch{Admin: &yes})
				return err
			},
		}
		for what, call := range calls {
			if err := call(); workspace.CodeOf(err) != workspace.CodeForbidden {
				t.Errorf("%s by %s: %v", what, who, err)
			}
		}
	}
	if names, err := e.NamesOf(ctx, boss, []workspace.ID{workspace.ID(uuid.NewString())}); err != nil || len(names) > 0 {
		t.Errorf("names of unknown workspaces: %v, %v", names, err)
	}
	list, err := e.Accounts(ctx, boss, postgres.AccountFilter{})
	if err != nil || len(list.Users) != 2 || list.Users[1].Admin {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestConcurrentDemotionsKeepAdministrator: of concurrent changes, one leaves the last administrator.
func TestConcurrentDemotionsKeepAdministrator(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	var admins []workspace.Caller
	for i := range 6 {
		admins = append(admins, administrator(e, fmt.Sprint("admin", i)))
	}
	no, yes := false, true
	var wg sync.WaitGroup
	for i, by := range admins {
		for j, whom := range admins {
			wg.Go(func() {
				p := postgres.AccountPatch{Admin: &no}
				if (i+j)%2 == 0 {
					p = postgres.AccountPatch{Disabled: &yes}
				}
				_, err := e.PatchAccount(e.Context(), by, whom.UserID, p)
				switch workspace.CodeOf(err) {
				case "", workspace.CodeForbidden, workspace.CodeLastAdmin:
				default:
					e.Errorf("%v", err)
				}
			})
		}
	}
	wg.Wait()
	var left int
	if err := e.raw.QueryRow(t.Context(), `SELECT count(*) FROM users WHERE admin AND NOT disabled`).Scan(&left); err != nil || left != 1 {
		t.Errorf("%d administrators are left, %v", left, err)
	}
}

// TestCustomLimitCountsFromNextStart: a user's custom limit counts from the next start on, and is read under the
// limits' lock.
func TestCustomLimitCountsFromNextStart(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Limits: postgres.Limits{PerUser: 5}})
	ctx := t.Context()
	boss := administrator(e, "boss")
	set := func(n *int) {
		t.Helper()
		if _, err := e.PatchAccount(ctx, boss, boss.UserID, postgres.AccountPatch{MaxRunning: workspace.Optional[int]{Set: true, Value: n}}); err != nil {
			t.Fatal(err)
		}
	}
	number := func(n int) *int { return &n }
	start := func(name string) error {
		_, err := e.CreateWorkspace(ctx, boss, postgres.NewWorkspace{
			Name: name, ImageRef: "i", StorageBackend: workspace.StorageDockerVolume, Desired: workspace.DesiredRunning,
		})
		return err
	}
	set(number(1))
	if err := start("a"); err != nil {
		t.Fatal(err)
	}
	if err := start("b"); workspace.CodeOf(err) != workspace.CodeLimitExceeded {
		t.Fatalf("above the custom limit: %v", err)
	}
	// A start that waited for the lock uses the limit as it is then.
	for _, c := range []struct {
		during *int
		ok     bool
	}{{number(2), true}, {number(1), false}, {number(0), true}, {number(2), false}, {nil, true}} {
		held, err := e.raw.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := held.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, int64(0x636f646568756202)); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- start(fmt.Sprint("w", time.Now().UnixNano())) }()
		for waits := 0; waits == 0; time.Sleep(time.Millisecond) {
			if err := e.raw.QueryRow(ctx, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
				AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`).Scan(&waits); err != nil {
				t.Fatal(err)
			}
		}
		set(c.during)
		if err := held.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		if err := <-done; (err == nil) != c.ok {
			t.Errorf("with the limit %v set in the meantime: %v", c.during, err)
		}
	}
}

// A server with one account adds and enables no second one, whichever way.
func TestOneAccount(t *testing.T) {
	t.Parallel()
	d := fixture.NewDatabase(t, postgres.Options{OneAccount: true})
	ctx := t.Context()
	made, err := d.DB.CreateFirstUser(ctx, netip.Addr{}, postgres.User{Username: "ann", PasswordHash: "x", Admin: true})
	if err != nil {
		t.Fatal(err)
	}
	ann := workspace.Caller{UserID: made.ID, Username: "ann", Admin: true}
	refused := func(how string, err error) {
		t.Helper()
		if workspace.CodeOf(err) != workspace.CodeOneAccount {
			t.Errorf("%s: %v", how, err)
		}
	}
	_, err = d.DB.CreateAccount(ctx, ann, postgres.User{Username: "bob", PasswordHash: "x"})
	refused("an administrator", err)
	_, err = d.DB.CreateUser(ctx, postgres.User{Username: "bob", PasswordHash: "x"})
	refused("the server", err)
	_, err = signIn(t, d, "bob", "token", 1)
	refused("a first login with an identity", err)

	bob := fixture.Query[string](d, `INSERT INTO users (id, username, username_key, password_hash, disabled) VALUES (gen_random_uuid(), 'bob', 'bob', 'x', true) RETURNING id::text`)
	no, yes := false, true
	_, err = d.DB.PatchAccount(ctx, ann, bob, postgres.AccountPatch{Disabled: &no})
	refused("enable another one", err)
	// Those of an earlier version remain, and can be disabled.
	d.Change(`UPDATE users SET disabled = false WHERE id = $1`, bob)
	for _, to := range []*bool{&no, &yes} {
		if _, err := d.DB.PatchAccount(ctx, ann, bob, postgres.AccountPatch{Disabled: to}); err != nil {
			t.Error(err)
		}
	}
}
