package dashboard

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"

	"github.com/google/uuid"
)

// TestPagesByRole requests every page as every role: a visitor without a session, a user, the
// owner of what the path names, an administrator who is not its owner, a disabled user, and, for
// groups, a member and an administrator of the group. A new
// page fails the test until the rules below say whose it is.
func TestPagesByRole(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withGitApps(t, "apps: [{id: company, type: gitlab, client_id: a, client_secret: b}]"))
	ann, eve, gina, uma, vic := w.person("ann"), w.person("eve"), w.person("gina"), w.person("uma"), w.person("vic")
	boss := w.loggedIn()
	w.AddAccount("bob", "another password", false)
	disabled := w.as("bob")
	w.Exec(`UPDATE users SET disabled = true WHERE username = 'bob'`)
	w.Auth.InvalidateAll()
	var patterns []string
	w.dash.Routes(func(pattern string, _ func(http.ResponseWriter, *http.Request)) { patterns = append(patterns, pattern) })
	open := []string{"/", "GET /assets/{path...}", "GET /login", "POST /login", "POST /logout", "GET /setup", "POST /setup", "GET /invitation", "POST /invitation", "POST /settings/theme", "POST /settings/language", "GET /dashboard/events", "GET /bin/{file}", "GET /open-in-codehub.svg"}
	// Pages of any user, about themselves.
	own := []string{"GET /logout", "GET /computer", "GET /{$}", "GET /workspaces/new", "POST /workspaces", "GET /settings/account", "GET /settings/account/password", "POST /settings/account/password",
		"GET /settings/keys/new", "POST /settings/keys", "POST /settings/sessions/end-others", "GET /settings/tokens", "GET /settings/tokens/new", "POST /settings/tokens",
		"GET /cli-login", "POST /cli-login", "GET /device", "POST /device", "GET /notices", "GET /new", "GET /settings/secrets", "GET /settings/secrets/new", "POST /settings/secrets"}
	own = append(own, "GET /settings/dotfiles", "POST /settings/dotfiles", "POST /settings/dotfiles/remove")
	// Pages of a login or registration that waits for a passkey, of which there is none here.
	waiting := []string{"GET /passkey", "POST /passkey", "POST /passkey/options", "POST /passkey/recover", "POST /settings/passkeys/options"}
	own = append(own, "GET /settings/passkeys/new", "POST /settings/passkeys", "GET /settings/passkeys/register", "POST /settings/passkeys/register",
		"GET /settings/passkeys/codes", "POST /settings/passkeys/codes")
	own = append(own, "GET /settings/git-identity", "POST /settings/git-identity", "GET /settings/git-identity/key", "POST /settings/git-identity/key")
	own = append(own, "GET /settings/git/new", "POST /settings/git", "POST /settings/git/{app}/connect", "GET /settings/git/{app}/callback")
	// Pages about an object of one user's.
	objects := []string{"POST /settings/keys/{key}/remove", "POST /settings/sessions/{session}/end", "GET /settings/tokens/{token}/revoke", "POST /settings/tokens/{token}/revoke", "POST /notices/{notice}/dismiss"}
	objects = append(objects, "POST /settings/git/{connection}/disconnect", "GET /settings/secrets/{secret}/edit", "POST /settings/secrets/{secret}/edit", "GET /settings/secrets/{secret}/delete", "POST /settings/secrets/{secret}/delete",
		"GET /settings/passkeys/{passkey}/rename", "POST /settings/passkeys/{passkey}/rename",
		"GET /settings/passkeys/{passkey}/remove", "POST /settings/passkeys/{passkey}/remove")
	if len(patterns) < 100 {
		t.Fatalf("only %d pages", len(patterns))
	}
	for _, pattern := range patterns {
		if slices.Contains(open, pattern) {
			continue
		}
		method, path, _ := strings.Cut(pattern, " ")
		// What the path names is made for each page, since pages change it.
		name := fmt.Sprint("w", time.Now().UnixNano())
		id, person, group := uuid.NewString(), "", ""
		if strings.Contains(path, "{id}") {
			target := w.AddWorkspace(w.caller("ann"), name)
			w.observe(target.ID, standby)
			id = string(target.ID)
			for user, access := range map[string]workspace.Access{"uma": workspace.AccessUse, "vic": workspace.AccessView} {
				if _, err := w.DB.Share(t.Context(), w.caller("ann"), target.ID, postgres.NewShare{User: user, Access: access}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if strings.Contains(path, "{person}") {
			person = w.AddAccount("v"+name, "another password", false).UserID
		}
		if strings.Contains(path, "{group}") {
			g, err := w.DB.CreateGroup(t.Context(), w.caller("admin"), postgres.Group{Name: "g" + name})
			if err != nil {
				t.Fatal(err)
			}
			group = g.ID
			for user, admin := range map[string]bool{"ann": false, "gina": true, person: false} {
				if user == "" {
					continue
				}
				if _, err := w.DB.SetMember(t.Context(), w.caller("admin"), group, user, &admin); err != nil {
					t.Fatal(err)
				}
			}
		}
		at := strings.NewReplacer("{id}", id, "{person}", person, "{$}", "", "{key}", id, "{session}", id,
			"{token}", id, "{app}", "company", "{connection}", id, "{notice}", id, "{passkey}", id, "{secret}", id, "{group}", group).Replace(path)
		row := func() string {
			return fixture.Query[string](w, `SELECT COALESCE((SELECT w::text FROM workspaces w WHERE id = $1), '')`, id)
		}
		// ask requests the page. A refusal has nothing of the workspace and changes nothing.
		ask := func(b *browser) int {
			t.Helper()
			form := url.Values{}
			if method == http.MethodPost {
				form = url.Values{"name": {"x"}, "confirm": {name}}
			}
			before := row()
			a := b.do(method, at, form)
			told := b == uma || b == vic // by the notice of the share
			if a.status == http.StatusForbidden && (!told && strings.Contains(a.body, name) || row() != before) {
				t.Errorf("%s: a refusal has the name of the workspace, or changed it: %s", pattern, a.body)
			}
			return a.status
		}
		refusedTo := func(browsers ...*browser) {
			for _, b := range browsers {
				if s := ask(b); s != http.StatusForbidden {
					t.Errorf("%s by one who may not: %d", pattern, s)
				}
			}
		}
		allowedTo := func(browsers ...*browser) {
			for _, b := range browsers {
				if s := ask(b); s == http.StatusForbidden || s == http.StatusUnauthorized || s >= 500 {
					t.Errorf("%s by one who may: %d", pattern, s)
				}
			}
		}
		outside := func(status int) bool { return status == http.StatusSeeOther || status == http.StatusUnauthorized }
		if s := ask(w.browser()); !outside(s) {
			t.Errorf("%s without a session: %d", pattern, s)
		}
		if s := ask(disabled); !outside(s) {
			t.Errorf("%s by a disabled user: %d", pattern, s)
		}
		switch {
		case strings.HasPrefix(path, "/admin"):
			if a, b := ask(eve), ask(ann); a != http.StatusForbidden || b != http.StatusForbidden {
				t.Errorf("%s by users: %d, %d", pattern, a, b)
			}
			if s := ask(boss); s == http.StatusForbidden || s == http.StatusUnauthorized || s >= 500 {
				t.Errorf("%s by an administrator: %d", pattern, s)
			}
		case path == "/groups" && method == http.MethodPost, path == "/groups/new", strings.HasPrefix(path, "/groups/{group}/edit"), strings.HasPrefix(path, "/groups/{group}/delete"), strings.HasPrefix(path, "/groups/{group}/secrets"):
			refusedTo(eve, ann, gina)
			allowedTo(boss)
		case strings.HasPrefix(path, "/groups/{group}/"): // of those who add and remove members
			refusedTo(eve, ann)
			allowedTo(gina, boss)
		case path == "/groups/{group}":
			refusedTo(eve)
			allowedTo(ann, gina, boss)
		case path == "/shared":
			allowedTo(eve, ann, gina, boss)
		case strings.HasPrefix(path, "/shared/{id}"): // of guests
			refusedTo(eve, ann, boss)
			allowedTo(uma, vic)
		case path == "/workspaces/{id}/terminal":
			refusedTo(eve, boss, vic)
			allowedTo(ann, uma)
		case path == "/groups":
			allowedTo(eve, ann, gina, boss)
		case strings.HasPrefix(path, "/workspaces/{id}"):
			// An administrator never enters the workspace of another user.
			refused := http.StatusForbidden
			if strings.HasSuffix(path, "/unshare-port") {
				refused = http.StatusNotFound // this world serves no ports
			}
			// Neither does a guest see or change more of it than the pages of shared workspaces.
			toGuests := refused
			if pattern == "GET /workspaces/{id}" {
				toGuests = http.StatusSeeOther
			}
			if a, b := ask(uma), ask(vic); a != toGuests || b != toGuests {
				t.Errorf("%s by guests: %d, %d", pattern, a, b)
			}
			if a, b := ask(eve), ask(boss); a != refused || b != refused {
				t.Errorf("%s by another user: %d, by an administrator: %d", pattern, a, b)
			}
			if s := ask(ann); s == http.StatusForbidden || s == http.StatusUnauthorized {
				t.Errorf("%s by its owner: %d", pattern, s)
			}
		case slices.Contains(waiting, pattern):
			if s := ask(eve); !outside(s) {
				t.Errorf("%s by a user: %d", pattern, s)
			}
		case slices.Contains(own, pattern), slices.Contains(objects, pattern):
			if strings.Contains(pattern, "end-others") || strings.Contains(pattern, "password") {
				continue // they end what this test needs; users have tests of their own
			}
			if s := ask(eve); s == http.StatusForbidden || s == http.StatusUnauthorized || s >= 500 {
				t.Errorf("%s by a user: %d", pattern, s)
			}
		default:
			t.Errorf("no rule says who may see %s", pattern)
		}
	}
}

// Each action of an administrator works as a form, with and without scripts, and its owner gets
// a notice.
func TestAdministratorActs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ann, bob := w.person("ann"), w.person("bob")
	boss := w.loggedIn()
	id := w.AddWorkspace(w.caller("ann"), "<b>shop</b>").ID
	w.observe(id, running)
	w.want(id, "desired_state", "RUNNING")
	w.Exec(`UPDATE workspaces SET home_bytes = 7000000000, memo = 'the key is under the mat' WHERE id = $1`, string(id))
	at := "/admin/workspaces/" + string(id)

	a := boss.get("/admin/workspaces?sort=bytes&order=desc")
	contains(t, "the table", a.body, "&lt;b&gt;shop&lt;/b&gt;", ">ann</a>", "6.5 GiB", `aria-sort="descending"`, `class="tone-running"`)
	if strings.Contains(a.body, "<b>shop") || strings.Contains(a.body, "under the mat") {
		t.Error("the table has a script or a note")
	}
	a = boss.get(at)
	contains(t, "its page", a.body, at+"/stop", at+"/message", at+"/delete")
	if strings.Contains(a.body, "under the mat") || strings.Contains(a.body, `href="/w/`) {
		t.Error("the page has notes, or a way in")
	}
	contains(t, "the menu", boss.get(at+"/actions", "HX-Request", "true").body, at+"/stop", "<dialog")
	w.logs.print("listening <here>")
	contains(t, "the log", boss.htmx(at+"/logs", nil).body, "listening &lt;here&gt;")

	contains(t, "the form", boss.get(at+"/stop", "HX-Request", "true").body, `name="message"`, `name="force"`)
	contains(t, "stop", boss.htmx(at+"/stop", url.Values{"message": {"It fills\nthe <disk>."}}).body, "will stop")
	a = ann.get("/notices")
	contains(t, "the owner's notices", a.body, "admin stopped your workspace “&lt;b&gt;shop&lt;/b&gt;”.", "It fills\nthe &lt;disk&gt;.", "/dismiss")
	contains(t, "again", boss.htmx(at+"/stop", nil).body, "toast")
	contains(t, "too long", boss.htmx(at+"/message", url.Values{"message": {strings.Repeat("x", 2001)}}).body, "at most 2000")
	contains(t, "empty", boss.htmx(at+"/message", url.Values{"message": {" "}}).body, "e-message")

	w.observe(id, standby)
	contains(t, "an unknown user", boss.htmx(at+"/hand-over", url.Values{"to": {"nobody"}, "name": {"shop"}}).body, "no user with this name")
	w.AddWorkspace(w.caller("bob"), "shop")
	give := url.Values{"to": {"BOB"}, "name": {"ann’s shop"}, "message": {"ann has left"}}
	contains(t, "hand-over", boss.htmx(at+"/hand-over", give).body, "ann must accept the hand-over")
	contains(t, "its page", boss.get(at).body, "ann must accept the hand-over to bob.", at+"/withdraw")
	own := "/workspaces/" + string(id)
	contains(t, "the owner's notice", ann.get("/").body, "admin asks you to hand over your workspace “&lt;b&gt;shop&lt;/b&gt;” to bob.", `href="`+own+`"`)
	contains(t, "the owner's page", ann.get(own).body, "admin asks you to hand over this workspace to bob.", "ann has left", `value="decline"`)
	if a := ann.post(own+"/hand-over", url.Values{"answer": {"decline"}}); a.status != http.StatusSeeOther {
		t.Errorf("decline: %d", a.status)
	}
	contains(t, "declined", boss.get(at).body, "ann declined the hand-over to bob")
	contains(t, "withdrawal", boss.htmx(at+"/withdraw", nil).body, "is withdrawn")
	boss.htmx(at+"/hand-over", give)
	if a := ann.post(own+"/hand-over", url.Values{"answer": {"accept"}}); a.status != http.StatusSeeOther || !strings.HasPrefix(a.header.Get("Location"), "/?") {
		t.Errorf("acceptance: %d %s", a.status, a.header.Get("Location"))
	}
	contains(t, "the new owner", bob.get("/notices").body, "gave you the workspace “ann’s shop” of ann.", "ann has left")
	if a := ann.get("/workspaces/" + string(id)); a.status != http.StatusForbidden {
		t.Errorf("the former owner opens it: %d", a.status)
	}
	contains(t, "the audit log", boss.get("/admin/audit?target="+string(id)).body, "Handed over", "workspace.hand_over", "ann’s shop", "127.0.0.1", "ann has left")
	contains(t, "its filter", boss.get("/admin/audit?user=bob&action=workspace.").body, "workspace.create")
	contains(t, "nothing", boss.get("/admin/audit?user=%27+OR+1%3D1").body, "No entry matches.")

	contains(t, "the audit log", boss.get("/admin/audit?target="+string(id)).body, "workspace.log_read")

	// Every way in stays closed: the IDE, its ports and its terminal.
	for _, path := range []string{"/w/" + string(id) + "/", "/w/" + string(id) + "/proxy/3000/", "/workspaces/" + string(id) + "/terminal", "/workspaces/" + string(id) + "/download", "/workspaces/" + string(id) + "/env"} {
		if a := boss.get(path, "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"); a.status != http.StatusForbidden {
			t.Errorf("an administrator at %s: %d", path, a.status)
		}
	}
	contains(t, "to oneself", boss.htmx(at+"/hand-over", url.Values{"to": {"admin"}, "name": {"x"}}).body, "cannot get the workspace")

	// A notice is dismissed by its user alone.
	notice := fixture.Query[string](w, `SELECT id::text FROM user_notices WHERE kind = 'received'`)
	ann.htmx("/notices/"+notice+"/dismiss", nil)
	if strings.Contains(bob.htmx("/notices/"+notice+"/dismiss", nil).body, "gave you") || strings.Contains(bob.get("/notices").body, "gave you") {
		t.Error("the notice stays")
	}

	// The banner is on every page of every user.
	contains(t, "the banner's form", boss.get("/admin/banner").body, `name="message"`)
	contains(t, "the banner", boss.htmx("/admin/banner", url.Values{"message": {"Down at <ten>."}}).body, "The banner is set.")
	for _, path := range []string{"/", "/settings/account", "/settings/tokens", "/workspaces/" + string(id)} {
		contains(t, path, bob.get(path).body, `id="maintenance"`, "Down at &lt;ten&gt;.")
	}
	boss.htmx("/admin/banner", url.Values{"message": {""}})
	if strings.Contains(bob.get("/").body, "maintenance") {
		t.Error("the banner stays")
	}

	// The workspace of a disabled user is handed over at once.
	w.AddWorkspace(w.caller("ann"), "taken")
	w.Exec(`UPDATE users SET disabled = true WHERE username = 'bob'`)
	contains(t, "a taken name", boss.htmx(at+"/hand-over", url.Values{"to": {"ann"}, "name": {"taken"}}).body, "Choose another name")
	contains(t, "hand-over", boss.htmx(at+"/hand-over", url.Values{"to": {"ann"}, "name": {"shop"}}).body, "now belongs to ann")
	contains(t, "the new owner", ann.get("/notices").body, "gave you the workspace “shop” of bob.")
}

// Users are limited, disabled with their workspaces, and deleted with a choice for these.
func TestUsersAreDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ann := w.person("ann")
	w.person("bob")
	boss := w.loggedIn()
	id := w.AddWorkspace(w.caller("ann"), "shop").ID
	w.observe(id, running)
	w.want(id, "desired_state", "RUNNING")
	person := "/admin/people/" + w.userID("ann")
	contains(t, "limits", boss.htmx(person+"/quota", url.Values{"max_workspaces": {"3"}, "max_bytes": {"20g"}}).body, "The limits of ann were changed.", "1 of 3", "0 B of 20 GiB", "custom")
	contains(t, "the form", boss.get(person+"/quota").body, `value="20g"`, `value="3"`)
	contains(t, "a bad size", boss.htmx(person+"/quota", url.Values{"max_bytes": {"much"}}).body, "e-max_bytes")
	contains(t, "the form", boss.get(person+"/delete").body, "The user has 1 workspace", `value="hand_over" checked`)
	contains(t, "not stopped", boss.htmx(person+"/delete", url.Values{"theirs": {"hand_over"}, "to": {"bob"}}).body, "are not stopped")
	contains(t, "disable", boss.htmx(person+"/disable", url.Values{"stop": {"on"}}).body, "ann was disabled.")
	if w := fixture.Query[string](w, `SELECT desired_state FROM workspaces WHERE id = $1`, id); w != "STANDBY" {
		t.Errorf("the workspace is to be %s", w)
	}
	w.observe(id, standby)
	contains(t, "no user", boss.htmx(person+"/delete", url.Values{"theirs": {"hand_over"}, "to": {"nobody"}}).body, "no user with this name")
	contains(t, "delete", boss.htmx(person+"/delete", url.Values{"theirs": {"hand_over"}, "to": {"bob"}}).body, "ann was deleted.")
	if owner := fixture.Query[string](w, `SELECT username FROM users u JOIN workspaces w ON w.owner_user_id = u.id WHERE w.id = $1`, id); owner != "bob" {
		t.Errorf("it is %s's", owner)
	}
	if a := ann.get("/"); a.status != http.StatusSeeOther {
		t.Errorf("ann is still logged in: %d", a.status)
	}
	if a := boss.get("/admin/people/" + w.userID("admin") + "/delete"); a.status != http.StatusOK {
		t.Error(a.status)
	}
	contains(t, "oneself", boss.htmx("/admin/people/"+w.userID("admin")+"/delete", nil).body, "cannot delete your own account")
}

// populate adds 200 users with 2,000 workspaces in many states. One of them fills the disk.
func (w *world) populate() (largest workspace.ID) {
	w.t.Helper()
	w.Exec(`ALTER TABLE workspaces DISABLE TRIGGER USER`)
	w.Exec(`INSERT INTO users (id, username, username_key, password_hash) SELECT gen_random_uuid(), 'user-' || lpad(i::text, 3, '0'), 'user-' || lpad(i::text, 3, '0'), 'x' FROM generate_series(1, 199) i`)
	w.Exec(`
		INSERT INTO workspaces (id, owner_user_id, name, image_ref, storage_backend, desired_state, phase, conditions, home_ctx, last_access_at, created_at, phase_changed_at, home_bytes, archives_bytes)
		SELECT gen_random_uuid(), u.ids[1 + i % 199], (ARRAY['api', 'web', 'data', 'docs', 'infra', 'mobile', 'ml', 'tools'])[1 + i % 8] || '-' || i, (ARRAY['codehub/workspace:latest', 'python:3.13', 'registry.example.com/team/go:1.26'])[1 + i % 3], 'docker-volume',
			CASE WHEN i % 25 = 0 THEN 'RUNNING' WHEN i % 4 = 1 THEN 'STANDBY' ELSE 'ARCHIVED' END, CASE WHEN i % 25 = 0 THEN 'RUNNING' WHEN i % 4 = 1 THEN 'STANDBY' ELSE 'ARCHIVED' END,
			'{"infra.container_ready": {"status": "False", "reason": "NoContainer"}}', '{"state": "live"}',
			now() - i * interval '41 minutes', now() - i * interval '3 hours', now() - i * interval '41 minutes', (i * 7919::bigint % 4000) * 1000000, (i * 104729::bigint % 900) * 1000000
		FROM generate_series(1, 2000) i, (SELECT array_agg(id) AS ids FROM users WHERE username LIKE 'user-%') u`)
	w.Exec(`INSERT INTO workspace_usage (day, workspace_id, owner_user_id, running_seconds, cpu_seconds, memory_seconds, home_bytes, archives_bytes)
		SELECT (now() AT TIME ZONE 'UTC')::date - d, id, owner_user_id, 3600 * 5, 3600 * 2.5, 3600.0 * 4 * 1073741824, home_bytes, archives_bytes FROM workspaces, generate_series(0, 9) d`)
	w.Exec(`ALTER TABLE workspaces ENABLE TRIGGER USER`)
	largest = w.AddWorkspace(w.caller("mina"), "model-training").ID
	w.observe(largest, running)
	w.want(largest, "desired_state", "RUNNING")
	w.used(largest, 26*time.Hour)
	w.Exec(`UPDATE workspaces SET home_bytes = 412000000000, archives_bytes = 3000000000, created_at = now() - interval '12 days' WHERE id = $1`, string(largest))
	w.Exec(`INSERT INTO workspace_usage (day, workspace_id, owner_user_id, running_seconds, cpu_seconds, memory_seconds, home_bytes, archives_bytes)
		SELECT (now() AT TIME ZONE 'UTC')::date - d, id, owner_user_id, 86400, 86400 * 1.7, 86400.0 * 6 * 1073741824, 412000000000 - d * 40000000000, 3000000000 FROM workspaces, generate_series(0, 9) d WHERE id = $1`, string(largest))
	w.Exec(`ANALYZE`)
	return largest
}

// An administrator's day in a browser, in Korean, with 200 users and 2,000 workspaces:
// find the workspace that fills the disk, see whose it is and since when, stop it, tell its
// owner, hand it over, and read in the audit log that it happened.
func TestAdministratorsDay(t *testing.T) {
	t.Parallel()
	l := screens[1] // in Korean
	w := newWorld(t)
	shots := t.ArtifactDir()
	mina, joon := w.person("mina"), w.person("joon")
	largest := w.populate()
	id := string(largest)
	b := w.tab()
	b.as(l)
	b.logIn()

	b.visit("/admin")
	b.press(`a[href^="/admin/workspaces"]`)
	b.until(`document.querySelector('#all-table tbody tr')?.id === 'any-` + id + `'`)
	b.until(`document.querySelectorAll('#all-table tbody tr').length === 50`)
	b.visit("/admin/workspaces?sort=bytes&order=desc")
	b.shoot(shots, l, "day-table")
	b.until(`document.querySelector('[id="any-` + id + `"] td').textContent.includes('mina')`)

	b.press(`[id="any-` + id + `"] th a`)
	b.shown("#any-panel")
	b.shoot(shots, l, "day-workspace")
	b.until(`document.querySelectorAll('.table-days tbody tr').length === 10`)
	b.press("#any-stop")
	b.shown("dialog[open] #f-message")
	b.enter("#f-message", "It fills the disk.")
	b.shoot(shots, l, "day-stop")
	b.press("#dialog-form button[type=submit]")
	b.until(`!document.querySelector('dialog[open]') && document.querySelector('.toast')`)
	if got := fixture.Query[string](w, `SELECT desired_state FROM workspaces WHERE id = $1`, id); got != "STANDBY" {
		t.Fatalf("it is to be %s", got)
	}
	contains(t, "mina's page", mina.get("/notices").body, "It fills the disk.")

	// The page follows what the controller does.
	w.observe(largest, standby)
	b.shown("#any-hand-over")
	b.press("#any-message")
	b.shown("dialog[open] #f-message")
	b.enter("#f-message", "Joon takes it over.")
	b.press("#dialog-form button[type=submit]")
	b.until(`!document.querySelector('dialog[open]')`)
	b.press("#any-hand-over")
	b.shown("dialog[open] #f-to")
	b.enter("#f-to", "joon")
	b.shoot(shots, l, "day-hand-over")
	b.press("#dialog-form button[type=submit]")
	b.until(`!document.querySelector('dialog[open]')`)
	b.shown("#any-withdraw")
	contains(t, "mina's page", mina.get("/notices").body, "Joon takes it over.", "joon")
	if a := mina.post("/workspaces/"+id+"/hand-over", url.Values{"answer": {"accept"}}); a.status != http.StatusSeeOther {
		t.Errorf("mina accepts: %+v", a)
	}
	b.visit("/admin/workspaces/" + id)
	b.until(`document.querySelector('.facts dd').textContent.includes('joon')`)
	contains(t, "joon's page", joon.get("/notices").body, "model-training", "mina")

	b.press(`a[href^="/admin/audit?target="]`)
	b.shown(".table-audit")
	b.until(`['workspace.hand_over', 'workspace.message', 'workspace.desired_state'].every(a => document.querySelector('tr[data-action="' + a + '"]'))`)
	b.shoot(shots, l, "day-audit")

	// The table is live: another user's workspace changes in it, from its menu.
	b.visit("/admin/workspaces?sort=bytes&order=desc")
	b.press(`[id="act-` + id + `"]`)
	b.shown("dialog[open] #any-archive-menu")
	b.press("#any-archive-menu")
	b.shown("dialog[open] #f-message")
	b.press("#dialog-form button[type=submit]")
	b.until(`document.querySelector('[id="any-` + id + `"]').dataset.state === 'archiving'`)
	w.observe(largest, archived("k", 1))
	b.until(`document.querySelector('[id="any-` + id + `"]').dataset.state === 'archived'`)
	w.Exec(`DELETE FROM user_notices`)
	if _, err := w.DB.SetBanner(t.Context(), w.caller(auth.AdminUsername), "Maintenance at ten."); err != nil {
		t.Fatal(err)
	}
	b.until(`document.querySelector('#maintenance')?.textContent.includes('Maintenance at ten.')`)
}
