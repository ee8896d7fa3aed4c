package auth

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	"codehub/internal/workspace"
)

func challengeOf(verifier string) string {
	sum := sha256.Sum256([]byte(verifier))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// A browser's code is redeemed once, by the program that began the login, while the session
// that allowed it lasts.
func TestBrowserLogin(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "http://localhost")
	verifier := strings.Repeat("v", 43)
	allow := func(s Session) string {
		t.Helper()
		code, err := e.AllowBrowser(t.Context(), s.Caller, challengeOf(verifier), "laptop", e.ProgramExpiry(0))
		if err != nil {
			t.Fatal(err)
		}
		return code
	}
	redeem := func(code, verifier string) (string, workspace.Code) {
		_, secret, _, err := e.RedeemLogin(t.Context(), code, verifier, nil, Client{})
		return secret, workspace.CodeOf(err)
	}
	s := e.login()
	code := allow(s)
	secret, refused := redeem(code, verifier)
	if refused != "" || e.who(request(tokenHeader(secret)), false) != "ann" {
		t.Fatalf("refused: %q", refused)
	}
	if _, refused := redeem(code, verifier); refused != workspace.CodeUnauthenticated {
		t.Errorf("a second time: %q", refused)
	}
	for name, wrong := range map[string]string{"none": "", "another": strings.Repeat("w", 43)} {
		code := allow(s)
		if _, refused := redeem(code, wrong); refused != workspace.CodeUnauthenticated {
			t.Errorf("verifier %s: %q", name, refused)
		}
		if _, refused := redeem(code, verifier); refused != workspace.CodeUnauthenticated {
			t.Errorf("after the verifier %s: %q", name, refused)
		}
	}
	if _, refused := redeem(allow(s), "short"); refused != workspace.CodeInvalid {
		t.Errorf("a short verifier: %q", refused)
	}
	code = allow(s)
	if err := e.Logout(t.Context(), s.Caller); err != nil {
		t.Fatal(err)
	}
	if _, refused := redeem(code, verifier); refused != workspace.CodeUnauthenticated {
		t.Errorf("after the logout: %q", refused)
	}
	if _, err := e.AllowBrowser(t.Context(), s.Caller, challengeOf(verifier), "laptop", e.ProgramExpiry(0)); workspace.CodeOf(err) != workspace.CodeUnauthenticated {
		t.Errorf("allowed after the logout: %v", err)
	}
	code = allow(e.login())
	e.Change(`UPDATE program_logins SET expires_at = now() - interval '1 second'`)
	if _, refused := redeem(code, verifier); refused != workspace.CodeUnauthenticated {
		t.Errorf("an expired code: %q", refused)
	}
	// A token allows nothing, and challenges and names are checked.
	byToken := e.login().Caller
	byToken.Token = "x"
	if _, err := e.AllowBrowser(t.Context(), byToken, challengeOf(verifier), "laptop", e.ProgramExpiry(0)); workspace.CodeOf(err) != workspace.CodeForbidden {
		t.Errorf("by a token: %v", err)
	}
	for _, bad := range [][2]string{{"x", "laptop"}, {challengeOf(verifier), ""}, {challengeOf(verifier), "\u3164"}, {challengeOf(verifier), strings.Repeat("n", 101)}, {challengeOf(verifier), "laptop\u202e"}} {
		if _, err := e.AllowBrowser(t.Context(), e.login().Caller, bad[0], bad[1], e.ProgramExpiry(0)); workspace.CodeOf(err) != workspace.CodeInvalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
	// A session leaves a bounded number of codes.
	last := e.login()
	for range 40 {
		allow(last)
	}
	hash := hashSecret(last.ID)
	if n := countOf(e, `SELECT count(*) FROM program_logins WHERE session_hash = $1`, hash[:]); n > 16 {
		t.Errorf("%d codes of a session", n)
	}
}

func countOf(e *env, sql string, args ...any) (n int) {
	e.t.Helper()
	if err := e.Raw.QueryRow(e.t.Context(), sql, args...).Scan(&n); err != nil {
		e.t.Fatal(err)
	}
	return n
}

// The name of a machine or a passkey cannot make a page show something else.
func TestMachineNamesAreChecked(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "http://localhost")
	s := e.login()
	for _, r := range "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029" {
		name := "ann's laptop" + string(r) + " at 10.0.0.1"
		if _, err := e.BeginDevice(t.Context(), name, "", 0, from); workspace.CodeOf(err) != workspace.CodeInvalid {
			t.Errorf("by code %+q: %v", name, err)
		}
		if _, err := e.AllowBrowser(t.Context(), s.Caller, challengeOf(strings.Repeat("v", 43)), name, e.ProgramExpiry(0)); workspace.CodeOf(err) != workspace.CodeInvalid {
			t.Errorf("by browser %+q: %v", name, err)
		}
		if _, err := PasskeyName(name); workspace.CodeOf(err) != workspace.CodeInvalid {
			t.Errorf("a passkey %+q: %v", name, err)
		}
	}
	for _, name := range []string{"노트북", "مختبر ٣", "build-7 (x86)"} {
		if _, err := e.BeginDevice(t.Context(), name, "", 0, from); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A login by code waits for its user, is polled no faster than allowed, and counts wrong
// codes.
func TestDeviceLogin(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "http://localhost")
	s := e.login()
	begin := func() DeviceLogin {
		t.Helper()
		d, err := e.BeginDevice(t.Context(), "build machine", "", 0, from)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	redeem := func(d DeviceLogin, verifier string) workspace.Code {
		_, _, _, err := e.RedeemLogin(t.Context(), d.DeviceCode, verifier, nil, Client{})
		return workspace.CodeOf(err)
	}
	d := begin()
	if code := redeem(d, ""); code != workspace.CodeLoginPending {
		t.Errorf("before the answer: %q", code)
	}
	if code := redeem(d, ""); code != workspace.CodeTooManyAttempts {
		t.Errorf("at once again: %q", code)
	}
	if p, err := e.Device(t.Context(), s.Caller, " "+strings.ToLower(strings.ReplaceAll(d.UserCode, "-", " "))); err != nil || p.Name != "build machine" {
		t.Fatalf("%+v, %v", p, err)
	}
	if err := e.AnswerDevice(t.Context(), s.Caller, d.UserCode, true); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Device(t.Context(), s.Caller, d.UserCode); workspace.CodeOf(err) != workspace.CodeNotFound {
		t.Errorf("an answered code: %v", err)
	}
	if code := redeem(d, strings.Repeat("v", 43)); code != workspace.CodeUnauthenticated {
		t.Errorf("with a verifier: %q", code)
	}
	d = begin()
	if err := e.AnswerDevice(t.Context(), s.Caller, d.UserCode, true); err != nil {
		t.Fatal(err)
	}
	if code := redeem(d, ""); code != "" {
		t.Errorf("allowed: %q", code)
	}
	d = begin()
	if err := e.AnswerDevice(t.Context(), s.Caller, d.UserCode, false); err != nil {
		t.Fatal(err)
	}
	if code := redeem(d, ""); code != workspace.CodeUnauthenticated {
		t.Errorf("refused: %q", code)
	}
	// The user's code is not the program's.
	if code := redeem(DeviceLogin{DeviceCode: begin().UserCode}, ""); code != workspace.CodeUnauthenticated {
		t.Errorf("by the user code: %q", code)
	}
	for range lockFrom {
		if _, err := e.Device(t.Context(), s.Caller, "AAAA-AAAA"); err == nil {
			t.Fatal("a wrong code is known")
		}
	}
	if _, err := e.Device(t.Context(), s.Caller, begin().UserCode); workspace.CodeOf(err) != workspace.CodeLockedOut {
		t.Errorf("after wrong codes: %v", err)
	}
	// Programs leave a bounded number of logins, and of each address.
	for range 60 {
		_, _ = e.BeginDevice(t.Context(), "x", "", 0, from)
	}
	if _, err := e.BeginDevice(t.Context(), "x", "", 0, from); workspace.CodeOf(err) != workspace.CodeTooManyAttempts {
		t.Errorf("one more: %v", err)
	}
	if n := countOf(e, `SELECT count(*) FROM program_logins`); n > 52 {
		t.Errorf("%d logins wait", n)
	}
	e.Change(`UPDATE program_logins SET expires_at = now() - interval '1 second'`)
	if _, err := e.BeginDevice(t.Context(), "x", "", 0, from); err != nil {
		t.Errorf("after the others expired: %v", err)
	}
	if n := countOf(e, `SELECT count(*) FROM program_logins`); n != 1 {
		t.Errorf("%d logins are left", n)
	}
}

// Waiting logins of others from an address do not keep a user there from beginning one that names
// the account, which no other account can allow.
func TestDeviceLoginNamesAccount(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "http://localhost")
	s := e.login()
	begin := func(username string) (DeviceLogin, error) {
		return e.BeginDevice(t.Context(), "laptop", username, 0, from)
	}
	waits := func(d DeviceLogin) bool {
		_, err := e.Device(t.Context(), s.Caller, d.UserCode)
		return err == nil
	}
	for range 60 {
		_, _ = begin("")
	}
	if _, err := begin(""); workspace.CodeOf(err) != workspace.CodeTooManyAttempts {
		t.Fatalf("the address is not full: %v", err)
	}
	anns, err := begin(" ANN ")
	if err != nil {
		t.Fatal(err)
	}
	// Neither do logins that name other accounts, or one that name this account.
	for i := range 45 {
		if _, err := begin(fmt.Sprint("missing", i/5)); err != nil {
			t.Fatal(err)
		}
	}
	if !waits(anns) {
		t.Error("logins that name other accounts have ended it")
	}
	var last DeviceLogin
	for range 20 {
		if last, err = begin("ann"); err != nil {
			t.Fatal(err)
		}
	}
	if waits(anns) || !waits(last) {
		t.Error("the oldest login of an account waits, or the newest does not")
	}
	for range 60 {
		if _, err := begin("missing"); err != nil {
			t.Fatal(err)
		}
	}
	if n := countOf(e, `SELECT max(n) FROM (SELECT count(*) AS n FROM program_logins GROUP BY username_key HAVING username_key IS NOT NULL) l`); n != 8 {
		t.Errorf("%d logins of one account wait", n)
	}
	if n := countOf(e, `SELECT count(*) FROM program_logins WHERE username_key IS NOT NULL`); n > 50 {
		t.Errorf("%d logins that name an account wait", n)
	}

	other, err := begin("missing")
	if err != nil {
		t.Fatal(err)
	}
	if waits(other) {
		t.Error("ann sees a login for another account")
	}
	for _, allow := range []bool{true, false} {
		if err := e.AnswerDevice(t.Context(), s.Caller, other.UserCode, allow); workspace.CodeOf(err) != workspace.CodeNotFound {
			t.Errorf("allow %t: %v", allow, err)
		}
	}
	if err := e.store.AnswerDeviceLogin(t.Context(), s.Caller, normalUserCode(other.UserCode), true); workspace.CodeOf(err) != workspace.CodeNotFound {
		t.Errorf("the store: %v", err)
	}
	if err := e.AnswerDevice(t.Context(), s.Caller, last.UserCode, true); err != nil {
		t.Fatal(err)
	}
	if _, _, caller, err := e.RedeemLogin(t.Context(), last.DeviceCode, "", nil, Client{}); err != nil || caller.Username != "ann" {
		t.Errorf("%+v, %v", caller, err)
	}
	if _, err := begin("no name"); workspace.CodeOf(err) != workspace.CodeInvalid {
		t.Errorf("an invalid name: %v", err)
	}
}

// A program's token lasts no longer than the user has seen, which is 90 days at most.
func TestProgramTokenExpires(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "http://localhost")
	s := e.login()
	verifier := strings.Repeat("v", 43)
	later, sooner := time.Now().Add(1000*24*time.Hour), time.Now().Add(time.Minute)
	for _, lasts := range []time.Duration{0, time.Hour, 1000 * 24 * time.Hour} {
		for name, asked := range map[string]*time.Time{"nil": nil, "later": &later, "sooner": &sooner} {
			d, err := e.BeginDevice(t.Context(), "build machine", "", lasts, from)
			if err != nil {
				t.Fatal(err)
			}
			shown, err := e.Device(t.Context(), s.Caller, d.UserCode)
			if err != nil || shown.Expires.After(time.Now().Add(MaxProgramLogin)) || lasts == time.Hour && shown.Expires.After(time.Now().Add(lasts)) {
				t.Fatalf("%v: %+v, %v", lasts, shown, err)
			}
			if err := e.AnswerDevice(t.Context(), s.Caller, d.UserCode, true); err != nil {
				t.Fatal(err)
			}
			token, _, _, err := e.RedeemLogin(t.Context(), d.DeviceCode, "", asked, Client{})
			if err != nil || token.ExpiresAt == nil || token.ExpiresAt.After(shown.Expires) || name == "sooner" && token.ExpiresAt.After(sooner) {
				t.Errorf("%v, %s: %+v, %v", lasts, name, token, err)
			}
		}
		code, err := e.AllowBrowser(t.Context(), s.Caller, challengeOf(verifier), "laptop", later)
		if err != nil {
			t.Fatal(err)
		}
		token, _, _, err := e.RedeemLogin(t.Context(), code, verifier, nil, Client{})
		if err != nil || token.ExpiresAt == nil || token.ExpiresAt.After(time.Now().Add(MaxProgramLogin)) {
			t.Errorf("by browser: %+v, %v", token, err)
		}
	}
}

// Failures that are old count no more.
func TestAttemptsAreForgotten(t *testing.T) {
	t.Parallel()
	a, start := newAttempts(10), time.Now()
	for range lockFrom {
		a.fail("ann", start)
	}
	a.forget("ann", start)
	if a.lockedUntil("ann") == nil {
		t.Error("recent failures were forgotten")
	}
	a.forget("ann", start.Add(time.Second))
	a.fail("ann", start.Add(time.Minute))
	if a.lockedUntil("ann") != nil {
		t.Error("old failures count")
	}
}
