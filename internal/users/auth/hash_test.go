package auth

import (
	"strings"
	"testing"

	"golang.org/x/text/unicode/norm"

	"codehub/internal/workspace"
)

// Hashes of argon2-cffi, current and before 21.2, and of bcrypt in Python, as in
// databases of the first version.
var foreignHashes = []struct{ password, hash string }{
	{"testpassword", "$argon2id$v=19$m=65536,t=3,p=4$v0dTt9RuCAnb/3vSZXKDGg$KnREf1GzvJaig9tx7+alrITO4r3TQSPpS2AK0hdxnJg"},
	{"testpassword", "$argon2id$v=19$m=102400,t=2,p=8$UyCfUPrQ7YpghHHBI1wO+w$6wgxspNgJKVrsNfRJdJ5pg"},
	{norm.NFD.String("비밀번호-é"), "$argon2id$v=19$m=65536,t=3,p=4$fE5+/JcwCVM9LcbuMaNq5w$OM6MKsTIrR/tEhPJuyym8vKdOFgQIXkodu8NazyTPec"},
	{"testpassword", "$2b$12$H1rwvr5rTDYj4vwQaVlf8.4RrCaDQFDcxGSMucyQ0b1YoJgfHGBKS"},
	{strings.Repeat("x", 80), "$2b$06$62Tg39qa1Ndu6zJiW10GK.5TN.CwmQbkVKTWwoqytgqKZiipzQhpG"},
}

// A user from another system logs in with the old password, whose hash is then
// replaced by a current one.
func TestImportedHashes(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "http://localhost:8080")
	stored := func() (hash string) {
		t.Helper()
		u, err := e.DB.User(t.Context(), e.user.ID)
		if err != nil {
			t.Fatal(err)
		}
		return u.PasswordHash
	}
	for _, c := range foreignHashes {
		e.Change(`UPDATE users SET password_hash = $1 WHERE username = 'ann'`, c.hash)
		if _, err := e.Login(t.Context(), "ann", "-"+c.password, from); workspace.CodeOf(err) != workspace.CodeBadCredentials {
			t.Errorf("%s: a wrong password: %v", c.hash, err)
		}
		if got := stored(); got != c.hash {
			t.Errorf("a failed login made %s of %s", got, c.hash)
		}
		before := e.login2(t, c.password)
		renewed := stored()
		if !e.hasher.current(renewed) {
			t.Errorf("after a login the hash is still %s", renewed)
		}
		e.login2(t, c.password)
		if got := stored(); got != renewed {
			t.Errorf("the second login changed the hash again: %s", got)
		}
		// Sessions from before stay valid.
		if who := e.who(request(cookie(e.cookieName(), before.ID)), false); who != "ann" {
			t.Errorf("the session of before: %s", who)
		}
	}
}

func (e *env) login2(t *testing.T, password string) Session {
	t.Helper()
	s, err := e.Login(t.Context(), "ann", password, from)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestMatches(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		hash, password string
		want           bool
	}{
		{foreignHashes[0].hash, "testpassword", true},
		{foreignHashes[4].hash, strings.Repeat("x", 80), true},
		{foreignHashes[4].hash, "admin", false},
	} {
		if m, ok := Matches(c.hash, c.password); m != c.want || !ok {
			t.Errorf("%s against %q: %v, %v", c.hash, c.password, m, ok)
		}
	}
}

// A user with an invalid hash cannot log in, with the same response as for a wrong
// password.
func TestInvalidHash(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "http://localhost:8080")
	for _, hash := range []string{"!", "", "md5$abc", "$2b$31$H1rwvr5rTDYj4vwQaVlf8.4RrCaDQFDcxGSMucyQ0b1YoJgfHGBKS", "$2b$12$short"} {
		if m, ok := Matches(hash, password); m || ok {
			t.Errorf("%q can be read", hash)
		}
		e.Change(`UPDATE users SET password_hash = $1, failed_logins = 0, locked_until = NULL WHERE username = 'ann'`, hash)
		if _, err := e.Login(t.Context(), "ann", password, from); workspace.CodeOf(err) != workspace.CodeBadCredentials {
			t.Errorf("%q: %v", hash, err)
		}
	}
}
