package dashboard

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"codehub/internal/users/auth"
	"codehub/internal/web/dashboard/catalogue"

	"golang.org/x/net/html"
)

// outline is the structure of a page that the tests check.
type outline struct {
	title, h1 string
	h1s, main int
	stray     []string // text outside every landmark
	repeated  []string // ids
}

func outlineOf(t *testing.T, page string) outline {
	t.Helper()
	root, err := html.Parse(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	var o outline
	ids := map[string]bool{}
	var walk func(n *html.Node, inside bool)
	walk = func(n *html.Node, inside bool) {
		if n.Type == html.ElementNode {
			switch n.Data {
			case "script", "template", "noscript":
				return
			case "title":
				o.title = text(n)
				return
			case "h1":
				o.h1, o.h1s = text(n), o.h1s+1
			case "main":
				o.main++
			}
			switch n.Data {
			case "main", "header", "footer", "nav", "dialog":
				inside = true
			}
			for _, a := range n.Attr {
				if a.Key == "id" && ids[a.Val] {
					o.repeated = append(o.repeated, a.Val)
				}
				ids[a.Val] = ids[a.Val] || a.Key == "id"
				// Live regions and the skip link may be outside of landmarks.
				inside = inside || a.Key == "role" && a.Val == "status" || a.Key == "class" && a.Val == "skip"
			}
		}
		if n.Type == html.TextNode && !inside && strings.TrimSpace(n.Data) != "" {
			o.stray = append(o.stray, strings.TrimSpace(n.Data))
		}
		for c := range n.ChildNodes() {
			walk(c, inside)
		}
	}
	walk(root, false)
	return o
}

func text(n *html.Node) string {
	var b strings.Builder
	for c := range n.Descendants() {
		if c.Type == html.TextNode {
			b.WriteString(c.Data)
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// Every page, also a dialog as a page, has a title of its own, one main heading, and its
// content in landmarks.
func TestPageStructure(t *testing.T) {
	t.Parallel()
	w := newEmptyWorld(t, func(c *Config) {
		c.PathMode = true
		c.Trouble = func() string { return "bucket" }
	})
	say := catalogue.English.T
	judge := func(name string, a answer, title string) {
		t.Helper()
		o := outlineOf(t, a.body)
		switch {
		case !strings.HasPrefix(a.header.Get("Content-Type"), "text/html"):
			t.Errorf("%s: %d, no page: %.200s", name, a.status, a.body)
		case o.title != title+" · codehub":
			t.Errorf("%s: the title is %q, not %q", name, o.title, title)
		case strings.Contains(a.body, "%!"):
			t.Errorf("%s: a text lacks an argument", name)
		}
		if o.h1s != 1 || o.h1 == "" || o.main != 1 || len(o.stray) > 0 || len(o.repeated) > 0 {
			t.Errorf("%s: %d main headings (%q), %d main, outside of landmarks %q, repeated ids %q", name, o.h1s, o.h1, o.main, o.stray, o.repeated)
		}
	}
	judge("setup", w.browser().get("/setup"), say("setup.title"))
	w.AddAccount(auth.AdminUsername, adminPassword, true)
	judge("login", w.browser().get("/login"), say("login.title"))
	judge("wrong login", w.browser().post("/login", url.Values{"username": {"x"}, "password": {"y"}}), say("login.title"))
	b := w.loggedIn()
	judge("the first page", b.get("/"), say("list.title"))

	ids := w.fill()
	w.person("ann")
	at := func(key, rest string) string { return "/workspaces/" + string(ids[key]) + rest }
	person := "/admin/people/" + w.userID("ann") + "/"
	for _, p := range []struct{ path, title string }{
		{"/", say("list.title")}, {"/?q=nothing+like+it", say("list.title")},
		{"/workspaces/new", say("dialog.new.title")},
		{at("running", ""), "web-frontend"}, {at("lost", ""), "thesis"},
		{at("running", "/edit"), say("dialog.edit.title", "web-frontend")}, {at("running", "/keep-awake"), say("dialog.keep-awake.title", "web-frontend")},
		{at("running", "/delete"), say("dialog.delete.title", "web-frontend")}, {at("running", "/force-stop"), say("dialog.force-stop.title", "web-frontend")},
		{at("running", "/timeouts"), say("dialog.timeouts.title", "web-frontend")}, {at("running", "/restart"), say("dialog.restart.title", "web-frontend")},
		{at("running", "/archive"), say("dialog.archive.title", "web-frontend")},
		{at("lost", "/start-empty"), say("dialog.start-empty.title", "thesis")},
		{at("lost", "/set-aside"), say("dialog.set-aside.title", "thesis")},
		{at("archived", "/archive/files"), say("files.title")},
		{at("running", "/backups"), say("backups.title") + " · web-frontend"}, {at("running", "/backup"), say("dialog.backup.title", "web-frontend")},
		{at("missing", "/recover-archive"), say("dialog.recover-archive.title", "photo-archive")},
		{"/settings/account", say("account.title")}, {"/settings/account/password", say("dialog.change-password.title")}, {"/settings/keys/new", say("dialog.ssh-key.title")}, {"/settings/dotfiles", say("dialog.dotfiles.title")},
		{"/computer", say("computer.title")},
		{"/settings/tokens", say("tokens.title")}, {"/settings/tokens/new", say("dialog.token.title")},
		{"/admin/templates", say("templates.title")}, {"/admin/templates/go", "go"}, {"/admin/new-template", say("templates.new")}, {at("running", "/duplicate"), say("dialog.duplicate.title", "web-frontend")},
		{"/admin", say("admin.title")}, {"/admin/settings", say("settings.title")}, {"/admin/people/new", say("dialog.person-new.title")},
		{"/admin/people/import", say("dialog.person-import.title")}, {person + "invite", say("dialog.person-invite.title", "ann")}, {"/invitation", say("invitation.title")},
		{person + "limit", say("dialog.person-limit.title", "ann")}, {person + "password", say("dialog.person-password.title", "ann")},
		{person + "make-admin", say("dialog.person-make-admin.title", "ann")}, {person + "disable", say("dialog.person-disable.title", "ann")},
		{"/w/" + string(ids["pull-progress"]) + "/", "machine-learning"}, {"/w/" + string(ids["archived"]) + "/", "archived-blog"},
		{"/w/" + string(ids["pull"]) + "/", "legacy-api"}, {"/w/" + string(ids["deleted"]) + "/", "old-experiment"},
		{"/w/" + string(ids["stopped"]) + "/", "design-system"},
		{"/w/0198c0de-0000-7000-8000-000000000009/", say("message.not_found.title")},
		{"/nowhere", say("message.no_page.title")},
	} {
		judge(p.path, b.get(p.path, "Accept", "text/html"), p.title)
	}
	judge("the limit", b.post(at("stopped", "/start"), nil), say("limit.title"))
	judge("a refusal", b.post(at("lost", "/start"), nil), say("message.refused.title"))
	judge("a form with a mistake", b.post("/workspaces", url.Values{"name": {""}}), say("dialog.new.title"))
	judge("a new token", b.post("/settings/tokens", url.Values{"name": {"laptop"}, "expires": {"7"}}), say("token.title"))
}

// Styles and scripts are compressed and immutable.
func TestAssetsAreCompressedAndKept(t *testing.T) {
	t.Parallel()
	a := newAssets()
	for path, f := range a.files {
		if (strings.HasSuffix(path, ".js") || strings.HasSuffix(path, ".css")) && (f.gzip == nil || len(f.gzip) > len(f.plain)*2/3) {
			t.Errorf("%s: %d bytes, compressed %d", path, len(f.plain), len(f.gzip))
		}
	}
	w := newWorld(t)
	plain, encoded := w.browser(), w.browser()
	address := a.url("app.js")
	first := plain.get(address, "Accept-Encoding", "identity")
	second := encoded.get(address, "Accept-Encoding", "br;q=1.0, gzip;q=0.8, *;q=0.1")
	if first.status != http.StatusOK || first.header.Get("Content-Encoding") != "" || len(first.body) != len(a.files["app.js"].plain) {
		t.Errorf("plain: %d, %q, %d bytes", first.status, first.header.Get("Content-Encoding"), len(first.body))
	}
	if second.status != http.StatusOK || second.header.Get("Content-Encoding") != "gzip" || len(second.body) != len(a.files["app.js"].gzip) {
		t.Errorf("compressed: %d, %q, %d bytes", second.status, second.header.Get("Content-Encoding"), len(second.body))
	}
	if first.header.Get("ETag") == second.header.Get("ETag") {
		t.Error("two encodings have one ETag")
	}
	for name, got := range map[string]answer{"plain": first, "compressed": second} {
		h := got.header
		if !strings.Contains(h.Get("Cache-Control"), "immutable") || h.Get("Vary") != "Accept-Encoding" || !strings.HasPrefix(h.Get("Content-Type"), "text/javascript") {
			t.Errorf("%s: %v", name, h)
		}
	}
	if again := encoded.get(address, "Accept-Encoding", "gzip", "If-None-Match", second.header.Get("ETag")); again.status != http.StatusNotModified {
		t.Errorf("again: %d", again.status)
	}
	for header, want := range map[string]bool{"": false, "gzip": true, "gzip;q=0": false, "*": true, "gzip;q=0, *": false, "br": false, "deflate, GZIP;q=0.5": true} {
		if got := acceptsGzip([]string{header}); got != want {
			t.Errorf("Accept-Encoding %q: %v", header, got)
		}
	}
}
