package dashboard

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"codehub/internal/testing/harness/fixture"
	"codehub/internal/workspace"
)

// TestInvitationSetsPassword: an administrator creates a user and gets a link. In another browser
// the link sets the password and logs in, once.
func TestInvitationSetsPassword(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.tab()
	b.logIn()
	b.visit("/admin")
	b.press("#person-new")
	b.shown("dialog[open]")
	b.enter("#f-username", "riana")
	b.press("#dialog-form button[type=submit]")
	b.shown("#invitation-link")
	link := value(b, chromedp.Evaluate[string](`document.querySelector('#invitation-link').textContent`))
	path, secret, ok := strings.Cut(link, "#")
	if !ok || path != w.HTTP.URL+"/invitation" || len(secret) != 32 {
		t.Fatalf("the link is %q", link)
	}
	if n := fixture.Query[int](w, `SELECT count(*) FROM invitations WHERE encode(hash, 'escape') LIKE '%' || $1 || '%'`, secret); n != 0 {
		t.Error("the secret is in the database")
	}
	b.visit("/admin")
	b.until(`!document.querySelector('#invitation-link')`)

	// A preview of the link uses nothing, and sees no name.
	preview := w.browser().get("/invitation")
	if preview.status != http.StatusOK || strings.Contains(preview.body, "riana") {
		t.Errorf("preview: %d %s", preview.status, preview.body)
	}

	guest := w.openTab()
	guest.visit("/invitation#" + secret)
	guest.until(`document.querySelector('#username')?.value === 'riana'`)
	if at := value(guest, chromedp.Evaluate[string](`location.href`)); strings.Contains(at, secret) {
		t.Errorf("the address still has the secret: %s", at)
	}
	guest.press(`.plainfoot [name=language][value=ko]`)
	guest.until(`document.documentElement.lang === 'ko' && document.querySelector('#username')?.value === 'riana'`)
	guest.enter("#password", "short")
	guest.enter("#password2", "short\r")
	guest.shown("#e-password")
	guest.enter("#password", "long enough")
	guest.enter("#password2", "long enough\r")
	guest.until(`document.querySelector('.username')?.textContent === 'riana'`)

	again := w.browser()
	refused := again.post("/invitation", url.Values{"code": {secret}, "password": {"long enough 2"}, "password2": {"long enough 2"}})
	if refused.status != http.StatusNotFound || !strings.Contains(refused.body, "invitation-problem") {
		t.Errorf("the second use: %d %s", refused.status, refused.body)
	}
	if in := w.browser().post("/login", url.Values{"username": {"riana"}, "password": {"long enough"}}); in.status != http.StatusSeeOther {
		t.Errorf("the password does not log in: %d", in.status)
	}
	if n := fixture.Query[int](w, `SELECT count(*) FROM audit_log WHERE action = 'user.invite' AND username = 'admin'`); n != 1 {
		t.Errorf("%d entries of the invitation in the audit log", n)
	}
	if n := fixture.Query[int](w, `SELECT count(*) FROM audit_log WHERE action = 'user.password' AND username = 'riana' AND details->>'invitation' = 'true'`); n != 1 {
		t.Errorf("%d entries of the password in the audit log", n)
	}
}

// TestImportOfUsers: the page creates all users of a list, or none and says which lines are wrong.
func TestImportOfUsers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	in := func(csv string) answer {
		return b.post("/admin/people/import", url.Values{"csv": {csv}, "page": {"1"}})
	}
	wrong := in("name,admin\nria,\nadmin,\nria,\nx y,maybe\n")
	for _, want := range []string{"Line 3: the username is already taken.", "Line 4: an earlier line has this username.", "Line 5: a value is invalid.", "Line 5: this is not a valid username."} {
		if wrong.status != http.StatusUnprocessableEntity || !strings.Contains(wrong.body, want) {
			t.Errorf("%q is missing: %d %s", want, wrong.status, wrong.body)
		}
	}
	if _, err := w.DB.UserByName(t.Context(), "ria"); workspace.CodeOf(err) != workspace.CodeNotFound {
		t.Errorf("of a wrong list a user was created: %v", err)
	}
	made := in("name,admin\nria,true\ntom,\n")
	if made.status != http.StatusOK || strings.Count(made.body, "/invitation#") != 2 || !strings.Contains(made.body, `download="invitations.csv"`) {
		t.Errorf("%d %s", made.status, made.body)
	}
	if u, err := w.DB.UserByName(t.Context(), "ria"); err != nil || !u.Admin || u.PasswordHash != "" {
		t.Errorf("%+v, %v", u, err)
	}
}
