package dashboard

import (
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/gateway/origin"
	"codehub/internal/postgres"
	"codehub/internal/running/devcontainers"
	"codehub/internal/runtime/agent"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/web"
	"codehub/internal/web/proxy"
	"codehub/internal/workspace"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
)

// screen is a browser's screen, colour scheme and language.
type screen struct {
	name, scheme, language string
	width, height          int64
}

var screens = []screen{
	{"light-wide-en", "light", "en-US,en", 1280, 860},
	{"dark-wide-ko", "dark", "ko-KR,ko", 1280, 860},
	{"dark-phone-en", "dark", "en-US,en", 390, 844},
	{"light-phone-ko", "light", "ko-KR,ko", 390, 844},
}

// screens returns the screens on which a test shows a page: four for screenshots and in make
// verify, otherwise one, each of the four in turn.
func (b *tab) screens() []screen {
	switch {
	case screenshots != "":
		return sheetScreens
	case harness.Verifying():
		return screens
	}
	l := screens[b.turn%len(screens)]
	b.turn++
	return []screen{l}
}

// as sets the tab's screen.
func (b *tab) as(l screen) {
	b.t.Helper()
	opts := []chromedp.EmulateViewportOption{}
	if l.width < 600 {
		opts = append(opts, chromedp.EmulateMobile, chromedp.EmulatePortrait)
	}
	b.run(chromedp.EmulateViewport(l.width, l.height, opts...))
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: l.scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}}})
	if err == nil {
		_, err = chromedp.Call(b.ctx, network.SetExtraHTTPHeaders, network.SetExtraHTTPHeadersParams{Headers: network.Headers{"Accept-Language": l.language}})
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// fill creates a workspace in every state that has a view of its own.
func (w *world) fill() map[string]workspace.ID {
	ids := map[string]workspace.ID{}
	long := time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)
	id := w.add("archived-blog", standby)
	w.observe(id, archived(w.keep(id, generation1, 734_000_000, 12_345, long), 734_000_000))
	w.keep(id, generation0, 690_000_000, 11_987, long.Add(-50*24*time.Hour))
	w.want(id, "desired_state", "ARCHIVED")
	ids["archived"] = id
	ids["missing"] = w.add("photo-archive", standby)
	key := w.keep(ids["missing"], generation3, 3_100_000_000, 4_321, long)
	w.keep(ids["missing"], generation2, 2_900_000_000, 4_300, long.Add(-9*24*time.Hour))
	w.observe(ids["missing"], func(ws *workspace.Workspace) {
		archived(key, 3_100_000_000)(ws)
		ws.Conditions = ws.Conditions.With(workspace.ArchiveReady, false, workspace.ReasonArchiveMissing, key, time.Now().UTC())
		dataLost(ws, "The archive "+key+" is missing.")
	})
	w.Exec(`UPDATE archives SET missing_since = now() WHERE key = $1`, key) // as garbage collection does
	ids["archiving"] = w.add("compiler", moving(standby, workspace.OpArchiving,
		workspace.Progress{Step: "packing", Done: 412_000_000, Total: 1_240_000_000, Entries: 12_345, EntriesTotal: 98_765, Rate: 48_000_000, SecondsLeft: 18}))
	w.want(ids["archiving"], "desired_state", "ARCHIVED")
	w.want(ids["archiving"], "next_desired_state", "RUNNING")
	ids["restoring"] = w.add("game-server", func(ws *workspace.Workspace) {
		moving(archived("k", 1), workspace.OpRestoring, workspace.Progress{Step: "unpacking", Done: 88_000_000, Entries: 911})(ws)
		ws.Home.State = workspace.HomeFilling
	})
	w.want(ids["restoring"], "desired_state", "STANDBY")

	ids["lost"] = w.add("thesis", volumeLost)
	latest := w.keep(ids["lost"], generation4, 48_000_000, 1_210, long)
	w.observe(ids["lost"], func(ws *workspace.Workspace) {
		ws.ArchiveKey, ws.ArchiveDigest, ws.ArchiveSize = latest, "digest", 48_000_000
		ws.Conditions = ws.Conditions.With(workspace.ArchiveReady, true, workspace.ReasonArchiveReady, latest, time.Now().UTC())
	})
	ids["bare"] = w.add("sketches", volumeLost)
	ids["pull"] = w.add("legacy-api", failed(workspace.ErrImagePullFailed,
		`Error response from daemon: pull access denied for example/legacy-api, repository does not exist or may require 'docker login'`))
	ids["stopping"] = w.add("data-pipeline", operating(running, workspace.OpStopping))
	w.want(ids["stopping"], "next_desired_state", "RUNNING")
	ids["retry"] = w.add("mobile-app", func(ws *workspace.Workspace) {
		standby(ws)
		at := time.Now().Add(40 * time.Second)
		ws.ErrorReason, ws.ErrorCount, ws.RetryAt, ws.ErrorMessage = workspace.ErrActionFailed, 1, &at, "driver failed programming external connectivity"
	})
	w.want(ids["retry"], "desired_state", "RUNNING")
	ids["stopped"] = w.add("design-system", standby)
	ids["pull-progress"] = w.add("machine-learning", func(ws *workspace.Workspace) {
		operating(standby, workspace.OpStarting)(ws)
		ws.Progress = &workspace.Progress{Step: runtimeStepPulling, Done: 412_000_000, Total: 1_240_000_000}
	})
	w.want(ids["pull-progress"], "desired_state", "RUNNING")
	ids["running"] = w.add("web-frontend", running)
	w.want(ids["running"], "desired_state", "RUNNING")
	for id, about := range map[workspace.ID]string{
		ids["running"]: "The shop’s storefront", ids["stopped"]: "Shared components and tokens, with the docs site in the same repository so that both are released together",
		ids["lost"]: "Chapters, figures and the reference list", ids["pull-progress"]: "Notebooks for the recommendation model",
	} {
		w.want(id, "description", about)
	}
	w.want(ids["running"], "memo", "Runs on port 3000.\nStaging: ask Mina for the key.")
	w.used(ids["running"], 9*time.Minute)
	ids["awake"] = w.add("nightly-build", running)
	w.want(ids["awake"], "desired_state", "RUNNING")
	w.used(ids["awake"], 70*time.Minute)
	w.want(ids["awake"], "keep_awake_until", time.Now().Add(3*time.Hour))
	ids["idle"] = w.add("quiet-notes", func(ws *workspace.Workspace) { standby(ws); ws.StopReason = "idle" })
	w.Exec(`UPDATE workspaces SET last_access_at = now() - interval '25 minutes', phase_changed_at = now() - interval '12 minutes' WHERE id = $1`, string(ids["idle"]))
	w.Exec(`UPDATE workspaces SET desired_cause = 'unused' WHERE id = $1`, string(ids["archived"]))
	ids["deleted"] = w.add("old-experiment", standby)
	if _, err := w.DB.DeleteWorkspace(w.t.Context(), w.caller("admin"), ids["deleted"], false); err != nil {
		w.t.Fatal(err)
	}
	w.observe(ids["deleted"], func(ws *workspace.Workspace) { ws.Phase = workspace.PhaseDeleting })
	ids["delete-failed"] = w.add("old-prototype", standby)
	if _, err := w.DB.DeleteWorkspace(w.t.Context(), w.caller("admin"), ids["delete-failed"], false); err != nil {
		w.t.Fatal(err)
	}
	w.observe(ids["delete-failed"], func(ws *workspace.Workspace) {
		ws.Phase, ws.Home.State, ws.ErrorReason = workspace.PhaseDeleting, workspace.HomeDeleting, workspace.ErrTimeout
		ws.ErrorMessage = "DELETING did not finish in time."
	})
	w.logs.text = "[2026-03-01T10:12:01.123Z] info  code-server 4.139.1\n[2026-03-01T10:12:01.126Z] info  Using user-data-dir /home/coder/.local/share/code-server\n" +
		"[2026-03-01T10:12:01.180Z] info  HTTP server listening on http://0.0.0.0:8080/\n\x1b[32m[10:12:04] Extension host agent started.\x1b[0m\nnpm: the cache in /home/coder/.npm is owned by another user\n"
	return ids
}

// waits creates the workspaces whose pages under /w/ need more than fill creates.
func (w *world) waits(ids map[string]workspace.ID) {
	ids["pending"] = w.add("weekend-project", func(*workspace.Workspace) {})
	w.want(ids["pending"], "desired_state", "ARCHIVED")
	began := time.Now().Add(-time.Minute)
	ids["starting"] = w.add("api-server", func(ws *workspace.Workspace) {
		starting(ws)
		ws.Progress = &workspace.Progress{Step: "waiting", Steps: []workspace.ProgressStep{
			{Step: runtimeStepPulling, BeganAt: began, Done: 1_240_000_000}, {Step: "creating", BeganAt: began.Add(48 * time.Second)},
			{Step: "starting", BeganAt: began.Add(49 * time.Second)}, {Step: "waiting", BeganAt: began.Add(51 * time.Second)},
		}}
	})
	w.want(ids["starting"], "desired_state", "RUNNING")
	ids["ann's"] = w.AddWorkspace(w.caller("ann"), "ann's").ID
	w.logs.mu.Lock()
	defer w.logs.mu.Unlock()
	w.logs.addr = "127.0.0.1:1" // nothing listens there
}

// elsewhere returns the paths of pages that only certain hosts or requests show.
func (w *world) elsewhere() map[string]string {
	paths := map[string]string{}
	serve := func(name string, page http.HandlerFunc) {
		paths[name] = "/elsewhere/" + name
		w.mux.HandleFunc("GET "+paths[name], page)
	}
	for _, n := range []proxy.Notice{proxy.NoticePort, proxy.NoticeCookieConflict, proxy.NoticeMisdirected} {
		serve("notice-"+strings.ReplaceAll(string(n), "_", "-"), func(rw http.ResponseWriter, r *http.Request) {
			status := map[proxy.Notice]int{proxy.NoticePort: 502, proxy.NoticeCookieConflict: 400, proxy.NoticeMisdirected: 421}[n]
			w.dash.Notice(rw, r, status, proxy.NoticePage{Notice: n, Port: 3000, Again: w.HTTP.URL + r.URL.Path, Home: w.HTTP.URL + "/"})
		})
	}
	serve("cookie-conflict", w.dash.CookieConflict)
	serve("busy", func(rw http.ResponseWriter, r *http.Request) {
		w.dash.Busy(rw, r, http.StatusTooManyRequests, proxy.PlainPage{Path: r.URL.Path})
	})
	return paths
}

// volumeLost is the row that the controller writes after a home volume was removed.
func volumeLost(ws *workspace.Workspace) {
	standby(ws)
	ws.Conditions = ws.Conditions.With(workspace.VolumeReady, false, workspace.ReasonNoVolume, "", time.Now().UTC())
	dataLost(ws, "The home volume "+ws.ID.VolumeName()+" is missing.")
}

// dataLost sets the error of lost data and the condition that causes it.
func dataLost(ws *workspace.Workspace, message string) {
	ws.Conditions = ws.Conditions.With(workspace.Healthy, false, string(workspace.ErrDataLost), message, time.Now().UTC())
	ws.Phase, ws.ErrorReason, ws.ErrorMessage = workspace.PhaseError, workspace.ErrDataLost, message
}

const runtimeStepPulling = "pulling"

// The archive_op_ids in the bucket.
const (
	generation0 = "01900000-0000-7000-8000-000000000000"
	generation1 = "01900000-0000-7000-8000-000000000001"
	generation2 = "01900000-0000-7000-8000-000000000002"
	generation3 = "01900000-0000-7000-8000-000000000003"
	generation4 = "01900000-0000-7000-8000-000000000004"
)

// troubled is a Trouble that tests set.
type troubled struct{ what atomic.Value }

func (t *troubled) set(what string) { t.what.Store(what) }
func (t *troubled) get() string     { s, _ := t.what.Load().(string); return s }

// TestPagesOnEveryScreen opens every page in light and dark, wide and on a phone, in both
// languages, and checks it for flaws, violations of the content policy and script errors. make
// test shows each page on one of the four screens, which takes 35 s for some 150 pages. With
// -artifacts it keeps screenshots.
func TestPagesOnEveryScreen(t *testing.T) {
	t.Parallel()
	trouble, clones := &troubled{}, &setups{}
	w := makeSizedWorld(t, workspace.Sizes{
		Default: workspace.Size{Name: workspace.DefaultSize, NanoCPUs: 2e9, Memory: 4 << 30, Disk: 20e9},
		Offered: []workspace.Size{{Name: "large", NanoCPUs: 8e9, Memory: 16 << 30, Disk: 100e9}},
	}, origin.PathMode, func(*web.Server) {}, func(c *Config) {
		c.PathMode, c.Trouble, c.Restore, c.Setups = true, trouble.get, &restores{plan: restorePlan}, clones
	})
	b := w.tab()
	shots := t.ArtifactDir()
	for _, l := range b.screens() {
		b.as(l)
		b.visit("/setup")
		b.shoot(shots, l, "setup")
	}
	if _, err := w.Auth.EnsureAdmin(t.Context(), adminPassword); err != nil {
		t.Fatal(err)
	}
	ids := map[string]workspace.ID{}
	item := func(key, action string) string { return fmt.Sprintf(`[id="%s-%s"]`, ids[key], action) }

	for _, l := range b.screens() {
		b.as(l)
		b.visit("/login")
		b.shoot(shots, l, "login")
		b.enter("#username", "nobody")
		b.enter("#password", "wrong\r")
		b.shown("#entry-problem")
		b.shoot(shots, l, "login-wrong")
	}
	b.logIn()
	for _, l := range b.screens() {
		b.as(l)
		b.visit("/")
		b.shoot(shots, l, "empty")
		b.visit("/logout")
		b.shoot(shots, l, "logout")
	}
	ids = w.fill()
	w.servers()
	agents, _ := w.withTerminals()
	agents.Start(ids["running"])
	w.dash.Usage = steadyUsage{}
	w.Exec(`UPDATE users SET max_running = 5 WHERE username = 'admin'`)
	w.Exec(`UPDATE orphans SET detail = 'Up 3 days' WHERE detail <> ''`)
	w.Exec(`UPDATE replicas SET health = replace(replace(health::text, '<10.0.0.9>', '10.0.0.9'), '2026-03-01T10:00:00Z', to_char(now() - interval '4 minutes', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))::jsonb`)
	w.person("ann")
	ann := w.userID("ann")
	ids["other"] = w.AddWorkspace(w.caller("ann"), "payments-api").ID
	w.observe(ids["other"], standby)
	w.used(ids["other"], 3*24*time.Hour)
	w.Exec(`UPDATE workspaces SET home_bytes = 8000000000 + (uid_offset % 7) * 1300000000, archives_bytes = 734000000 WHERE phase <> 'PENDING'`)
	w.Exec(`INSERT INTO workspace_usage (day, workspace_id, owner_user_id, running_seconds, cpu_seconds, memory_seconds, home_bytes, archives_bytes)
		SELECT (now() AT TIME ZONE 'UTC')::date - d, id, owner_user_id, 21600 - d * 1800, 9000 - d * 700, 21600.0 * 2 * 1073741824, home_bytes, archives_bytes FROM workspaces, generate_series(0, 6) d`)
	five, twenty := 5, int64(20<<30)
	group, err := w.DB.CreateGroup(t.Context(), w.caller("admin"), postgres.Group{Name: "Platform team", Claim: "platform", MaxRunning: &five, MaxBytes: &twenty})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.DB.SetMember(t.Context(), w.caller("admin"), group.ID, "ann", new(true)); err != nil {
		t.Fatal(err)
	}
	secret, err := w.dash.Secrets.Create(t.Context(), w.caller("admin"), api.CreateSecret{Name: "npm", Value: "x", Env: "NPM_TOKEN", File: "~/.npmrc", WorkspaceID: string(ids["running"])})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.dash.Secrets.CreateGroup(t.Context(), w.caller("admin"), group.ID, api.CreateSecret{Name: "registry", Value: "x", File: "~/.config/containers/auth.json"}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.dash.GitIdentities.Set(t.Context(), w.caller("admin"), api.SetGitIdentity{Name: "Ann Lee", Email: "ann@example.com", SignCommits: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.dash.Git.Connect(t.Context(), w.caller("admin"), api.NewGitConnection{Host: "git.example.com", Login: "admin", Token: "x"}); err != nil {
		t.Fatal(err)
	}
	for owner, id := range map[string]workspace.ID{"ann": ids["other"], "admin": ids["running"]} {
		with := map[string]string{"ann": "admin", "admin": "ann"}[owner]
		if _, err := w.DB.Share(t.Context(), w.caller(owner), id, postgres.NewShare{User: with, Access: workspace.AccessUse}); err != nil {
			t.Fatal(err)
		}
	}
	w.Exec(`DELETE FROM user_notices`) // those of the shares
	for _, l := range b.screens() {
		b.as(l)
		w.used(ids["running"], 8*time.Minute+30*time.Second)
		b.visit("/")
		b.shoot(shots, l, "list")
		b.press("#new-workspace")
		b.shown("dialog[open]")
		b.shoot(shots, l, "create")
		b.press("#dialog-form button[type=submit]")
		b.shown("#e-name")
		b.shoot(shots, l, "create-wrong")
		b.visit("/")
		b.press("#menu-" + string(ids["running"]) + " > summary")
		b.shoot(shots, l, "menu")
		b.press(item("running", "delete"))
		b.shown("dialog[open]")
		b.shoot(shots, l, "delete")
		b.visit("/")
		b.press("#usermenu > summary")
		b.shoot(shots, l, "account")
	}
	for _, l := range b.screens() {
		b.as(l)
		b.visit("/settings/account")
		b.press("#change-password")
		b.shown("dialog[open] #f-current")
		b.shoot(shots, l, "change-password")
		b.visit("/settings/account")
		b.press("#new-key")
		b.shown("dialog[open] #f-public_key")
		b.shoot(shots, l, "ssh-key-new")
		b.visit("/")
		b.press("#menu-" + string(ids["running"]) + " > summary")
		b.press(item("running", "restart"))
		b.shown("dialog[open]")
		b.shoot(shots, l, "restart")
	}
	for _, l := range b.screens() {
		b.as(l)
		b.visit("/")
		b.press(item("stopped", "start"))
		b.shown("dialog[open]")
		b.shoot(shots, l, "limit")
		b.visit("/workspaces/" + string(ids["lost"]))
		b.shoot(shots, l, "detail-lost")
		b.press(item("lost", "start-empty"))
		b.shown("dialog[open]")
		b.shoot(shots, l, "start-empty")
	}
	for _, l := range b.screens() {
		b.as(l)
		b.visit("/workspaces/" + string(ids["running"]) + "/terminal")
		b.until(`document.querySelector('.xterm-rows > div')?.textContent.trim()`)
		b.shoot(shots, l, "terminal")
		b.visit("/workspaces/" + string(ids["running"]))
		b.shown("#usage-title")
		b.eval(`document.querySelector('#log-box').open = true`)
		b.shown("#log pre")
		b.shoot(shots, l, "detail")
		b.visit("/")
		b.press("#menu-" + string(ids["running"]) + " > summary")
		b.press(item("running", "archive"))
		b.shown("dialog[open]")
		b.shoot(shots, l, "archive")
	}
	for _, l := range b.screens() {
		b.as(l)
		w.Exec(`UPDATE workspaces SET home_bytes = 18900000000 WHERE id = $1`, string(ids["stopped"]))
		b.visit("/workspaces/" + string(ids["stopped"]))
		b.shown("#space-near")
		b.shoot(shots, l, "detail-space")
		w.Exec(`UPDATE workspaces SET home_bytes = 9300000000 WHERE id = $1`, string(ids["stopped"]))
		b.visit("/workspaces/" + string(ids["awake"]))
		b.shoot(shots, l, "detail-awake")
		b.press(item("awake", "keep-awake"))
		b.shown("dialog[open]")
		b.until(`document.querySelector('#f-until').value`)
		b.shoot(shots, l, "keep-awake")
		b.eval(`document.querySelector('#f-until').value = '2020-01-01T00:00'`)
		b.press("#dialog-form button[type=submit]")
		b.shown("#e-until")
		b.shoot(shots, l, "keep-awake-wrong")
		b.visit("/workspaces/" + string(ids["running"]) + "/edit")
		b.eval(`document.querySelector('#f-standby_ttl').value = 'after'`)
		b.press("#dialog-form button[type=submit]")
		b.shown("#e-standby_ttl")
		b.shoot(shots, l, "edit-wrong")
	}
	for _, l := range b.screens() {
		b.as(l)
		b.visit("/admin")
		b.shoot(shots, l, "admin")
		b.eval(`location.hash = 'find-user'`)
		b.until(`scrollY > 0`)
		b.shoot(shots, l, "users")
		b.press("#person-new")
		b.shown("dialog[open]")
		b.shoot(shots, l, "person-new")
		b.press("#dialog-form button[type=submit]")
		b.shown("#e-username")
		b.shoot(shots, l, "person-new-wrong")
		b.visit("/admin/people/import")
		b.shoot(shots, l, "person-import")
		b.eval(`document.querySelector('#f-csv').value = 'name,admin\nann,true\nx y,no'`)
		b.press("#dialog-form button[type=submit]")
		b.shown("#e-csv li")
		b.shoot(shots, l, "person-import-wrong")
		b.eval(`document.querySelector('#f-csv').value = 'name\n` + l.name + `-ria\n` + l.name + `-tom'`)
		b.press("#dialog-form button[type=submit]")
		b.shown("#invitation-csv")
		b.shoot(shots, l, "invited")
		link := value(b, chromedp.Evaluate[string](`document.querySelector('#invitation-list').textContent.split(/\s/)[1]`))
		b.visit("/invitation")
		b.shoot(shots, l, "invitation-code")
		b.visit("/invitation" + link[strings.Index(link, "#"):])
		b.shown("#password2")
		b.shoot(shots, l, "invitation")
		w.Exec(`DELETE FROM users WHERE username LIKE $1`, l.name+"-%")
	}
	for _, l := range b.screens() {
		b.as(l)
		b.visit("/admin")
		b.press("#menu-" + ann + " > summary")
		b.eval(`document.querySelector('#menu-` + ann + ` .menu-list').scrollIntoView({ block: 'end' })`)
		b.shoot(shots, l, "person-menu")
		b.press(fmt.Sprintf(`[id="%s-disable"]`, ann))
		b.shown("dialog[open]")
		b.shoot(shots, l, "person-disable")
		w.Exec(`INSERT INTO banner (message, username) VALUES ('The server is upgraded today at 18:00. Running workspaces stay available.', 'admin')`)
		w.Exec(`INSERT INTO user_notices (id, user_id, kind, workspace_id, workspace_name, by_username, message, created_at) SELECT gen_random_uuid(), id, 'stop', $1, 'web-frontend', 'mina', 'It filled the disk. Please remove old builds.', now() - interval '5 minutes' FROM users WHERE username = 'admin'`, ids["running"])
		b.visit("/notices")
		b.shown("#maintenance")
		b.shoot(shots, l, "notices")
		w.Exec(`DELETE FROM user_notices`)
		w.Exec(`DELETE FROM banner`)
	}
	for _, l := range b.screens() {
		b.as(l)
		b.visit("/admin/workspaces?sort=bytes&order=desc")
		b.shoot(shots, l, "admin-workspaces")
		b.press(`[id="act-` + string(ids["other"]) + `"]`)
		b.shown("dialog[open] .any-menu")
		b.shoot(shots, l, "admin-actions")
		b.visit("/workspaces/" + string(ids["missing"]))
		b.shoot(shots, l, "detail-missing")
		b.press("#choose-" + generation2)
		b.shown("dialog[open]")
		b.shoot(shots, l, "recover-archive")
		b.press("#dialog-form button[type=submit]")
		b.shown("#e-confirm")
		b.shoot(shots, l, "recover-archive-wrong")
		for _, what := range []string{"bucket", "disk"} {
			trouble.set(what)
			b.visit("/workspaces/" + string(ids["archived"]))
			b.shoot(shots, l, "detail-archived-"+what)
		}
		trouble.set("")
	}
	b.shootAll(shots, map[string]string{
		"recover-archive-page": "/workspaces/" + string(ids["missing"]) + "/recover-archive",
		"recover-archive-none": "/workspaces/" + string(ids["bare"]) + "/recover-archive",
		"no-archive":           "/workspaces/" + string(ids["running"]) + "/download",
		"detail-stopped":       "/workspaces/" + string(ids["stopped"]),
		"detail-idle":          "/workspaces/" + string(ids["idle"]),
		"person-limit":         "/admin/people/" + ann + "/limit",
		"person-password":      "/admin/people/" + ann + "/password",
		"person-quota":         "/admin/people/" + ann + "/quota",
		"person-delete":        "/admin/people/" + ann + "/delete",
		"admin-workspace":      "/admin/workspaces/" + string(ids["other"]),
		"admin-failed":         "/admin/workspaces/" + string(ids["lost"]),
		"admin-size":           "/admin/workspaces/" + string(ids["other"]) + "/size",
		"admin-stop":           "/admin/workspaces/" + string(ids["other"]) + "/stop",
		"admin-hand-over":      "/admin/workspaces/" + string(ids["other"]) + "/hand-over",
		"admin-archive":        "/admin/workspaces/" + string(ids["lost"]) + "/recover-archive",
		"admin-audit":          "/admin/audit",
		"admin-settings":       "/admin/settings",
		"groups":               "/groups",
		"admin-templates":      "/admin/templates",
		"admin-template":       "/admin/templates/go",
		"admin-template-new":   "/admin/new-template",
		"new-template":         "/workspaces/new?template=python",
		"duplicate":            "/workspaces/" + string(ids["running"]) + "/duplicate",
		"group":                "/groups/" + group.ID,
		"git-identity":         "/settings/git-identity",
		"git-key":              "/settings/git-identity/key",
		"secrets":              "/settings/secrets",
		"secret-new":           "/settings/secrets/new",
		"dotfiles":             "/settings/dotfiles",
		"secret-delete":        "/settings/secrets/" + secret.ID + "/delete",
		"git-new":              "/settings/git/new?host=github.com",
		"group-edit":           "/groups/" + group.ID + "/edit",
		"group-member":         "/groups/" + group.ID + "/member",
		"shares":               "/workspaces/" + string(ids["running"]) + "/shares",
		"shared":               "/shared",
		"shared-workspace":     "/shared/" + string(ids["other"]) + "?stopped=1",
		"admin-banner":         "/admin/banner",
		"detail-archiving":     "/workspaces/" + string(ids["archiving"]),
		"detail-delete-failed": "/workspaces/" + string(ids["delete-failed"]),
		"wait-archiving":       "/w/" + string(ids["archiving"]) + "/",
		"wait-restoring":       "/w/" + string(ids["restoring"]) + "/",
		"wait-missing":         "/w/" + string(ids["missing"]) + "/",
		"edit":                 "/workspaces/" + string(ids["running"]) + "/edit?from=detail",
		"wait-loading":         "/w/" + string(ids["pull-progress"]) + "/",
		"wait-queued":          "/w/" + string(ids["stopping"]) + "/",
		"wait-restore":         "/w/" + string(ids["archived"]) + "/",
		"wait-failed":          "/w/" + string(ids["pull"]) + "/",
		"wait-limit":           "/w/" + string(ids["stopped"]) + "/",
		"wait-deleted":         "/w/" + string(ids["deleted"]) + "/",
		"not-found":            "/w/0198c0de-0000-7000-8000-000000000009/",
		"tokens-none":          "/settings/tokens",
		"account-page":         "/settings/account",
		"password-page":        "/settings/account/password",
		"timeouts-page":        "/workspaces/" + string(ids["running"]) + "/timeouts",
		"new-page":             "/workspaces/new",
		"open-page":            openPath + "?repo=" + someRepo + "&branch=next",
		"open-page-wrong":      openPath + "?repo=file:///etc",
		"no-page":              "/nowhere",
	})
	w.waits(ids)
	for _, l := range b.screens() {
		b.as(l)
		for name, path := range map[string]string{
			"wait-start":   "/w/" + string(ids["pending"]) + "/",
			"wait-stopped": "/workspaces/" + string(ids["stopped"]) + "/wait",
			"wait-log":     "/w/" + string(ids["starting"]) + "/",
			"forbidden":    "/w/" + string(ids["ann's"]) + "/",
			"unavailable":  "/w/" + string(ids["running"]) + "/",
		} {
			b.visit(path)
			if name == "wait-log" {
				b.until(`document.querySelector('#wait-log pre').textContent.includes('agent started')`)
			}
			b.shoot(shots, l, name)
		}
	}
	b.shootAll(shots, w.elsewhere())
	cloning := w.add("cloning", running)
	w.want(cloning, "desired_state", "RUNNING")
	w.want(cloning, "project", `{"repositories":[{"url":"`+someRepo+`"}]}`)
	for _, l := range b.screens() {
		b.as(l)
		for name, step := range map[string]agent.StepStatus{
			"clone":        {State: agent.StepRunning, Percent: 42, Detail: "Receiving objects:  60% (1200/2000), 1.20 MiB | 3.00 MiB/s"},
			"clone-failed": {State: agent.StepFailed, Reason: "git", Error: "fatal: unable to access '" + someRepo + "/': Could not resolve host: git.example.com", Log: "Cloning into '/home/coder/project/.api.codehub-clone'...\n"},
		} {
			step.Name, step.Kind = someRepo, agent.KindClone
			clones.set(step)
			b.visit("/workspaces/" + string(cloning) + "/wait")
			b.shoot(shots, l, "wait-"+name)
			b.visit("/workspaces/" + string(cloning))
			b.shown("#setup .setup")
			b.shoot(shots, l, "detail-"+name)
		}
	}
	clones.set(agent.StepStatus{Name: someRepo, Kind: agent.KindClone, State: agent.StepDone, Described: true})
	built := builtFile
	built.Name = ".devcontainer/go/devcontainer.json"
	w.dash.Devcontainers = devcontainers.New(devcontainers.Config{
		Store: w.DB, Agents: &descriptions{Files: append(slices.Clone(describedFiles), built)}, Sizes: w.dash.Sizes,
		Builder: devcontainers.NewBuilder(devcontainers.BuilderConfig{Store: w.DB}),
	})
	for _, l := range b.screens() {
		b.as(l)
		b.visit("/workspaces/" + string(cloning))
		b.shown("#devcontainer-found")
		b.shoot(shots, l, "detail-described")
		b.visit("/workspaces/" + string(cloning) + "/devcontainer")
		b.shoot(shots, l, "devcontainer")
	}
	if _, _, err := w.dash.Devcontainers.Use(t.Context(), w.caller("admin"), cloning, describedFiles[0].Name, ""); err != nil {
		t.Fatal(err)
	}
	for _, l := range b.screens() {
		b.as(l)
		b.visit("/workspaces/" + string(cloning) + "/devcontainer")
		b.shoot(shots, l, "devcontainer-used")
	}
	report := postgres.BuildReport{State: postgres.BuildBuilding, Step: "Step 3/7 : RUN make tools", Log: strings.Repeat("Get:1 https://deb.example.com/debian bookworm/main amd64 build-essential amd64 12.9 [7704 B]\n", 40)}
	build := w.built(cloning, report)
	for _, l := range b.screens() {
		if _, err := w.DB.ReportBuild(t.Context(), build, report); err != nil {
			t.Fatal(err)
		}
		b.as(l)
		b.visit("/workspaces/" + string(cloning))
		b.shown("#devcontainer-build-building")
		b.shoot(shots, l, "detail-building")
		b.visit("/workspaces/" + string(cloning) + "/devcontainer")
		b.until(`(p => p.scrollTop > 0 && p.scrollHeight - p.scrollTop - p.clientHeight < 2)(document.querySelector('#devcontainer-build pre.log'))`)
		b.shoot(shots, l, "devcontainer-building")
	}
	report.State, report.Error = postgres.BuildFailed, "The command '/bin/sh -c make tools' returned a non-zero code: 2."
	report.Ignored = []api.DevcontainerIgnored{{Property: "features.docker-in-docker.privileged", Reason: "rights"}, {Property: "features.docker-in-docker.mounts", Reason: "mounts"}}
	if _, err := w.DB.ReportBuild(t.Context(), build, report); err != nil {
		t.Fatal(err)
	}
	for _, l := range b.screens() {
		b.as(l)
		b.visit("/workspaces/" + string(cloning) + "/devcontainer")
		b.shoot(shots, l, "devcontainer-build-failed")
	}
	// A request that the state forbids, from a browser without scripts.
	for _, l := range b.screens() {
		b.as(l)
		b.visit("/")
		b.eval(`var f = document.createElement('form'); f.method = 'post'; f.action = '/workspaces/` + string(ids["running"]) + `/cancel'; document.body.append(f); f.submit()`)
		b.until(`document.readyState === 'complete' && document.querySelector('.message [role=alert]')`)
		b.shoot(shots, l, "refused")
	}
	home := t.TempDir()
	write(t, home, map[string]string{"blog/posts/2025/hello.md": "# Hello\n\nThis is the first post of a blog <b>without</b> frameworks.\n" + strings.Repeat("Long lines are wrapped. ", 40),
		"blog/config.toml": "title = 'Blog'\n", ".bashrc": "alias ll='ls -l'\n", strings.Repeat("a-very-long-name-", 12): "x", "b\xff.bin": "\x00"})
	w.pack(w.row(ids["archived"]).ArchiveKey, home)
	files := "/workspaces/" + string(ids["archived"]) + "/archive/"
	b.shootAll(shots, map[string]string{
		"archive-files": files + "files", "archive-folder": files + "files?path=blog/posts/2025", "archive-file": files + "file?path=blog/posts/2025/hello.md",
		"archive-binary": files + "file?path=b%FF.bin", "archive-no-index": files + "files?archive_op_id=" + generation0,
	})
	older, newer := w.backedUpMuch(ids["running"])
	backups := "/workspaces/" + string(ids["running"]) + "/backups"
	b.shootAll(shots, map[string]string{
		"backups": backups, "backups-detail": "/workspaces/" + string(ids["running"]), "backup-files": backups + "/" + newer.id + "/files?path=shop",
		"backup-changes": backups + "/" + newer.id + "/changes?since=" + older.id, "backup-restore": backups + "/" + newer.id + "/restore",
		"backup-fork": backups + "/" + newer.id + "/fork", "backup-now": "/workspaces/" + string(ids["running"]) + "/backup",
	})
	trouble.set("hold")
	w.Exec(`UPDATE gc_state SET hold = $1, hold_since = now()`, restorePlan.Reason)
	for _, l := range b.screens() {
		b.as(l)
		b.visit("/admin")
		b.shoot(shots, l, "admin-hold")
		b.visit("/admin/restore")
		b.shoot(shots, l, "restore")
	}
	w.Exec(`UPDATE gc_state SET hold = NULL, hold_since = NULL`)
	trouble.set("")
	for _, l := range b.screens() {
		b.as(l)
		b.visit("/settings/tokens")
		b.press("#new-token")
		b.shown("dialog[open]")
		b.enter("#f-name", "laptop "+l.name)
		b.shoot(shots, l, "token-new")
		b.press("#dialog-form button[type=submit]")
		b.shown("#token-value")
		b.shoot(shots, l, "token-made")
		b.press("dialog[open] [data-close-dialog]")
		b.until("!document.querySelector('dialog[open]')")
		b.shoot(shots, l, "tokens")
	}
}

// shootAll shoots these pages by name.
func (b *tab) shootAll(dir string, pages map[string]string) {
	b.t.Helper()
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		for _, l := range b.screens() {
			b.as(l)
			b.visit(pages[name])
			b.shoot(dir, l, name)
		}
	}
}

// flaws lists the defects of a page: elements that extend beyond the screen, controls without a
// name, duplicate ids, text with too little contrast (WCAG AA), and no or several main
// headings.
const flaws = `(function () {
	var out = [], wide = document.documentElement.clientWidth, ids = {}
	var what = function (e) { return e.tagName.toLowerCase() + (e.id ? '#' + e.id : '') + (e.className.baseVal === undefined && e.className ? '.' + e.className : '') }
	var canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true })
	canvas.canvas.width = canvas.canvas.height = 1
	// over blends colours and returns the visible one.
	var over = function (colours) {
		canvas.clearRect(0, 0, 1, 1)
		colours.forEach(function (c) { canvas.fillStyle = c; canvas.fillRect(0, 0, 1, 1) })
		return Array.from(canvas.getImageData(0, 0, 1, 1).data).slice(0, 3)
	}
	var light = function (rgb) {
		var l = rgb.map(function (v) { v /= 255; return v <= .04045 ? v / 12.92 : Math.pow((v + .055) / 1.055, 2.4) })
		return .2126 * l[0] + .7152 * l[1] + .0722 * l[2]
	}
	var top = document.querySelector('dialog[open]')
	document.querySelectorAll('body *').forEach(function (e) {
		if (e.id) ids[e.id] = (ids[e.id] || 0) + 1
		if (e.closest('svg, template, noscript, script') || !e.checkVisibility({ visibilityProperty: true, contentVisibilityAuto: true })) return
		var r = e.getBoundingClientRect(), style = getComputedStyle(e)
		if (!r.width || !r.height) return
		if (!e.closest('.sr, .skip, pre') && (r.right > wide + 1 || r.left < -1)) out.push('wider than the screen: ' + what(e))
		if (e.matches('a[href], button, summary, input:not([type=hidden]), select, textarea')) {
			var name = e.textContent.trim() || e.getAttribute('aria-label') || (e.labels && e.labels[0] && e.labels[0].textContent.trim())
			if (!name) out.push('no name: ' + what(e))
			if (e.matches('input:not([type=checkbox], [type=radio]), select, textarea, .btn, .menu-item') && r.height < 24) out.push('too small to press: ' + what(e))
		}
		if (e.tagName === 'IMG' && !e.hasAttribute('alt')) out.push('no alt: ' + what(e))
		var own = Array.from(e.childNodes).some(function (n) { return n.nodeType === 3 && n.data.trim() })
		if (!own || e.closest('.sr, [disabled], .skip') || (top && !top.contains(e))) return
		var behind = []
		for (var p = e; p; p = p.parentElement) behind.unshift(getComputedStyle(p).backgroundColor)
		var ground = over(['white'].concat(behind)), ink = over(['white'].concat(behind, style.color))
		var a = light(ground), b = light(ink)
		var contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05)
		var large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.6 && style.fontWeight >= 700)
		if (contrast < (large ? 3 : 4.5)) out.push('contrast ' + contrast.toFixed(2) + ': ' + what(e) + ' "' + e.textContent.trim().slice(0, 30) + '"')
	})
	Object.keys(ids).forEach(function (id) { if (ids[id] > 1) out.push('twice: #' + id) })
	var main = document.querySelectorAll('h1').length
	if (main !== 1) out.push(main + ' main headings')
	var landmarks = 'header, main, footer, nav, dialog, [role=status], .skip, .sr'
	var texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), lost
	while (lost = texts.nextNode()) {
		var within = lost.parentElement
		if (lost.data.trim() && !within.closest('template, noscript, script') && within.checkVisibility() && !within.closest(landmarks)) out.push('outside every landmark: ' + lost.data.trim())
	}
	if (document.querySelectorAll('main').length !== 1) out.push('not one main')
	if (!document.documentElement.lang) out.push('no language')
	if (!/^[^%]+ · codehub$/.test(document.title)) out.push('the title is ' + document.title)
	return Array.from(new Set(out)).slice(0, 12)
})()`

// shoot checks the page for flaws and keeps its screenshot.
func (b *tab) shoot(dir string, l screen, name string) {
	b.t.Helper()
	for _, f := range value(b, chromedp.Evaluate[[]string](flaws)) {
		b.t.Errorf("%s, %s: %s", name, l.name, f)
	}
	if f := flag.Lookup("test.artifacts"); screenshots == "" && (f == nil || f.Value.String() != "true") {
		return // no artifacts were requested
	}
	picture := chromedp.CaptureScreenshot()
	dialog := value(b, chromedp.Evaluate[bool](`!!document.querySelector('dialog[open]')`))
	if !dialog && (strings.HasPrefix(name, "list") || strings.HasPrefix(name, "readme") || name == "restore" || name == "edit" || strings.HasPrefix(name, "admin") || strings.HasPrefix(name, "detail")) {
		picture = chromedp.FullScreenshot(100)
	}
	if screenshots != "" {
		pictures.add(name, l, value(b, picture))
		return
	}
	if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s.%s.png", name, l.name)), value(b, picture), 0o644); err != nil {
		b.t.Error(err)
	}
}
