package postgres_test

import (
	"encoding/hex"
	"fmt"
	"sync"
	"testing"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/workspace"
)

// signIn logs a subject in, with a session of its own.
func signIn(t *testing.T, d *fixture.Database, subject, token string, session byte) (postgres.User, error) {
	t.Helper()
	hash := make([]byte, 32)
	hash[0] = session
	return d.DB.SignIn(t.Context(), postgres.SignIn{
		Issuer: "https://issuer", Subject: subject, NewUser: "user-" + subject, Session: hash, ProviderSession: "sid-" + token, Expires: time.Now().Add(time.Hour),
		Claims: postgres.Claims{Username: "user " + subject, Groups: []string{"a", "a", "b"}, RefreshToken: []byte(token)},
	})
}

func claim(t *testing.T, d *fixture.Database) []postgres.DueIdentity {
	t.Helper()
	list, err := d.DB.ClaimIdentities(t.Context(), []string{"https://issuer"}, 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// An identity is checked by one server at a time, and what the provider said about a refresh
// token does not count once a login has brought another one.
func TestLoginSupersedesCheck(t *testing.T) {
	t.Parallel()
	d := fixture.NewDatabase(t, postgres.Options{})
	d.AddUser("first")
	u, err := signIn(t, d, "s1", "one", 1)
	if err != nil {
		t.Fatal(err)
	}
	due := claim(t, d)
	if len(due) != 1 || string(due[0].RefreshToken) != "one" || len(claim(t, d)) != 0 {
		t.Fatalf("%+v", due)
	}
	if _, err := signIn(t, d, "s1", "two", 2); err != nil {
		t.Fatal(err)
	}
	for _, why := range []postgres.Suspension{postgres.SuspendedRefused, postgres.SuspendedNotAllowed} {
		if err := d.DB.EndIdentity(t.Context(), due[0], why); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.DB.ConfirmIdentity(t.Context(), due[0], postgres.Claims{RefreshToken: []byte("from one")}); err != nil {
		t.Fatal(err)
	}
	if u, err = d.DB.User(t.Context(), u.ID); err != nil || u.Suspended != "" {
		t.Errorf("%+v, %v", u, err)
	}
	due = claim(t, d)
	if len(due) != 1 || string(due[0].RefreshToken) != "two" || fixture.Query[int](d, `SELECT count(*) FROM sessions`) != 2 {
		t.Errorf("%+v", due)
	}
	if err := d.DB.EndIdentity(t.Context(), due[0], postgres.SuspendedRefused); err != nil {
		t.Fatal(err)
	}
	if u, err = d.DB.User(t.Context(), u.ID); err != nil || u.Suspended != postgres.SuspendedRefused || fixture.Query[int](d, `SELECT count(*) FROM sessions`) != 0 {
		t.Errorf("%+v, %v", u, err)
	}
}

// Concurrent first logins of a subject make one user.
func TestConcurrentFirstLogins(t *testing.T) {
	t.Parallel()
	d := fixture.NewDatabase(t, postgres.Options{})
	d.AddUser("first")
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() { _, errs[i] = signIn(t, d, "s1", "one", byte(i+1)) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	if n := fixture.Query[int](d, `SELECT count(*) FROM users`); n != 2 {
		t.Errorf("%d users", n)
	}
}

// The first user of an installation has to administer it.
func TestFirstUserByIdentity(t *testing.T) {
	t.Parallel()
	d := fixture.NewDatabase(t, postgres.Options{})
	if _, err := signIn(t, d, "s1", "one", 1); workspace.CodeOf(err) != workspace.CodeForbidden {
		t.Errorf("a user without rights set codehub up: %v", err)
	}
	if n := fixture.Query[int](d, `SELECT count(*) FROM users`); n != 0 {
		t.Errorf("%d users", n)
	}
	yes := true
	u, err := d.DB.SignIn(t.Context(), postgres.SignIn{Issuer: "i", Subject: "s", NewUser: "boss", Session: make([]byte, 32), Expires: time.Now().Add(time.Hour),
		Claims: postgres.Claims{Admin: &yes, RefreshToken: []byte("x")}})
	if err != nil || !u.Admin {
		t.Errorf("%+v, %v", u, err)
	}
}

// A login is refused whose session the provider has ended meanwhile.
func TestLogoutBeforeLogin(t *testing.T) {
	t.Parallel()
	d := fixture.NewDatabase(t, postgres.Options{})
	d.AddUser("first")
	l := postgres.ProviderLogout{Issuer: "https://issuer", TokenID: "t", Session: "sid-one", Expires: time.Now().Add(time.Hour)}
	if _, first, err := d.DB.ProviderLogout(t.Context(), l); err != nil || !first {
		t.Fatal(first, err)
	}
	if _, err := signIn(t, d, "s1", "one", 1); workspace.CodeOf(err) != workspace.CodeUnauthenticated {
		t.Errorf("the login: %v", err)
	}
	if _, err := signIn(t, d, "s1", "two", 2); err != nil {
		t.Errorf("another session: %v", err)
	}
	// All sessions of the subject: a login that began before it is refused.
	l = postgres.ProviderLogout{Issuer: "https://issuer", TokenID: "t2", Subject: "s1", Expires: time.Now().Add(time.Hour)}
	if ended, first, err := d.DB.ProviderLogout(t.Context(), l); err != nil || !first || ended != 1 {
		t.Fatal(ended, first, err)
	}
	at := fixture.Query[time.Time](d, `SELECT received_at FROM provider_logouts WHERE token_id = 't2'`)
	for begun, refused := range map[time.Time]bool{at.Add(-time.Second): true, at.Add(time.Second): false} {
		_, err := d.DB.SignIn(t.Context(), postgres.SignIn{
			Issuer: "https://issuer", Subject: "s1", Session: make([]byte, 32), Begun: begun, Expires: time.Now().Add(time.Hour), Claims: postgres.Claims{RefreshToken: []byte("x")},
		})
		if (workspace.CodeOf(err) == workspace.CodeUnauthenticated) != refused {
			t.Errorf("begun %v after the logout: %v", begun.Sub(at), err)
		}
	}
	// A session of the subject whose provider's session is not known ends with any.
	d.Exec(`UPDATE sessions SET provider_session = NULL`)
	if _, err := signIn(t, d, "s2", "other", 3); err != nil {
		t.Fatal(err)
	}
	d.Exec(`UPDATE sessions SET provider_session = NULL`)
	l = postgres.ProviderLogout{Issuer: "https://issuer", TokenID: "t3", Subject: "s1", Session: "sid", Expires: time.Now().Add(time.Hour)}
	if ended, _, err := d.DB.ProviderLogout(t.Context(), l); err != nil || ended != 1 {
		t.Error(ended, err)
	}
	d.Exec(`UPDATE provider_logouts SET expires_at = now()`)
	if err := d.DB.DeleteExpiredLogouts(t.Context()); err != nil || fixture.Query[int](d, `SELECT count(*) FROM provider_logouts`) != 0 {
		t.Error(err)
	}
}

// withPassword gives a user, who has the only session, the password hash "old".
func withPassword(d *fixture.Database, u postgres.User) workspace.Caller {
	d.Exec(`UPDATE users SET password_hash = 'old' WHERE id = $1`, u.ID)
	return workspace.Caller{UserID: u.ID, Username: u.Username, Session: fixture.Query[string](d, `SELECT encode(hash, 'hex') FROM sessions`)}
}

// The session that takes the place of another one at a change of the password ends with what that
// one would have ended with, and there is none if that one has ended.
func TestSessionAfterPasswordChange(t *testing.T) {
	t.Parallel()
	logout := postgres.ProviderLogout{Issuer: "https://issuer", TokenID: "t", Session: "sid-one", Expires: time.Now().Add(time.Hour)}
	for name, end := range map[string]func(d *fixture.Database, caller workspace.Caller, identity string) error{
		"the provider ends its session": func(d *fixture.Database, _ workspace.Caller, _ string) error {
			_, _, err := d.DB.ProviderLogout(t.Context(), logout)
			return err
		},
		"the identity is unlinked": func(d *fixture.Database, caller workspace.Caller, identity string) error {
			return d.DB.UnlinkIdentity(t.Context(), caller, postgres.PasswordProof("new"), identity)
		},
		"the time of the login is over": func(d *fixture.Database, _ workspace.Caller, _ string) error {
			d.Exec(`UPDATE sessions SET expires_at = now() WHERE expires_at < now() + interval '61 minutes'`)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := fixture.NewDatabase(t, postgres.Options{})
			d.AddUser("first")
			u, err := signIn(t, d, "s1", "one", 1)
			if err != nil {
				t.Fatal(err)
			}
			caller := withPassword(d, u)
			next := &postgres.Successor{Hash: hash("next")}
			if _, err := d.DB.SetPassword(t.Context(), caller, "old", "new", next); err != nil {
				t.Fatal(err)
			}
			valid := func() bool {
				_, _, err := d.DB.SessionUser(t.Context(), next.Hash)
				return err == nil
			}
			if n := fixture.Query[int](d, `SELECT count(*) FROM sessions`); n != 1 || !valid() {
				t.Fatalf("%d sessions, the next one is valid: %v", n, valid())
			}
			if err := end(d, caller, fixture.Query[string](d, `SELECT id FROM user_identities`)); err != nil {
				t.Fatal(err)
			}
			if valid() {
				t.Error("the next session goes on")
			}
			caller.Session = hex.EncodeToString(next.Hash)
			if _, err := d.DB.SetPassword(t.Context(), caller, "new", "newer", next); workspace.CodeOf(err) != workspace.CodeUnauthenticated {
				t.Errorf("a change by an ended session: %v", err)
			}
		})
	}
}

// A logout of the provider that comes during the change of the password ends the session, too.
func TestProviderLogoutDuringPasswordChange(t *testing.T) {
	t.Parallel()
	d := fixture.NewDatabase(t, postgres.Options{})
	d.AddUser("first")
	u, err := signIn(t, d, "s1", "one", 1)
	if err != nil {
		t.Fatal(err)
	}
	rounds := 5
	if harness.Verifying() {
		rounds = 20
	}
	for n := range rounds {
		caller := withPassword(d, u)
		next := &postgres.Successor{Hash: hash(fmt.Sprint("next ", n))}
		var both sync.WaitGroup
		both.Go(func() {
			_, err := d.DB.SetPassword(t.Context(), caller, "old", "new", next)
			if err != nil && workspace.CodeOf(err) != workspace.CodeUnauthenticated {
				t.Error(err)
			}
		})
		both.Go(func() {
			l := postgres.ProviderLogout{Issuer: "https://issuer", TokenID: fmt.Sprint(n), Session: fmt.Sprintf("sid-%d", n), Expires: time.Now().Add(time.Hour)}
			if n == 0 {
				l.Session = "sid-one"
			}
			if ended, _, err := d.DB.ProviderLogout(t.Context(), l); err != nil || ended != 1 {
				t.Errorf("%d sessions ended, %v", ended, err)
			}
		})
		both.Wait()
		if n := fixture.Query[int](d, `SELECT count(*) FROM sessions`); n != 0 {
			t.Fatalf("%d sessions are left", n)
		}
		if _, err := signIn(t, d, "s1", fmt.Sprint(n+1), byte(n+2)); err != nil {
			t.Fatal(err)
		}
	}
}

// Administrators who give up a provider do not lock out users with a password.
func TestForeignIdentity(t *testing.T) {
	t.Parallel()
	d := fixture.NewDatabase(t, postgres.Options{})
	d.AddUser("first")
	for _, subject := range []string{"with", "without"} {
		if _, err := signIn(t, d, subject, subject, subject[3]+byte(len(subject))); err != nil {
			t.Fatal(err)
		}
	}
	d.Change(`UPDATE users SET password_hash = 'x' WHERE username = 'user-with'`)
	list, err := d.DB.ForeignIdentities(t.Context(), nil, 10)
	if err != nil || len(list) != 2 {
		t.Fatal(list, err)
	}
	for _, i := range list {
		if err := d.DB.EndIdentity(t.Context(), i, postgres.SuspendedRefused); err != nil {
			t.Fatal(err)
		}
	}
	if got := fixture.Query[string](d, `SELECT string_agg(username || ' ' || active, ', ' ORDER BY username) FROM users WHERE username LIKE 'user-%'`); got != "user-with true, user-without false" {
		t.Error(got)
	}
	if n := fixture.Query[int](d, `SELECT count(*) FROM sessions`); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
}

// The rights of an administrator end with the identity or the setting that granted them, and
// those that an administrator has granted stay.
func TestGroupGrantEnds(t *testing.T) {
	t.Parallel()
	d := fixture.NewDatabase(t, postgres.Options{})
	d.AddUser("first")
	yes := true
	for name, end := range map[string]func(caller workspace.Caller) error{
		"unlinked": func(caller workspace.Caller) error {
			id := fixture.Query[string](d, `SELECT id::text FROM user_identities WHERE user_id = $1`, caller.UserID)
			return d.DB.UnlinkIdentity(t.Context(), caller, postgres.PasswordProof("x"), id)
		},
		"no-groups": func(caller workspace.Caller) error {
			list := claim(t, d)
			for _, due := range list {
				if due.UserID == caller.UserID {
					return d.DB.ConfirmIdentity(t.Context(), due, postgres.Claims{RefreshToken: []byte("next")})
				}
			}
			return workspace.NotFound("identity")
		},
	} {
		for _, granted := range []bool{false, true} {
			username := fmt.Sprint(name, "-", granted)
			hash := make([]byte, 32)
			copy(hash, username)
			in := postgres.SignIn{Issuer: "https://issuer", Subject: username, NewUser: username, Session: hash, Expires: time.Now().Add(time.Hour), Claims: postgres.Claims{RefreshToken: []byte(username)}}
			if granted {
				if _, err := d.DB.SignIn(t.Context(), in); err != nil {
					t.Fatal(err)
				}
				d.Exec(`UPDATE users SET admin = true WHERE username = $1`, username)
				in.Session[31] = 1
			}
			in.Admin = &yes
			u, err := d.DB.SignIn(t.Context(), in)
			if err != nil || !u.Admin {
				t.Fatalf("%+v, %v", u, err)
			}
			d.Exec(`UPDATE users SET password_hash = 'x' WHERE id = $1`, u.ID)
			d.Exec(`UPDATE user_identities SET claimed_until = NULL`)
			if err := end(workspace.Caller{UserID: u.ID, Username: u.Username, Admin: true}); err != nil {
				t.Fatal(err)
			}
			if u, err = d.DB.User(t.Context(), u.ID); err != nil || u.Admin != granted {
				t.Errorf("%s, granted by an administrator %v: %+v, %v", name, granted, u, err)
			}
		}
	}
}

// A user who was deleted comes back as a new one, also as an administrator by group.
func TestDeletedUserSignsInAgain(t *testing.T) {
	t.Parallel()
	d := fixture.NewDatabase(t, postgres.Options{})
	admin := d.AddUser("first")
	admin.Admin = true
	d.Exec(`UPDATE users SET admin = true WHERE id = $1`, admin.UserID)
	yes := true
	for i, group := range []*bool{nil, &yes} {
		in := postgres.SignIn{Issuer: "https://issuer", Subject: "s1", NewUser: fmt.Sprint("ann", i), Session: make([]byte, 32), Expires: time.Now().Add(time.Hour),
			Claims: postgres.Claims{RefreshToken: []byte("x"), Admin: group}}
		in.Session[0] = byte(i)
		first, err := d.DB.SignIn(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.DB.DeleteAccount(t.Context(), admin, first.ID, postgres.Removal{}); err != nil {
			t.Fatal(err)
		}
		if n := fixture.Query[int](d, `SELECT count(*) FROM user_identities`); n != 0 {
			t.Errorf("%d identities are left", n)
		}
		in.Session[1] = 1
		again, err := d.DB.SignIn(t.Context(), in)
		if err != nil || again.ID == first.ID || again.Admin != (group != nil) {
			t.Errorf("%+v, %v", again, err)
		}
		d.Exec(`DELETE FROM user_identities`)
	}
}
