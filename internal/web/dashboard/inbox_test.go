package dashboard

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"codehub/internal/postgres"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/workspace"

	"github.com/chromedp/chromedp"
)

// News waits in the inbox, and the header of every page has its number. What has to be answered is
// on top of every page.
func TestNoticesAreInTheInbox(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ann, bob := w.person("ann"), w.person("bob")
	boss := w.loggedIn()
	id := w.AddWorkspace(w.caller("ann"), "<b>shop</b>").ID
	w.observe(id, standby)
	if _, err := w.DB.Share(t.Context(), w.caller("admin"), w.add("demo", standby), postgres.NewShare{User: "ann", Access: workspace.AccessUse}); err != nil {
		t.Fatal(err)
	}
	if got := boss.htmx("/admin/workspaces/"+string(id)+"/message", url.Values{"message": {"It fills\nthe <disk>."}}); got.status != http.StatusOK {
		t.Fatal(got.status)
	}
	number := func(page string) string {
		t.Helper()
		_, rest, ok := strings.Cut(page, `<span id="bell"`)
		if !ok {
			t.Fatalf("a page without a bell: %s", page)
		}
		bell, _, _ := strings.Cut(rest, "</a>")
		_, count, _ := strings.Cut(bell, `<span class="count">`)
		count, _, _ = strings.Cut(count, "<")
		return count
	}
	for _, path := range []string{"/", "/settings/account", "/shared", "/workspaces/" + string(id)} {
		page := ann.get(path).body
		lacks(t, path, page, "the &lt;disk&gt;", "/dismiss", "banner told")
		contains(t, path, page, `href="/notices"`)
		if n := number(page); n != "2" {
			t.Errorf("%s: %q notices", path, n)
		}
	}
	contains(t, "the inbox", ann.get("/notices").body, "the &lt;disk&gt;.", "admin sent you a message about your workspace “&lt;b&gt;shop&lt;/b&gt;”.", "admin shared the workspace “demo” with you.", "/dismiss", `aria-current="page"`)
	contains(t, "the inbox without notices", bob.get("/notices").body, "You have no notices.")
	if n := number(bob.get("/").body); n != "" {
		t.Errorf("the number of no notices is %q", n)
	}

	notice := fixture.Query[string](w, `SELECT id::text FROM user_notices WHERE kind = 'message'`)
	if a := ann.post("/notices/"+notice+"/dismiss", nil); a.status != http.StatusSeeOther || a.header.Get("Location") != "/notices" {
		t.Errorf("dismiss without scripts: %d %s", a.status, a.header.Get("Location"))
	}
	if page := ann.get("/notices").body; strings.Contains(page, "disk") || number(page) != "1" {
		t.Errorf("dismissed, the inbox has %s notices: %s", number(page), page)
	}

	boss.htmx("/admin/workspaces/"+string(id)+"/hand-over", url.Values{"to": {"bob"}, "name": {"shop"}})
	for _, path := range []string{"/", "/notices"} {
		contains(t, path, ann.get(path).body, "admin asks you to hand over", "banner told", "Answer")
	}
}

// The number is live, the inbox is reached on every screen, and a dismissed notice disappears.
func TestInboxInBrowser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	insert := func(text string) {
		w.Exec(`INSERT INTO user_notices (id, user_id, kind, workspace_name, by_username, message) SELECT gen_random_uuid(), id, 'message', 'shop', 'mina', $1 FROM users WHERE username = 'admin'`, text)
	}
	b := w.tab()
	b.logIn()
	for _, width := range []int64{1440, 375} {
		b.run(chromedp.EmulateViewport(width, 900))
		b.visit("/settings/tokens")
		insert("Please clean up.")
		b.until(`document.querySelector('#bell .count')?.textContent === '1'`)
		b.press(".bell")
		b.shown("#notice-list [data-notice]")
		b.press("#notice-list button")
		b.until(`!document.querySelector('#notice-list [data-notice]') && !document.querySelector('#bell .count')`)
	}
}
