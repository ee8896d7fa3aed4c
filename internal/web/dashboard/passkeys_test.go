package dashboard

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/softkey"
	"codehub/internal/users/auth"
)

// passkeyWorld is a world whose address can have passkeys; required: logins need one.
func passkeyWorld(t *testing.T, required bool) *world {
	t.Helper()
	w := newOriginWorld(t)
	if required {
		w.dash.Auth = auth.New(w.DB, auth.Config{URL: w.URL, Log: w.dash.Log, CheapHashes: true, Settings: auth.Settings{RequirePasskey: true}})
	}
	return w
}

func (w *world) key() *softkey.Key {
	return softkey.New(w.t, w.HTTP.URL, w.URL.Hostname())
}

var adminLogin = url.Values{"username": {"admin"}, "password": {adminPassword}}

// passwordOK sends the right password, and expects the page of the passkey.
func (w *world) passwordOK() *browser {
	w.t.Helper()
	b := w.browser()
	if a := b.post("/login", adminLogin); a.status != http.StatusSeeOther || a.header.Get("Location") != "/passkey" {
		w.t.Fatalf("the password: %d to %q", a.status, a.header.Get("Location"))
	}
	return b
}

// options asks for the browser's options.
func (b *browser) options(path string, form url.Values) []byte {
	b.w.t.Helper()
	a := b.post(path, form)
	if a.status != http.StatusOK {
		b.w.t.Fatalf("%s: %d %s", path, a.status, a.body)
	}
	return []byte(a.body)
}

var codeText = regexp.MustCompile(`[A-Z2-7]{4}(?:-[A-Z2-7]{4}){3}`)

// register adds a passkey in the settings, and returns the recovery codes on the page.
func (b *browser) register(k *softkey.Key, name string) (codes []string) {
	b.w.t.Helper()
	if a := b.post("/settings/passkeys", url.Values{"passkey_name": {name}, "current": {adminPassword}}); a.header.Get("Location") != "/settings/passkeys/register" {
		b.w.t.Fatalf("begin: %d %s", a.status, a.body)
	}
	contains(b.w.t, "the page", b.get("/settings/passkeys/register").body, "Name: "+name, `data-passkey="/settings/passkeys/options"`)
	a := b.post("/settings/passkeys/register", url.Values{"response": {string(k.Create(b.options("/settings/passkeys/options", nil)))}})
	if a.status >= 400 {
		b.w.t.Fatalf("register: %d %s", a.status, a.body)
	}
	return codeText.FindAllString(a.body, -1)
}

func (b *browser) use(k *softkey.Key) answer {
	b.w.t.Helper()
	return b.post("/passkey", url.Values{"response": {string(k.Sign(b.options("/passkey/options", nil)))}, "next": {"/settings/tokens"}})
}

// loggedInAs reports whether the browser has a session.
func (b *browser) hasSession() bool { return b.get("/settings/account").status == http.StatusOK }

func TestPasskeyLogin(t *testing.T) {
	t.Parallel()
	w := passkeyWorld(t, false)
	owner, k := w.loggedIn(), w.key()
	if a := owner.post("/settings/passkeys", url.Values{"passkey_name": {"Laptop"}, "current": {"wrong password"}}); a.status != http.StatusUnprocessableEntity {
		t.Errorf("a wrong password: %d", a.status)
	}
	if a := owner.get("/settings/passkeys/register"); a.header.Get("Location") != "/settings/account" {
		t.Errorf("without the password: %d", a.status)
	}
	if a := owner.post("/settings/passkeys/options", nil); a.status != http.StatusUnauthorized || !strings.Contains(a.body, "Begin again") {
		t.Errorf("options without the password: %d %s", a.status, a.body)
	}
	codes := owner.register(k, "Laptop")
	if len(codes) != 10 {
		t.Errorf("the recovery codes: %v", codes)
	}
	contains(t, "the account", owner.get("/settings/account").body, "Laptop", "never used", "10 codes are left.")

	b := w.passwordOK()
	// Nothing but the page of the passkey knows this browser.
	for _, path := range []string{"/", "/settings/account", "/settings/passkeys/register", "/admin", "/device"} {
		if a := b.get(path); a.status != http.StatusSeeOther || !strings.HasPrefix(a.header.Get("Location"), "/login") {
			t.Errorf("%s between the password and the passkey: %d to %q", path, a.status, a.header.Get("Location"))
		}
	}
	page := b.get("/passkey?next=/settings/tokens")
	contains(t, "the page", page.body, "Use your passkey", "admin", "needs JavaScript", `value="/settings/tokens"`)
	if a := b.get("/passkey", "Accept-Language", "ko"); !strings.Contains(a.body, "패스키 사용") {
		t.Error("the page is not in Korean")
	}
	if a := b.use(k); a.status != http.StatusSeeOther || a.header.Get("Location") != "/settings/tokens" || !b.hasSession() {
		t.Errorf("the passkey: %d to %q", a.status, a.header.Get("Location"))
	}
	lacks(t, "the account", owner.get("/settings/account").body, "never used")
	if a := b.get("/passkey"); a.header.Get("Location") != "/login" {
		t.Errorf("after the login: %d to %q", a.status, a.header.Get("Location"))
	}
	details := fixture.Query[string](w.Database, `SELECT details->>'passkey' FROM audit_log WHERE action = 'login' AND details ? 'passkey'`)
	if details != "Laptop" {
		t.Errorf("the audit log has %q", details)
	}

	// Renamed, and removed: the password is enough again.
	id := fixture.Query[string](w.Database, `SELECT id::text FROM passkeys`)
	at := "/settings/passkeys/" + id
	if a := owner.post(at+"/rename", url.Values{"passkey_name": {"Old laptop"}}); a.status != http.StatusSeeOther {
		t.Errorf("rename: %d", a.status)
	}
	if a := owner.post(at+"/remove", url.Values{"current": {"wrong password"}}); a.status != http.StatusUnprocessableEntity {
		t.Errorf("remove with a wrong password: %d", a.status)
	}
	waiting := w.passwordOK()
	options := waiting.options("/passkey/options", nil)
	contains(t, "the account", owner.get("/settings/account").body, "Old laptop")
	if a := owner.post(at+"/remove", url.Values{"current": {adminPassword}}); a.status != http.StatusSeeOther {
		t.Errorf("remove: %d", a.status)
	}
	if a := waiting.post("/passkey", url.Values{"response": {string(k.Sign(options))}}); a.header.Get("Location") != "/login" || waiting.hasSession() {
		t.Errorf("a removed passkey: %d to %q", a.status, a.header.Get("Location"))
	}
	if a := w.browser().post("/login", adminLogin); a.header.Get("Location") != "/" {
		t.Errorf("the password alone: %d to %q", a.status, a.header.Get("Location"))
	}
	if n := fixture.Query[int](w.Database, `SELECT count(*) FROM recovery_codes`); n != 0 {
		t.Errorf("%d recovery codes without a passkey", n)
	}
}

func TestPasskeyLoginRefused(t *testing.T) {
	t.Parallel()
	w := passkeyWorld(t, false)
	k, other := w.key(), w.key()
	codes := w.loggedIn().register(k, "Laptop")
	ann := w.person("ann")
	if a := ann.post("/settings/passkeys", url.Values{"passkey_name": {"Ann's"}, "current": {"another password"}}); a.status != http.StatusSeeOther {
		t.Fatal(a.status)
	}
	if a := ann.post("/settings/passkeys/register", url.Values{"response": {string(other.Create(ann.options("/settings/passkeys/options", nil)))}}); a.status != http.StatusOK {
		t.Fatal(a.status)
	}
	// The key of one user cannot be registered by another one.
	ben := w.person("ben")
	ben.post("/settings/passkeys", url.Values{"passkey_name": {"x"}, "current": {"another password"}})
	if a := ben.post("/settings/passkeys/register", url.Values{"response": {string(k.Create(ben.options("/settings/passkeys/options", nil)))}}); a.status != http.StatusConflict {
		t.Errorf("another user's key: %d", a.status)
	}

	forget := func() { w.Exec(`UPDATE users SET failed_logins = 0, locked_until = NULL`) }
	b := w.passwordOK()
	refused := func(name string, response []byte) {
		t.Helper()
		a := b.post("/passkey", url.Values{"response": {string(response)}})
		if a.status != http.StatusUnauthorized || !strings.Contains(a.body, "was not accepted") || b.hasSession() {
			t.Errorf("%s: %d %s", name, a.status, a.header.Get("Location"))
		}
		forget()
	}
	below := *k
	below.Origin = strings.Replace(w.HTTP.URL, "localhost", "id.localhost", 1)
	refused("no challenge", k.Sign([]byte(`{"publicKey":{"challenge":"eHh4eHh4eHh4eHh4eHh4eA"}}`)))
	refused("another user's passkey", other.Sign(b.options("/passkey/options", nil)))
	refused("a workspace's origin", below.Sign(b.options("/passkey/options", nil)))
	first := b.options("/passkey/options", nil)
	b.options("/passkey/options", nil)
	refused("a replaced challenge", k.Sign(first))
	// A challenge counts once, also after a refusal.
	options := b.options("/passkey/options", nil)
	refused("no response", nil)
	refused("after another response", k.Sign(options))
	// A challenge is bound to its login.
	b2 := w.passwordOK()
	refused("another login's challenge", k.Sign(b2.options("/passkey/options", nil)))
	// A page without the cookie has no part in it.
	if a := w.browser().post("/passkey/options", nil); a.status != http.StatusUnauthorized {
		t.Errorf("without a login: %d", a.status)
	}
	if a := b.post("/passkey", nil, "Sec-Fetch-Site", "cross-site"); a.status != http.StatusForbidden {
		t.Errorf("from another site: %d", a.status)
	}
	response := url.Values{"response": {string(k.Sign(b.options("/passkey/options", nil)))}}
	if a := b.post("/passkey", response); a.status != http.StatusSeeOther || !b.hasSession() {
		t.Fatalf("the right one: %d", a.status)
	}
	// The response again, in the same and in another login.
	if a := b.post("/passkey", response); a.header.Get("Location") != "/login" {
		t.Errorf("a replay: %d to %q", a.status, a.header.Get("Location"))
	}
	b = w.passwordOK()
	b.options("/passkey/options", nil)
	refused("a replay in another login", []byte(response.Get("response")))

	// A copy of the key is refused, and recorded.
	k.Count = 0
	b = w.passwordOK()
	refused("a copy", k.Sign(b.options("/passkey/options", nil)))
	if n := fixture.Query[int](w.Database, `SELECT count(*) FROM audit_log WHERE action = 'passkey.cloned'`); n != 1 {
		t.Errorf("%d entries about the copy", n)
	}

	// Refused passkeys count like wrong passwords, and a right password does not reset that.
	b = w.passwordOK()
	for range 5 {
		b.post("/passkey", url.Values{"response": {string(other.Sign(b.options("/passkey/options", nil)))}})
		if fixture.Query[bool](w.Database, `SELECT locked_until IS NULL FROM users WHERE username = 'admin'`) {
			w.passwordOK()
		}
	}
	if a := b.post("/passkey/options", nil); a.status != http.StatusTooManyRequests {
		t.Errorf("after 5 refusals: %d", a.status)
	}
	if a := b.post("/passkey/recover", url.Values{"code": {codes[0]}}); a.status != http.StatusTooManyRequests || b.hasSession() {
		t.Errorf("a recovery code after 5 refusals: %d", a.status)
	}
	if a := w.browser().post("/login", adminLogin); a.status != http.StatusTooManyRequests {
		t.Errorf("the password after 5 refusals: %d", a.status)
	}
}

func TestRecoveryCode(t *testing.T) {
	t.Parallel()
	w := passkeyWorld(t, false)
	owner := w.loggedIn()
	codes := owner.register(w.key(), "Laptop")
	b := w.passwordOK()
	a := b.post("/passkey/recover", url.Values{"code": {"AAAA-AAAA-AAAA-AAAA"}})
	contains(t, "a wrong code", a.body, "recovery code is incorrect", `aria-invalid="true"`)
	if a.status != http.StatusUnauthorized || b.hasSession() {
		t.Errorf("a wrong code: %d", a.status)
	}
	if a := b.post("/passkey/recover", url.Values{"code": {" " + strings.ToLower(strings.ReplaceAll(codes[3], "-", " "))}, "next": {"/settings/tokens"}}); a.header.Get("Location") != "/settings/tokens" || !b.hasSession() {
		t.Errorf("a code: %d to %q", a.status, a.header.Get("Location"))
	}
	b = w.passwordOK()
	if a := b.post("/passkey/recover", url.Values{"code": {codes[3]}}); a.status != http.StatusUnauthorized || b.hasSession() {
		t.Errorf("the same code again: %d", a.status)
	}
	contains(t, "the account", owner.get("/settings/account").body, "9 codes are left.")
	// New codes end the former ones.
	made := codeText.FindAllString(owner.post("/settings/passkeys/codes", url.Values{"current": {adminPassword}}).body, -1)
	if len(made) != 10 {
		t.Fatalf("new codes: %v", made)
	}
	if a := b.post("/passkey/recover", url.Values{"code": {codes[0]}}); a.status != http.StatusUnauthorized {
		t.Errorf("a former code: %d", a.status)
	}
	if a := b.post("/passkey/recover", url.Values{"code": {made[0]}}); a.status != http.StatusSeeOther || !b.hasSession() {
		t.Errorf("a new code: %d", a.status)
	}
	// Passkeys of another address are no reason to do without one.
	w.Exec(`UPDATE passkeys SET party = 'old.example.com'`)
	b = w.passwordOK()
	contains(t, "the page", b.get("/passkey").body, "No passkey of this account works at this address", `id="recovery" open`)
	if a := b.post("/passkey/options", nil); a.status != http.StatusConflict {
		t.Errorf("options: %d", a.status)
	}
	contains(t, "the account", owner.get("/settings/account").body, "only for old.example.com")
	// A disabled account and a new password end the logins that wait.
	w.Exec(`UPDATE users SET password_hash = password_hash || 'x'`)
	if a := b.post("/passkey/recover", url.Values{"code": {made[1]}}); a.header.Get("Location") != "/login" || b.hasSession() {
		t.Errorf("after a new password: %d to %q", a.status, a.header.Get("Location"))
	}
}

// An API token and the password neither remove a passkey nor make recovery codes: that would
// turn the second factor off.
func TestTokenChangesNoPasskeys(t *testing.T) {
	t.Parallel()
	w := passkeyWorld(t, false)
	k := w.key()
	codes := w.loggedIn().register(k, "Laptop")
	_, secret, err := w.Auth.CreateToken(t.Context(), auth.Identity{Caller: w.caller("admin")}, "laptop", nil, auth.TokenLimits{})
	if err != nil {
		t.Fatal(err)
	}
	id := fixture.Query[string](w.Database, `SELECT id::text FROM passkeys`)
	for _, path := range []string{"/settings/passkeys/codes", "/settings/passkeys/" + id + "/remove", "/settings/passkeys"} {
		for _, htmx := range []string{"true", ""} {
			a := w.browser().post(path, url.Values{"current": {adminPassword}, "passkey_name": {"another"}}, api.TokenHeader, secret, "HX-Request", htmx)
			if a.status != http.StatusForbidden || codeText.MatchString(a.body) {
				t.Errorf("%s: %d %s", path, a.status, a.body)
			}
		}
	}
	if n := fixture.Query[int](w.Database, `SELECT count(*)::int FROM passkeys`); n != 1 {
		t.Errorf("%d passkeys", n)
	}
	if a := w.passwordOK().post("/passkey/recover", url.Values{"code": {codes[0]}}); a.status != http.StatusSeeOther || a.header.Get("Location") != "/" {
		t.Errorf("an earlier code: %d to %q", a.status, a.header.Get("Location"))
	}
}

func TestRequiredPasskey(t *testing.T) {
	t.Parallel()
	w := passkeyWorld(t, true)
	b := w.passwordOK()
	contains(t, "the page", b.get("/passkey").body, "Create a passkey", "requires a passkey")
	if b.hasSession() {
		t.Error("there is a session without a passkey")
	}
	if a := b.post("/passkey/options", url.Values{"name": {" "}}); a.status != http.StatusBadRequest || !strings.Contains(a.body, "Enter a name") {
		t.Errorf("no name: %d %s", a.status, a.body)
	}
	if a := b.post("/passkey/recover", url.Values{"code": {"AAAA-AAAA-AAAA-AAAA"}}); a.status != http.StatusUnauthorized || b.hasSession() {
		t.Errorf("a recovery code: %d", a.status)
	}
	// Logging out is possible.
	b.post("/logout", nil)
	if a := b.get("/passkey"); a.header.Get("Location") != "/login" {
		t.Errorf("after logging out: %d", a.status)
	}
	b, k := w.passwordOK(), w.key()
	// A second login waits, and must not register another passkey after the first one.
	second := w.passwordOK()
	late := w.key().Create(second.options("/passkey/options", url.Values{"name": {"Thief"}}))
	a := b.post("/passkey", url.Values{"response": {string(k.Create(b.options("/passkey/options", url.Values{"name": {"Laptop"}})))}, "next": {"/settings/tokens"}})
	if codes := codeText.FindAllString(a.body, -1); a.status != http.StatusOK || len(codes) != 10 || !strings.Contains(a.body, `href="/settings/tokens"`) || !b.hasSession() {
		t.Errorf("registration: %d with %d codes", a.status, len(codes))
	}
	if a := second.post("/passkey", url.Values{"response": {string(late)}}); a.status != http.StatusUnauthorized || second.hasSession() {
		t.Errorf("a second registration: %d", a.status)
	}
	b = w.passwordOK()
	if a := b.use(k); a.status != http.StatusSeeOther || !b.hasSession() {
		t.Errorf("the next login: %d", a.status)
	}
	// The last one cannot be removed.
	id := fixture.Query[string](w.Database, `SELECT id::text FROM passkeys`)
	if a := b.post("/settings/passkeys/"+id+"/remove", url.Values{"current": {adminPassword}}); a.status != http.StatusUnprocessableEntity || !strings.Contains(a.body, "requires a passkey") {
		t.Errorf("removal of the last one: %d", a.status)
	}
	b.register(w.key(), "Spare")
	if a := b.post("/settings/passkeys/"+id+"/remove", url.Values{"current": {adminPassword}}); a.status != http.StatusSeeOther {
		t.Errorf("removal with a spare one: %d", a.status)
	}
}

// The setup leads to the first passkey too.
func TestRequiredPasskeyAtSetup(t *testing.T) {
	t.Parallel()
	w := newEmptyWorld(t)
	off := auth.New(w.DB, auth.Config{URL: &url.URL{Scheme: "http", Host: "localhost"}, Log: w.dash.Log, CheapHashes: true, Settings: auth.Settings{RequirePasskey: true}})
	w.dash.Auth = off
	code, err := off.SetupCode(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b := w.browser()
	if a := b.post("/setup", url.Values{"code": {code}, "username": {"root"}, "password": {adminPassword}, "password2": {adminPassword}}); a.header.Get("Location") != "/passkey" || b.hasSession() {
		t.Errorf("%d to %q", a.status, a.header.Get("Location"))
	}
}

// An address without a name has no passkeys, and the page says so.
func TestNoPasskeysAtAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t) // at 127.0.0.1
	b := w.loggedIn()
	contains(t, "the account", b.get("/settings/account").body, "This server’s address is "+w.URL.String(), `id="passkeys-impossible"`)
	if a := b.post("/settings/passkeys", url.Values{"passkey_name": {"x"}, "current": {adminPassword}}); a.status != http.StatusUnprocessableEntity {
		t.Errorf("registration: %d", a.status)
	}
}

// An administrator sees who has passkeys and who is suspended, and removes passkeys.
func TestAdministratorRemovesPasskeys(t *testing.T) {
	t.Parallel()
	w := passkeyWorld(t, false)
	owner := w.loggedIn()
	owner.register(w.key(), "Laptop")
	w.AddAccount("boss", "another password", true)
	w.person("ann")
	w.Exec(`UPDATE users SET suspended_for = 'refused' WHERE username = 'ann'`)
	boss := w.as("boss")
	admin := w.caller("admin")
	at := "/admin/people/" + admin.UserID + "/passkeys"
	page := boss.get("/admin").body
	contains(t, "the users", page, "1 passkey", at, `data-suspended="refused"`, "no longer confirms", "set a password")
	if strings.Count(page, "data-suspended") != 1 {
		t.Error("several users are suspended")
	}
	contains(t, "the form", boss.get(at).body, "Remove the passkeys of admin?")
	lacks(t, "the administrator's own menu", owner.get("/admin").body, at)
	if a := owner.htmx(at, nil); a.status != http.StatusBadRequest {
		t.Errorf("the removal of one's own: %d %s", a.status, a.body)
	}
	contains(t, "the users", owner.get("/admin").body, "1 passkey")
	waiting := w.passwordOK()
	a := boss.htmx(at, nil)
	contains(t, "the answer", a.body, "The passkeys of admin were removed.")
	lacks(t, "the answer", a.body, "1 passkey")
	if waiting.get("/passkey").header.Get("Location") != "/login" {
		t.Error("a login still waits for the removed passkey")
	}
	if a := w.browser().post("/login", adminLogin); a.header.Get("Location") != "/" {
		t.Errorf("the password alone: %d to %q", a.status, a.header.Get("Location"))
	}
	if a := w.as("admin").get("/admin/audit?action=passkey."); !strings.Contains(a.body, "passkey.reset") {
		t.Error("the audit log lacks the removal")
	}
	// A password that an administrator sets ends the suspension.
	u, err := w.DB.UserByName(t.Context(), "ann")
	if err != nil {
		t.Fatal(err)
	}
	list, err := w.DB.Accounts(t.Context(), w.caller("boss"), postgres.AccountFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, acc := range list.Users {
		if (acc.SuspendedSince != nil) != (acc.ID == u.ID) {
			t.Errorf("%s is suspended since %v", acc.Username, acc.SuspendedSince)
		}
	}
	hash := "x"
	if acc, err := w.DB.PatchAccount(t.Context(), w.caller("boss"), u.ID, postgres.AccountPatch{PasswordHash: &hash}); err != nil || acc.Suspended != nil || acc.SuspendedSince != nil {
		t.Errorf("%+v, %v", acc, err)
	}
}
