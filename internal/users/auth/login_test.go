package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"codehub/internal/workspace"
)

func TestLockedUntil(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	for failures, want := range map[int]time.Duration{
		0: 0, 1: 0, 4: 0, 5: 30 * time.Second, 6: time.Minute, 7: 2 * time.Minute, 8: 4 * time.Minute, 9: 8 * time.Minute,
		10: 16 * time.Minute, 11: 30 * time.Minute, 12: 30 * time.Minute, 1000: 30 * time.Minute, 1 << 40: 30 * time.Minute,
	} {
		until := lockedUntil(failures, now)
		switch {
		case want == 0 && until != nil:
			t.Errorf("%d failures: locked until %v", failures, until)
		case want > 0 && (until == nil || until.Sub(now) != want):
			t.Errorf("%d failures: %v, want %v", failures, until, want)
		}
	}
}

// Several servers, also one that has just started, lock out together, and none tells by it which
// names are those of users.
func TestLockoutOnAllServers(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "http://localhost")
	if _, err := e.CreateUser(t.Context(), "bob", password, false); err != nil {
		t.Fatal(err)
	}
	e.Change(`UPDATE users SET password_hash = '' WHERE username = 'bob'`) // has an identity provider
	server := func() *Auth {
		a := New(e.DB, Config{Log: slog.New(slog.DiscardHandler)})
		a.hasher, a.refusalInterval = e.hasher, time.Millisecond
		return a
	}
	names := []string{"Ann", "bob", "nobody", "eve"}
	one, two := server(), server()
	for i, step := range []struct {
		at     *Auth
		pass   time.Duration // before
		expire bool          // the failures before
		want   workspace.Code
	}{
		{one, 0, false, workspace.CodeBadCredentials},
		{one, 0, false, workspace.CodeBadCredentials},
		{one, 0, false, workspace.CodeBadCredentials},
		{one, 0, false, workspace.CodeBadCredentials},
		{two, 0, true, workspace.CodeBadCredentials},
		{two, 0, false, workspace.CodeBadCredentials},
		{one, 0, false, workspace.CodeBadCredentials},
		{one, 0, false, workspace.CodeBadCredentials},
		{one, 0, false, workspace.CodeBadCredentials},
		{two, 0, false, workspace.CodeLockedOut},
		{server(), 0, false, workspace.CodeLockedOut},
		{server(), 31 * time.Second, false, workspace.CodeBadCredentials},
		{one, 31 * time.Second, false, workspace.CodeLockedOut},
		{two, 30 * time.Second, false, workspace.CodeBadCredentials},
	} {
		e.pass(step.pass)
		if step.expire {
			e.expire()
		}
		given := "wrong password"
		if step.want == workspace.CodeLockedOut {
			given = password // the right one does not help
		}
		for _, name := range names {
			if _, err := step.at.Login(t.Context(), name, given, from); workspace.CodeOf(err) != step.want {
				t.Errorf("step %d, %s: %v, want %s", i, name, err, step.want)
			}
		}
	}
	e.pass(time.Hour)
	e.login()
	if u, err := e.DB.UserByName(t.Context(), "ann"); err != nil || u.FailedLogins != 0 || u.LockedUntil != nil {
		t.Errorf("after a good login: %+v, %v", u, err)
	}
}

// Parallel guesses are counted one by one: none passes between the check and the
// count.
func TestLockoutWithParallelAttempts(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "http://localhost")
	var wg sync.WaitGroup
	var mu sync.Mutex
	codes := map[workspace.Code]int{}
	for i := range 100 {
		wg.Go(func() {
			_, err := e.Login(t.Context(), "ANN", fmt.Sprint("guess ", i), from)
			mu.Lock()
			defer mu.Unlock()
			codes[workspace.CodeOf(err)]++
		})
	}
	wg.Wait()
	if codes[workspace.CodeBadCredentials] != 5 || codes[workspace.CodeBadCredentials]+codes[workspace.CodeLockedOut]+codes[workspace.CodeTooManyAttempts] != 100 {
		t.Errorf("answers: %v", codes)
	}
	if u, err := e.DB.UserByName(t.Context(), "ann"); err != nil || u.FailedLogins != 5 {
		t.Errorf("%d failures counted, %v", u.FailedLogins, err)
	}
	if len(e.names.by) != 0 {
		t.Errorf("%d names are still in turn", len(e.names.by))
	}
}

// Unknown names cost a password hash like existing ones, and both responses are
// delayed to a multiple of the same time.
func TestUnknownNameTiming(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "http://localhost")
	for range maxHashing {
		if err := e.hasher.queue.take(t.Context(), "other"); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"ann", "nobody"} {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := e.Login(ctx, name, "wrong password", from)
			done <- err
		}()
		for waiters(e.hasher.queue) == 0 {
			select {
			case err := <-done:
				t.Fatalf("%s was answered without a hash: %v", name, err)
			case <-time.After(time.Millisecond):
			}
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for range maxHashing {
		e.hasher.queue.release()
	}
	e.refusalInterval = 100 * time.Millisecond
	for _, name := range []string{"ann", "nobody", "", "../etc"} {
		start := time.Now()
		if _, err := e.Login(t.Context(), name, "wrong password", from); workspace.CodeOf(err) != workspace.CodeBadCredentials {
			t.Errorf("%q: %v", name, err)
		}
		if took := time.Since(start); took < e.refusalInterval {
			t.Errorf("%q was answered after %v", name, took)
		}
	}
}

func TestAttemptsAreLimited(t *testing.T) {
	t.Parallel()
	a, now := newAttempts(100), time.Now()
	for range 5 {
		a.fail("kept", now)
	}
	for i := range 1000 {
		a.fail("kept", now)
		a.fail(fmt.Sprint("name ", i), now)
	}
	if len(a.by) != 100 || a.used.Len() != 100 {
		t.Errorf("%d and %d are remembered", len(a.by), a.used.Len())
	}
	if a.lockedUntil("kept") == nil || a.lockedUntil("name 1") != nil {
		t.Error("the least recently used was not the one forgotten")
	}
}

func TestRefusedLogin(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "http://localhost")
	long := string(make([]byte, MaxPassword+1))
	for _, c := range []struct{ name, password string }{
		{"ann", ""}, {"ann", long}, {"", password}, {"ann\x00", password}, {"a' OR 1=1--", password},
	} {
		if _, err := e.Login(t.Context(), c.name, c.password, from); workspace.CodeOf(err) != workspace.CodeBadCredentials {
			t.Errorf("%q: %v", c.name, err)
		}
	}
	e.Change(`UPDATE users SET disabled = true`)
	if _, err := e.Login(t.Context(), "ann", password, from); workspace.CodeOf(err) != workspace.CodeForbidden {
		t.Errorf("disabled: %v", err)
	}
	if _, err := e.Login(t.Context(), "ann", "wrong password", from); workspace.CodeOf(err) != workspace.CodeBadCredentials {
		t.Errorf("disabled concurrently: %v", err)
	}
	e.Change(`UPDATE users SET disabled = false, suspended_for = 'refused'`)
	if _, err := e.Login(t.Context(), "ann", password, from); workspace.CodeOf(err) != workspace.CodeSuspended {
		t.Errorf("suspended: %v", err)
	}
	e.DB.Close()
	if _, err := e.Login(t.Context(), "ann", password, from); err == nil || workspace.CodeOf(err) == workspace.CodeBadCredentials {
		t.Errorf("without a database: %v", err)
	}
}

// Earlier versions accepted invisible letters: such a user can still log in.
func TestUserWithInvisibleLetter(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "http://localhost")
	if _, err := e.CreateUser(t.Context(), "ann\u3164", password, false); workspace.CodeOf(err) != workspace.CodeInvalid {
		t.Errorf("a new user: %v", err)
	}
	e.Change(`UPDATE users SET username = $1, username_key = $2 WHERE username = 'ann'`, "ann\u3164", "ann\u1160")
	if _, err := e.Login(t.Context(), "ann\u3164", password, from); err != nil {
		t.Errorf("an existing user: %v", err)
	}
}

func TestSetup(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "http://localhost")
	ctx := t.Context()
	if needed, err := e.SetupNeeded(ctx); err != nil || needed {
		t.Errorf("with a user: needed %v, %v", needed, err)
	}
	if code, err := e.SetupCode(ctx); err != nil || code != "" {
		t.Errorf("with a user there is the code %q, %v", code, err)
	}

	e.Change(`DELETE FROM users`)
	e.hasUsers.Store(false)
	if _, err := e.Setup(ctx, "", "root", password, from); workspace.CodeOf(err) != workspace.CodeForbidden {
		t.Errorf("without a code: %v", err)
	}
	code, err := e.SetupCode(ctx)
	if err != nil || len(code) != 19 {
		t.Fatalf("code %q, %v", code, err)
	}
	if again, err := e.SetupCode(ctx); err != nil || again != code {
		t.Errorf("another code: %q, %v", again, err)
	}
	second := New(e.DB, Config{Log: slog.New(slog.DiscardHandler)}) // a load balancer sends the setup page to any server
	if same, err := second.SetupCode(ctx); err != nil || same != code {
		t.Errorf("a second server has the code %q, not %q, %v", same, code, err)
	}
	if _, err := second.Setup(ctx, code, "root", "short", from); workspace.CodeOf(err) != workspace.CodeInvalid {
		t.Errorf("a second server with a short password: %v", err)
	}
	for range 4 {
		if _, err := e.Setup(ctx, "AAAA-AAAA-AAAA-AAAA", "root", password, from); workspace.CodeOf(err) != workspace.CodeForbidden {
			t.Errorf("wrong code: %v", err)
		}
	}
	if _, err := e.Setup(ctx, code, "root", password, from); workspace.CodeOf(err) != workspace.CodeLockedOut {
		t.Errorf("after five failures: %v", err)
	}
	elsewhere := Client{Address: netip.MustParseAddr("192.0.2.77")} // the failures of one address do not lock another one
	if _, err := e.Setup(ctx, code, "root", "short", elsewhere); workspace.CodeOf(err) != workspace.CodeInvalid {
		t.Errorf("short password: %v", err)
	}
	e.attempts = newAttempts(10)

	var wg sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for i := range 8 {
		wg.Go(func() {
			entry, err := e.Setup(ctx, " "+code[:4]+code[5:]+" ", fmt.Sprint("root", i), password, from)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				s := entry.Session
				made++
				if !s.User.Admin || e.who(request(cookie(plainCookie, s.ID)), false) != s.User.Username {
					t.Errorf("made %+v", s.User)
				}
			} else if workspace.CodeOf(err) != workspace.CodeForbidden {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n, err := e.DB.UserCount(ctx); err != nil || n != 1 || made != 1 {
		t.Errorf("%d users, %d made, %v", n, made, err)
	}
}

func TestEnsureAdmin(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "http://localhost")
	if made, err := e.EnsureAdmin(t.Context(), password); err != nil || made {
		t.Errorf("with a user: %v, %v", made, err)
	}
	e.Change(`DELETE FROM users`)
	e.hasUsers.Store(false)
	if _, err := e.EnsureAdmin(t.Context(), "short"); workspace.CodeOf(err) != workspace.CodeInvalid {
		t.Errorf("short password: %v", err)
	}
	if made, err := e.EnsureAdmin(t.Context(), password); err != nil || !made {
		t.Errorf("first start: %v, %v", made, err)
	}
	if s, err := e.Login(t.Context(), "admin", password, from); err != nil || !s.User.Admin {
		t.Errorf("admin: %+v, %v", s.User, err)
	}
}

// A login or a change that runs while the password changes does not accept the old
// one; a renewed hash of the same password has no effect.
func TestPasswordChangeDuringLogin(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "http://localhost")
	caller := e.login().Caller
	// during runs f while it waits to hash, and replaces the user's hash meanwhile.
	during := func(hash string, f func() error) error {
		t.Helper()
		for range maxHashing {
			if err := e.hasher.queue.take(t.Context(), "other"); err != nil {
				t.Fatal(err)
			}
		}
		done := make(chan error, 1)
		go func() { done <- f() }()
		await(t, e.hasher.queue, 1)
		e.Change(`UPDATE users SET password_hash = $1`, hash)
		for range maxHashing {
			e.hasher.queue.release()
		}
		return <-done
	}
	login := func() error { _, err := e.Login(t.Context(), "ann", password, from); return err }
	hash := func(password string) string {
		h, err := e.hasher.Hash(t.Context(), "other", password)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	if err := during(hash(password), login); err != nil {
		t.Errorf("renewed meanwhile: %v", err)
	}
	if err := during(hash("another horse"), login); workspace.CodeOf(err) != workspace.CodeBadCredentials {
		t.Errorf("another password meanwhile: %v", err)
	}
	err := during(hash("a third horse"), func() error {
		_, err := e.ChangePassword(t.Context(), caller, "another horse", "mine again", from)
		return err
	})
	if workspace.CodeOf(err) != workspace.CodeUnauthenticated {
		t.Errorf("changed concurrently: %v", err)
	}
	if _, err := e.Login(t.Context(), "ann", "a third horse", from); err != nil {
		t.Errorf("after the last change: %v", err)
	}
}
