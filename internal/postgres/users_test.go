package postgres_test

import (
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

func TestUsers(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	if n := must(e.UserCount(ctx))(t); n != 0 {
		t.Fatalf("%d users at first", n)
	}
	made := must(e.CreateUser(ctx, postgres.User{Username: "Ärger", PasswordHash: "h", Admin: true, MaxRunning: ptr(7)}))(t)
	if !workspace.ValidID(made.ID) || made.CreatedAt.IsZero() || made.CreatedAt.Location() != time.UTC {
		t.Fatalf("created %+v", made)
	}
	for _, name := range []string{"Ärger", "ärger", "ÄRGER", "A\u0308rger"} {
		got := must(e.UserByName(ctx, name))(t)
		if d := cmp.Diff(made, got); d != "" {
			t.Errorf("by the name %q: %s", name, d)
		}
		_, err := e.CreateUser(ctx, postgres.User{Username: name, PasswordHash: "h"})
		wantCode(t, err, workspace.CodeNameTaken)
	}
	if d := cmp.Diff(made, must(e.User(ctx, made.ID))(t)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"Ärger user.create"}, e.audited(made.ID)); d != "" {
		t.Error(d)
	}
	for _, id := range []string{"", "x", uuid.NewString()} {
		_, err := e.User(ctx, id)
		wantCode(t, err, workspace.CodeNotFound)
		wantCode(t, e.RecordLoginFailure(ctx, id, func(int, time.Time) *time.Time { return nil }), workspace.CodeNotFound)
		_, err = e.SetPassword(ctx, workspace.Caller{UserID: id}, "h", "h", nil)
		wantCode(t, err, workspace.CodeNotFound)
		wantCode(t, e.CreateSession(ctx, hash("s"), id, "", soon(time.Hour), postgres.Client{}), workspace.CodeNotFound)
	}
	_, err := e.UserByName(ctx, "nobody")
	wantCode(t, err, workspace.CodeNotFound)
	for _, name := range []string{"", "a\x00b", "\xff", strings.Repeat("x", 256)} {
		_, err = e.CreateUser(ctx, postgres.User{Username: name, PasswordHash: "h"})
		wantCode(t, err, workspace.CodeInvalid)
	}
	if n := must(e.UserCount(ctx))(t); n != 1 {
		t.Errorf("%d users in the end", n)
	}
}

func TestFirstUserIsCreatedOnce(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{MaxConns: 20})
	var made atomic.Int32
	var g errgroup.Group
	for i := range 20 {
		g.Go(func() error {
			_, err := e.CreateFirstUser(t.Context(), netip.Addr{}, postgres.User{Username: string(rune('a' + i)), PasswordHash: "h"})
			switch workspace.CodeOf(err) {
			case "":
				if err == nil {
					made.Add(1)
				}
				return err
			case workspace.CodeForbidden:
				return nil
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if made.Load() != 1 || must(e.UserCount(t.Context()))(t) != 1 {
		t.Fatalf("%d were the first user", made.Load())
	}
}

func TestConcurrentLoginFailuresAllCount(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	ann := e.user("ann")
	for what, record := range map[string]func(postgres.LockRule) error{
		"user": func(rule postgres.LockRule) error { return e.RecordLoginFailure(ctx, ann.UserID, rule) },
		"name": func(rule postgres.LockRule) error { return e.RecordNameFailure(ctx, "Nobody", rule) },
	} {
		var mu sync.Mutex
		counts := map[int]bool{}
		rule := func(n int, now time.Time) *time.Time {
			mu.Lock()
			defer mu.Unlock()
			counts[n] = true
			if n < 5 {
				return nil
			}
			return ptr(now.Add(time.Duration(n) * time.Minute))
		}
		until := func() *time.Time {
			if what == "name" {
				return must(e.NameLockedUntil(ctx, "NOBODY"))(t)
			}
			return must(e.User(ctx, ann.UserID))(t).LockedUntil
		}
		if err := record(rule); err != nil || until() != nil {
			t.Errorf("%s: locked until %v after one failure, %v", what, until(), err)
		}
		var g errgroup.Group
		for range 29 {
			g.Go(func() error { return record(rule) })
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		if at := until(); len(counts) != 30 || !counts[30] || at == nil || at.Before(soon(25*time.Minute)) {
			t.Errorf("%s: %d counts, locked until %v", what, len(counts), at)
		}
	}
	if err := e.ResetLoginFailures(ctx, ann.UserID); err != nil {
		t.Fatal(err)
	}
	if u := must(e.User(ctx, ann.UserID))(t); u.FailedLogins != 0 || u.LockedUntil != nil {
		t.Fatalf("after a reset: %+v", u)
	}
}

// Logins with many names do not fill the table: a name replaces another one.
func TestNameFailuresAreBounded(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	must(e.Installation(ctx))(t)
	e.exec(`INSERT INTO name_failures (hash, failures, locked_until)
		SELECT decode(lpad(to_hex(i), 4, '0') || repeat('00', 30), 'hex'), 9, now() + interval '1 hour' FROM generate_series(0, 65535) i`)
	for n := range 7 {
		err := e.RecordNameFailure(ctx, "nobody", func(failures int, now time.Time) *time.Time {
			if failures != n+1 {
				t.Errorf("failure %d counts as %d", n+1, failures)
			}
			return ptr(now.Add(time.Hour))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	count := func() int { return query[int](e, `SELECT count(*) FROM name_failures`) }
	if until := must(e.NameLockedUntil(ctx, "nobody"))(t); until == nil || count() != 65536 {
		t.Errorf("locked until %v, %d rows", until, count())
	}
	if until := must(e.NameLockedUntil(ctx, "other"))(t); until != nil {
		t.Errorf("another name is locked until %v", until)
	}
	e.exec(`UPDATE name_failures SET failed_at = failed_at - interval '24 hours'`)
	if err := e.DeleteOldNameFailures(ctx); err != nil || count() != 0 {
		t.Errorf("%d rows remain, %v", count(), err)
	}
}

func TestSessions(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	ann := e.user("ann")
	expires := soon(time.Hour)
	agent := "Mozilla\x00\xff " + strings.Repeat("é", 600)
	if err := e.CreateSession(ctx, hash("a"), ann.UserID, "", expires, postgres.Client{UserAgent: agent, Address: netip.MustParseAddr("203.0.113.9")}); err != nil {
		t.Fatal(err)
	}
	u, until, err := e.SessionUser(ctx, hash("a"))
	if err != nil || u.ID != ann.UserID || !until.Equal(expires) {
		t.Fatal(u, until, err)
	}
	_, _, err = e.SessionUser(ctx, hash("other"))
	wantCode(t, err, workspace.CodeUnauthenticated)
	if err := e.CreateSession(ctx, []byte("a plain session id"), ann.UserID, "", expires, postgres.Client{}); err == nil {
		t.Error("a value that is not a SHA-256 was stored")
	}

	if list := page(e.UserSessions(ctx, ann, postgres.Page{}))(t); len(list) != 1 || list[0].Address != "203.0.113.9" {
		t.Errorf("sessions: %+v", list)
	}

	for range 2 { // ending it twice is no error
		if err := e.DeleteSession(ctx, hash("a"), netip.Addr{}); err != nil {
			t.Fatal(err)
		}
	}
	_, _, err = e.SessionUser(ctx, hash("a"))
	wantCode(t, err, workspace.CodeUnauthenticated)
	if d := cmp.Diff([]string{"ann user.create", "ann login", "ann logout"}, e.audited(ann.UserID)); d != "" {
		t.Error(d)
	}

	// An expired session, and one whose user is disabled.
	if err := e.CreateSession(ctx, hash("old"), ann.UserID, "", soon(-time.Second), postgres.Client{}); err != nil {
		t.Fatal(err)
	}
	_, _, err = e.SessionUser(ctx, hash("old"))
	wantCode(t, err, workspace.CodeUnauthenticated)
	if err := e.CreateSession(ctx, hash("new"), ann.UserID, "", expires, postgres.Client{}); err != nil {
		t.Fatal(err)
	}
	if n := must(e.DeleteExpiredSessions(ctx))(t); n != 1 {
		t.Errorf("%d sessions had expired", n)
	}
	e.exec(`UPDATE users SET disabled = true`)
	_, _, err = e.SessionUser(ctx, hash("new"))
	wantCode(t, err, workspace.CodeUnauthenticated)
	wantCode(t, e.CreateSession(ctx, hash("newer"), ann.UserID, "", expires, postgres.Client{}), workspace.CodeNotFound)
}

func TestTokens(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	ann, bob := e.user("ann"), e.user("bob")
	plain := must(e.CreateToken(ctx, ann, postgres.Token{Name: "laptop", Hash: hash("1")}))(t)
	limited := must(e.CreateToken(ctx, ann, postgres.Token{Name: "ci", Hash: hash("2"), ExpiresAt: ptr(soon(time.Hour)), UserID: bob.UserID}))(t)
	if limited.UserID != ann.UserID || !workspace.ValidID(limited.ID) {
		t.Fatalf("%+v", limited)
	}
	if d := cmp.Diff([]postgres.Token{limited, plain}, page(e.Tokens(ctx, ann, postgres.Page{}))(t)); d != "" {
		t.Error(d)
	}
	if got := page(e.Tokens(ctx, bob, postgres.Page{}))(t); len(got) != 0 {
		t.Errorf("bob sees %v", got)
	}
	u, got, err := e.TokenUser(ctx, hash("2"))
	if err != nil || u.ID != ann.UserID || cmp.Diff(limited, got) != "" {
		t.Fatal(u, got, err)
	}

	late, early := soon(0), soon(-time.Minute)
	for _, at := range []time.Time{late, early} {
		if err := e.TouchToken(ctx, plain.ID, at); err != nil {
			t.Fatal(err)
		}
	}
	if _, got, _ = e.TokenUser(ctx, hash("1")); got.LastUsedAt == nil || !got.LastUsedAt.Equal(late) {
		t.Errorf("last used at %v, want %v", got.LastUsedAt, late)
	}

	e.exec(`UPDATE api_tokens SET expires_at = now() WHERE id = $1`, limited.ID)
	_, _, err = e.TokenUser(ctx, hash("2"))
	wantCode(t, err, workspace.CodeUnauthenticated)

	wantCode(t, e.DeleteToken(ctx, bob, plain.ID), workspace.CodeForbidden)
	for _, id := range []string{"", "x", uuid.NewString()} {
		wantCode(t, e.DeleteToken(ctx, ann, id), workspace.CodeNotFound)
	}
	if err := e.DeleteToken(ctx, ann, plain.ID); err != nil {
		t.Fatal(err)
	}
	_, _, err = e.TokenUser(ctx, hash("1"))
	wantCode(t, err, workspace.CodeUnauthenticated)
	wantCode(t, e.DeleteToken(ctx, ann, plain.ID), workspace.CodeNotFound)
	if d := cmp.Diff([]string{"ann token.create", "ann token.delete"}, e.audited(plain.ID)); d != "" {
		t.Error(d)
	}

	_, err = e.CreateToken(ctx, ann, postgres.Token{Name: "", Hash: hash("3")})
	wantCode(t, err, workspace.CodeInvalid)
	for _, who := range []workspace.Caller{{}, workspace.System, {UserID: uuid.NewString()}} {
		_, err = e.CreateToken(ctx, who, postgres.Token{Name: "n", Hash: hash("3")})
		wantCode(t, err, workspace.CodeForbidden)
	}
	_, _, err = e.Tokens(ctx, workspace.Caller{}, postgres.Page{})
	wantCode(t, err, workspace.CodeForbidden)
	e.exec(`UPDATE users SET disabled = true`)
	_, err = e.CreateToken(ctx, ann, postgres.Token{Name: "n", Hash: hash("3")})
	wantCode(t, err, workspace.CodeForbidden)
}

func TestValidSessions(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	ann, bob := e.user("ann"), e.user("bob")
	for name, expires := range map[string]time.Duration{"session": time.Hour, "over": -time.Second} {
		if err := e.CreateSession(ctx, hash(name), ann.UserID, "", soon(expires), postgres.Client{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.CreateSession(ctx, hash("disabled"), bob.UserID, "", soon(time.Hour), postgres.Client{}); err != nil {
		t.Fatal(err)
	}
	must(e.CreateToken(ctx, ann, postgres.Token{Name: "t", Hash: hash("token")}))(t)
	must(e.CreateToken(ctx, bob, postgres.Token{Name: "t", Hash: hash("token of a disabled user")}))(t)
	must(e.CreateToken(ctx, ann, postgres.Token{Name: "t", Hash: hash("token that is over"), ExpiresAt: ptr(soon(-time.Second))}))(t)
	e.exec(`UPDATE users SET disabled = true WHERE id = $1`, bob.UserID)

	names := []string{"session", "over", "disabled", "token", "token of a disabled user", "token that is over", "unknown"}
	var hashes [][]byte
	for _, n := range names {
		hashes = append(hashes, hash(n))
	}
	valid := must(e.ValidSessions(ctx, hashes))(t)
	var got []string
	for i, n := range names {
		if slices.ContainsFunc(valid, func(h []byte) bool { return string(h) == string(hashes[i]) }) {
			got = append(got, n)
		}
	}
	if d := cmp.Diff([]string{"session", "token"}, got); d != "" || len(valid) != 2 {
		t.Error(d, len(valid))
	}
	if none := must(e.ValidSessions(ctx, nil))(t); len(none) != 0 {
		t.Error(none)
	}
}

// Sessions and tokens of the old password end.
func TestSetPassword(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	ann, bob := e.user("ann"), e.user("bob")
	for _, who := range []workspace.Caller{ann, bob} {
		if err := e.CreateSession(ctx, hash("s"+who.Username), who.UserID, "", soon(time.Hour), postgres.Client{}); err != nil {
			t.Fatal(err)
		}
		must(e.CreateToken(ctx, who, postgres.Token{Name: "t", Hash: hash("t" + who.Username)}))(t)
	}
	if err := e.RecordLoginFailure(ctx, ann.UserID, func(_ int, now time.Time) *time.Time { return ptr(now.Add(time.Hour)) }); err != nil {
		t.Fatal(err)
	}
	if _, err := e.SetPassword(ctx, ann, must(e.User(ctx, ann.UserID))(t).PasswordHash, "new", nil); err != nil {
		t.Fatal(err)
	}
	u := must(e.User(ctx, ann.UserID))(t)
	if u.PasswordHash != "new" || u.FailedLogins != 0 || u.LockedUntil != nil {
		t.Errorf("%+v", u)
	}
	valid := must(e.ValidSessions(ctx, [][]byte{hash("sann"), hash("tann"), hash("sbob"), hash("tbob")}))(t)
	if len(valid) != 2 {
		t.Errorf("%d sessions and tokens are still valid, want bob's two", len(valid))
	}
	if d := cmp.Diff([]string{"ann user.create", "ann login", "ann user.password"}, e.audited(ann.UserID)); d != "" {
		t.Error(d)
	}
}

// A login or token creation that runs while the access of its user ends does not outlive it.
func TestAccessEndsForConcurrentRequests(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	ann := e.user("ann")
	old := "hash of ann"
	if err := e.CreateSession(ctx, hash("s"), ann.UserID, old, soon(time.Hour), postgres.Client{}); err != nil {
		t.Fatal(err)
	}
	ann.Session = hex.EncodeToString(hash("s"))
	must(e.CreateToken(ctx, ann, postgres.Token{Name: "laptop", Hash: hash("t")}))(t)
	byToken := ann
	byToken.Session = hex.EncodeToString(hash("t"))
	must(e.CreateToken(ctx, byToken, postgres.Token{Name: "child", Hash: hash("c")}))(t)

	var err error
	disable := []string{`UPDATE users SET disabled = true`, `DELETE FROM sessions`, `DELETE FROM api_tokens`, `DELETE FROM ssh_keys`}
	e.during(func() { err = e.CreateSession(ctx, hash("s2"), ann.UserID, old, soon(time.Hour), postgres.Client{}) }, disable...)
	wantCode(t, err, workspace.CodeNotFound)
	e.exec(`UPDATE users SET disabled = false`)
	e.during(func() { _, err = e.CreateToken(ctx, ann, postgres.Token{Name: "late", Hash: hash("t2")}) }, disable...)
	wantCode(t, err, workspace.CodeForbidden)
	e.during(func() { _, err = e.SetPassword(ctx, ann, old, "mine", nil) }, `UPDATE users SET disabled = true`)
	wantCode(t, err, workspace.CodeUnauthenticated)
	e.exec(`UPDATE users SET disabled = false`)

	for _, who := range []workspace.Caller{ann, byToken} {
		_, err = e.CreateToken(ctx, who, postgres.Token{Name: "late", Hash: hash("t3")})
		wantCode(t, err, workspace.CodeUnauthenticated)
	}
	another := `UPDATE users SET password_hash = 'another'`
	e.during(func() { err = e.CreateSession(ctx, hash("s3"), ann.UserID, old, soon(time.Hour), postgres.Client{}) }, another)
	wantCode(t, err, workspace.CodeUnauthenticated)
	e.exec(`UPDATE users SET password_hash = $1`, old)
	e.during(func() { _, err = e.SetPassword(ctx, ann, old, "mine", nil) }, another)
	wantCode(t, err, workspace.CodeUnauthenticated)

	// In the other order, the new session ends with the others.
	if err := e.CreateSession(ctx, hash("s4"), ann.UserID, "another", soon(time.Hour), postgres.Client{}); err != nil {
		t.Fatal(err)
	}
	if _, err := e.SetPassword(ctx, ann, "another", "new", nil); err != nil {
		t.Fatal(err)
	}
	if n := query[int](e, `SELECT (SELECT count(*) FROM sessions) + (SELECT count(*) FROM api_tokens)`); n != 0 {
		t.Errorf("%d sessions and tokens are left", n)
	}
}

func TestAudit(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	ann := e.user("ann")
	ann.Token = uuid.NewString()
	if err := e.WriteAudit(ctx, ann, "thing.do", "the\x00thing", map[string]any{"words": "a\x00b"}); err != nil {
		t.Fatal(err)
	}
	if err := e.WriteAudit(ctx, workspace.System, "thing.do", "thing", nil); err != nil {
		t.Fatal(err)
	}
	got := query[string](e, `SELECT string_agg(concat_ws('|', user_id = $1, username, token_id = $2, action, target, details), E'\n' ORDER BY id)
		FROM audit_log WHERE action = 'thing.do'`, ann.UserID, ann.Token)
	want := "t|ann|t|thing.do|thething|{\"words\": \"ab\"}\nsystem|thing.do|thing|{}"
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if err := e.WriteAudit(ctx, ann, "", "thing", nil); err == nil {
		t.Error("an entry without action")
	}
}

// The entries about a user whom a setup or a first login creates have the client's address.
func TestFirstUsersAreAuditedWithAddress(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	from := netip.MustParseAddr("203.0.113.9")
	made := must(e.CreateFirstUser(t.Context(), from, postgres.User{Username: "boss", Admin: true}))(t)
	signed := must(e.SignIn(t.Context(), postgres.SignIn{Issuer: "i", Subject: "s", NewUser: "ann", Session: hash("s"), Expires: soon(time.Hour), From: postgres.Client{Address: from}}))(t)
	for _, u := range []postgres.User{made, signed} {
		if got := query[string](e, `SELECT host(address) || ' ' || username FROM audit_log WHERE action = 'user.create' AND target = $1`, u.ID); got != "203.0.113.9 "+u.Username {
			t.Errorf("%s: %s", u.Username, got)
		}
	}
}
