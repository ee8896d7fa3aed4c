package httpapi

import (
	"net/http"
	"strings"
	"testing"

	"codehub/api"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/workspace"

	"github.com/google/uuid"
)

// Identities are listed and unlinked by the rules of the account page.
func TestIdentities(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	owner := e.join("owner")
	id := uuid.NewString()
	e.Exec(`INSERT INTO user_identities (id, user_id, issuer, subject, username) VALUES ($1, $2, 'https://issuer', 's1', 'ann at work')`, id, owner.User.ID)
	e.Exec(`INSERT INTO sessions (hash, user_id, expires_at, identity_id) VALUES (sha256('x'), $1, now() + interval '1 hour', $2)`, owner.User.ID, id)
	a := e.do("GET", Prefix+"/identities", "", as(owner))
	for _, part := range []string{id, `"issuer":"https://issuer"`, `"subject":"s1"`, `"username":"ann at work"`, `"active":true`} {
		if a.status != http.StatusOK || !strings.Contains(string(a.body), part) {
			t.Errorf("%d %s lacks %s", a.status, a.body, part)
		}
	}
	if a := e.do("GET", Prefix+"/identities", "", as(e.eve)); string(a.body) != `{"identities":[]}`+"\n" {
		t.Errorf("another user's: %s", a.body)
	}
	unlink := func(id, body string) answerCode {
		a := e.do("POST", Prefix+"/identities/"+id+"/unlink", body, as(owner))
		return answerCode{a.status, a.code()}
	}
	for name, c := range map[string]struct {
		id, body string
		want     answerCode
	}{
		"a wrong password": {id, `{"current":"wrong password"}`, answerCode{http.StatusForbidden, "forbidden"}},
		"no password":      {id, `{"current":""}`, answerCode{http.StatusBadRequest, "invalid_request"}},
		"an unknown one":   {uuid.NewString(), `{"current":"` + password + `"}`, answerCode{http.StatusNotFound, "not_found"}},
	} {
		if got := unlink(c.id, c.body); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	if got := unlink(id, `{"current":"`+password+`"}`); got.status != http.StatusNoContent {
		t.Errorf("unlink: %v", got)
	}
	if n := fixture.Query[int](e.Database, `SELECT count(*) FROM sessions WHERE hash = sha256('x')`); n != 0 {
		t.Error("a session of the identity goes on")
	}
	// A user without a password could not log in any more.
	e.Exec(`INSERT INTO user_identities (id, user_id, issuer, subject) VALUES ($1, $2, 'https://issuer', 's2')`, id, owner.User.ID)
	e.Exec(`UPDATE users SET password_hash = '' WHERE id = $1`, owner.User.ID)
	if got := unlink(id, `{"current":"`+password+`"}`); got != (answerCode{http.StatusConflict, "not_supported"}) {
		t.Errorf("without a password: %v", got)
	}
}

type answerCode struct {
	status int
	code   string
}

// A program cannot use a passkey: its login with a password is refused, and told the way. A
// wrong password gets the same answer as without a passkey. Administrators see and remove
// passkeys.
func TestLoginOfAccountWithPasskey(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	owner, boss := e.join("owner"), e.join("boss")
	e.Exec(`UPDATE users SET admin = true, suspended_for = NULL WHERE username = 'boss'`)
	e.Auth.InvalidateAll()
	e.Exec(`INSERT INTO passkeys (id, user_id, credential_id, party, record, name) VALUES ($1, $2, 'x', 'localhost', '{}', 'Laptop')`, uuid.NewString(), owner.User.ID)
	login := func(password string) (int, string, string) {
		a := e.do("POST", Prefix+"/login", `{"username":"owner","password":"`+password+`"}`)
		return a.status, a.code(), string(a.body)
	}
	if status, code, body := login(password); status != http.StatusForbidden || code != string(workspace.CodePasskeyRequired) || !strings.Contains(body, "codehub login --browser") || !strings.Contains(body, "--device") {
		t.Errorf("%d %s", status, body)
	}
	if status, code, _ := login("wrong password"); status != http.StatusUnauthorized || code != "bad_credentials" {
		t.Errorf("a wrong password: %d %s", status, code)
	}
	if n := fixture.Query[int](e.Database, `SELECT count(*) FROM passkey_attempts`); n != 0 {
		t.Errorf("%d logins wait", n)
	}
	list := e.do("GET", Prefix+"/users", "", as(boss))
	if !strings.Contains(string(list.body), `"passkeys":1`) || !strings.Contains(string(list.body), `"suspended":null,"suspended_since":null`) {
		t.Errorf("the users: %s", list.body)
	}
	e.Exec(`UPDATE users SET suspended_for = 'not_allowed' WHERE username = 'eve'`)
	list = e.do("GET", Prefix+"/users", "", as(boss))
	if !strings.Contains(string(list.body), `"suspended":"not_allowed","suspended_since":"2`) {
		t.Errorf("the users: %s", list.body)
	}
	if a := e.do("DELETE", Prefix+"/users/"+owner.User.ID+"/passkeys", "", as(boss)); a.status != http.StatusOK || !strings.Contains(string(a.body), `"passkeys":0`) {
		t.Errorf("removal: %d %s", a.status, a.body)
	}
	// One's own need the password, which this route does not ask for.
	e.want(400, "invalid_request", "DELETE", "/users/"+boss.User.ID+"/passkeys", "", as(boss))
	if status, _, body := login(password); status != http.StatusOK {
		t.Errorf("the password alone: %d %s", status, body)
	}
}

// Passkeys are listed and renamed; nothing in the API adds or removes one.
func TestPasskeys(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	owner, id := e.join("owner"), uuid.NewString()
	if l := read[api.PasskeyList](t, e.want(200, "", "GET", "/passkeys", "", as(owner))); l.Passkeys == nil || len(l.Passkeys) != 0 || l.RecoveryCodes != 0 {
		t.Errorf("without passkeys: %+v", l)
	}
	e.Exec(`INSERT INTO passkeys (id, user_id, credential_id, party, record, name, cloned_at) VALUES ($1, $2, 'x', 'elsewhere.example', '{}', 'Laptop', now())`, id, owner.User.ID)
	e.Exec(`INSERT INTO recovery_codes (user_id, hash) VALUES ($1, sha256('a')), ($1, sha256('b'))`, owner.User.ID)
	list := read[api.PasskeyList](t, e.want(200, "", "GET", "/passkeys", "", as(owner)))
	if k := list.Passkeys; len(k) != 1 || k[0].ID != id || k[0].Name != "Laptop" || k[0].Usable || k[0].ClonedAt == nil || k[0].LastUsedAt != nil || list.RecoveryCodes != 2 {
		t.Errorf("%+v", list)
	}
	e.want(204, "", "PATCH", "/passkeys/"+id, `{"name":" Phone "}`, as(owner))
	for _, bad := range []string{`{}`, `{"name":" "}`, `{"name":"` + strings.Repeat("x", 101) + `"}`} {
		e.want(400, "invalid_request", "PATCH", "/passkeys/"+id, bad, as(owner))
	}
	e.want(404, "not_found", "PATCH", "/passkeys/"+id, `{"name":"mine"}`, as(e.eve))
	e.want(405, "method_not_allowed", "DELETE", "/passkeys/"+id, "", as(owner))
	if k := read[api.PasskeyList](t, e.want(200, "", "GET", "/passkeys", "", as(owner))).Passkeys; len(k) != 1 || k[0].Name != "Phone" {
		t.Errorf("renamed: %+v", k)
	}
}
