package dashboard

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/storage/store"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/workspace"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/chromedp"
)

func TestArchiveAndRestore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", running)
	w.want(id, "desired_state", "RUNNING")
	path, list := "/workspaces/"+string(id), url.Values{"from": {"list"}}
	row := func() workspace.Workspace {
		t.Helper()
		ws, err := w.DB.Workspace(t.Context(), w.caller("admin"), id)
		if err != nil {
			t.Fatal(err)
		}
		return ws
	}
	contains(t, "the question", b.get(path+"/archive?from=detail").body, "Archive project?", "Unsaved changes", "Only the home folder")
	if row().DesiredState != workspace.DesiredRunning {
		t.Fatal("a GET archived the workspace")
	}
	a := b.htmx(path+"/archive", list)
	contains(t, "archive", a.body, `data-state="stopping"`, "archive queued", "will be archived", "Do not archive")
	if row().DesiredState != workspace.DesiredArchived {
		t.Errorf("desired %s", row().DesiredState)
	}
	w.observe(id, standby)
	lacks(t, "a stopped one", b.get(path+"/archive").body, "Unsaved changes")
	contains(t, "not claimed yet", b.get("/").body, `data-state="archiving"`)

	// A start and a stop requested during the operation cancel each other out.
	w.observe(id, operating(standby, workspace.OpArchiving))
	a = b.htmx(path+"/start", list)
	contains(t, "queued", a.body, "start queued, archiving will be cancelled", "Keep archived")
	if row().NextDesired != workspace.DesiredRunning {
		t.Errorf("next desired %q", row().NextDesired)
	}
	b.htmx(path+"/archive", list)
	if row().NextDesired != "" {
		t.Errorf("next desired %q", row().NextDesired)
	}
	if a = b.htmx(path+"/cancel", list); a.status != http.StatusOK || row().CancelRequestedAt == nil || row().DesiredState != workspace.DesiredStandby {
		t.Errorf("cancel: %d, desired %s", a.status, row().DesiredState)
	}

	w.observe(id, archived(w.keep(id, generation1, 700<<20, 12_345, time.Now()), 700<<20))
	w.want(id, "desired_state", "ARCHIVED")
	page := b.get("/").body
	contains(t, "archived", page, `data-state="archived"`, `action="`+path+`/restore"`, "Restore and open", `target="_blank"`)
	contains(t, "restore", b.htmx(path+"/restore", list).body, `data-state="restoring"`, "is being restored")
	if row().DesiredState != workspace.DesiredStandby {
		t.Errorf("desired %s", row().DesiredState)
	}
	w.want(id, "desired_state", "ARCHIVED")
	// The request of "restore and open" in a new tab.
	a = b.post(path+"/start", url.Values{"from": {"wait"}})
	if a.status != http.StatusSeeOther || a.header.Get("Location") != "/w/"+string(id)+"/" || row().DesiredState != workspace.DesiredRunning {
		t.Errorf("%d %q", a.status, a.header.Get("Location"))
	}
	w.observe(id, operating(archived("k", 1), workspace.OpRestoring))
	w.want(id, "next_desired_state", "RUNNING")
	if a = b.htmx(path+"/cancel", list); a.status != http.StatusOK || row().DesiredState != workspace.DesiredArchived {
		t.Errorf("cancel: %d, desired %s", a.status, row().DesiredState)
	}
	contains(t, "cancel", a.body, "and what was queued after it")
}

func TestArchivesOnTheDetailPage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", standby)
	path := "/workspaces/" + string(id)
	contains(t, "none yet", b.get(path).body, `id="archives"`, "Not using it for a while?", `id="`+string(id)+`-archive"`)
	old := time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC)
	w.keep(id, generation0, 658<<20, 1, old)
	w.observe(id, archived(w.keep(id, generation1, 700<<20, 12_345, old.Add(24*time.Hour)), 700<<20))
	w.want(id, "desired_state", "ARCHIVED")
	page := b.get(path).body
	contains(t, "two", page, "2026-01-03 03:04 UTC", "current", "700 MiB · 12,345 files", "2026-01-02 03:04 UTC", "658 MiB · 1 file<",
		path+"/download?archive_op_id="+generation0)
	lacks(t, "two", page, "recover-archive", "Not using it for a while?")
	if strings.Index(page, generation1) > strings.Index(page, generation0) {
		t.Error("the older archive is listed first")
	}

	// A download redirects to the API, or shows why it is not available.
	for query, want := range map[string]string{"": "", "?archive_op_id=" + generation0: "?archive_op_id=" + generation0} {
		a := b.get(path + "/download" + query)
		if a.status != http.StatusSeeOther || a.header.Get("Location") != "/api/v1"+path+"/archive"+want {
			t.Errorf("%s: %d %q", query, a.status, a.header.Get("Location"))
		}
	}
	check := func(query string, status int, text string) {
		t.Helper()
		a := b.get(path + "/download" + query)
		if a.status != status {
			t.Errorf("%s: %d", query, a.status)
		}
		contains(t, query, a.body, text)
	}
	check("?archive_op_id="+generation3, 404, "Archive not found")
	w.bucket.mu.Lock()
	w.bucket.err = fmt.Errorf("head: %w", store.ErrUnavailable)
	w.bucket.mu.Unlock()
	check("", 503, "Archive storage unavailable")
	w.bucket.mu.Lock()
	w.bucket.err, w.bucket.have = nil, nil
	w.bucket.mu.Unlock()
	check("", 404, "Archive not found")
	if _, err := w.Auth.CreateUser(t.Context(), "other", "another password", false); err != nil {
		t.Fatal(err)
	}
	other := w.browser()
	other.post("/login", url.Values{"username": {"other"}, "password": {"another password"}})
	if a := other.get(path + "/download"); a.status != http.StatusForbidden {
		t.Errorf("another user: %d", a.status)
	}
}

func TestRecoverFromAnArchive(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", standby)
	path := "/workspaces/" + string(id)
	requested := func() string {
		t.Helper()
		ws, err := w.DB.Workspace(t.Context(), w.caller("admin"), id)
		if err != nil {
			t.Fatal(err)
		}
		if ws.RecoverFrom == nil {
			return ws.RecoverAction
		}
		return ws.RecoverAction + " " + ws.RecoverFrom.OpID
	}
	w.observe(id, failed(workspace.ErrDataLost, "gone"))
	form := b.get(path+"/recover-archive", "HX-Request", "true").body
	contains(t, "none", form, "This workspace has no archives")
	lacks(t, "none", form, `type="submit"`, "f-confirm")

	w.keep(id, generation0, 658<<20, 1, time.Now().Add(-time.Hour))
	w.keep(id, generation1, 700<<20, 12_345, time.Now())
	contains(t, "the newest is chosen", b.get(path+"/recover-archive").body, `value="`+generation1+`" checked`, `value="`+generation0+`">`, "700 MiB · 12,345 files")
	contains(t, "the requested one", b.get(path+"/recover-archive?archive_op_id="+generation0).body, `value="`+generation0+`" checked`)
	contains(t, "the page offers it", b.get(path).body, `recover-archive?from=detail&amp;archive_op_id=`+generation0)

	a := b.htmx(path+"/recover-archive", url.Values{"archive": {generation0}, "confirm": {"projekt"}, "from": {"detail"}})
	if a.status != http.StatusUnprocessableEntity || requested() != "" {
		t.Errorf("wrong name: %d, action %q", a.status, requested())
	}
	contains(t, "wrong name", a.body, "does not match the workspace name", `value="`+generation0+`" checked`)
	a = b.htmx(path+"/recover-archive", url.Values{"archive": {generation3}, "confirm": {"project"}})
	if a.status != http.StatusUnprocessableEntity || requested() != "" {
		t.Errorf("unknown archive: %d, action %q", a.status, requested())
	}
	contains(t, "unknown archive", a.body, "Choose one of these archives")
	a = b.htmx(path+"/recover-archive", url.Values{"archive": {generation0}, "confirm": {"project"}, "from": {"detail"}})
	if a.status != http.StatusOK || requested() != "archive "+generation0 {
		t.Errorf("%d, action %q", a.status, requested())
	}
	contains(t, "done", a.body, "from the archive.", `id="panel"`, `id="archives"`)

	// The missing archive itself cannot be chosen.
	w.observe(id, func(ws *workspace.Workspace) {
		archived("inst/"+string(id)+"/"+generation1+"/home.tar.zst", 700<<20)(ws)
		ws.Phase, ws.ErrorReason = workspace.PhaseError, workspace.ErrDataLost
	})
	form = b.get(path + "/recover-archive").body
	contains(t, "without the missing one", form, `value="`+generation0+`" checked`)
	lacks(t, "without the missing one", form, generation1)
	page := b.get(path).body
	contains(t, "the page", page, "The archive is missing", "choose-"+generation0, "archive_op_id="+generation1)
	lacks(t, "the page", page, "choose-"+generation1)

	// Data that is not lost is not replaced.
	w.observe(id, failed(workspace.ErrTimeout, "x"))
	if a = b.htmx(path+"/recover-archive", url.Values{"archive": {generation0}, "confirm": {"project"}}); a.status != http.StatusConflict || requested() != "" {
		t.Errorf("not lost: %d, action %q", a.status, requested())
	}
}

// The page of a workspace shows the progress and then the result.
func TestProgressStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.add("project", standby)
	w.want(id, "desired_state", "ARCHIVED")
	b := w.loggedIn()
	for _, query := range []string{"?workspace=" + string(id), "?wait=" + string(id), ""} {
		l := b.listen(query)
		w.observe(id, moving(standby, workspace.OpArchiving, workspace.Progress{Step: "packing", Done: 25, Total: 100}))
		l.until(`value="25"`, "Packing the home folder")
		w.observe(id, moving(standby, workspace.OpArchiving, workspace.Progress{Step: "verifying", Done: 75, Total: 100}))
		l.until(`value="75"`, "Verifying the archive")
		key := w.keep(id, workspaceOp(), 5, 6, time.Now())
		w.observe(id, archived(key, 5))
		l.until("update", "rchived")
		l.stop()
		w.observe(id, standby)
	}
}

var ops int

// workspaceOp is an archive_op_id that differs from the generations'.
func workspaceOp() string {
	ops++
	return fmt.Sprintf("01900000-0000-7000-8000-0000000001%02d", ops)
}

// An archived workspace is restored with one click, and entered when it is ready.
func TestRestoringInABrowser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.ide()
	id := w.add("project", standby)
	w.observe(id, archived(w.keep(id, generation1, 700<<20, 12_345, time.Now()), 700<<20))
	w.want(id, "desired_state", "ARCHIVED")
	b := w.tab()
	b.logIn()
	b.visit("/w/" + string(id) + "/?folder=/home/coder/x")
	b.shown(`#wait[data-kind=restore]`)
	b.until(`document.getElementById('wait').textContent.includes('700 MiB')`)
	b.press(`[id="` + string(id) + `-start"]`)
	b.shown(`#wait[data-kind=loading] progress:not([value])`)
	b.eval(mark)
	height := `document.querySelector('#wait .progress')?.getBoundingClientRect().height ?? 0`
	b.until(`(` + height + `) > 0`) // the page may be getting a new part
	before := value(b, chromedp.Evaluate[float64](height))
	w.observe(id, moving(archived("k", 1), workspace.OpRestoring,
		workspace.Progress{Step: "unpacking", Done: 412 << 20, Total: 1229 << 20, Entries: 12_345, EntriesTotal: 98_765, Rate: 48 << 20, SecondsLeft: 18}))
	b.until(`document.querySelector('#wait progress')?.value === 33 && window.marked`)
	if after := value(b, chromedp.Evaluate[float64](height)); after != before || after == 0 {
		t.Errorf("the height of the progress changed from %v to %v", before, after)
	}
	bar := b.accessible("progressbar")
	if bar["name"] != "Unpacking the home folder" || bar["value"] != "33" || bar["valuemax"] != "100" {
		t.Errorf("the bar is %v to a screen reader", bar)
	}
	w.observe(id, running)
	b.until(`document.getElementById('ide')?.textContent === 'folder=/home/coder/x'`)
}

// accessible returns the properties that a screen reader gets of the element with a role.
func (b *tab) accessible(role string) map[string]string {
	b.t.Helper()
	r, err := chromedp.Call(b.ctx, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	if err != nil {
		b.t.Fatal(err)
	}
	text := func(v *accessibility.Value) string {
		if v == nil {
			return ""
		}
		return strings.Trim(string(v.Value), `"`)
	}
	for _, n := range r.Nodes {
		if text(n.Role) != role || n.Ignored {
			continue
		}
		out := map[string]string{"name": text(n.Name), "value": text(n.Value)}
		for _, p := range n.Properties {
			out[string(p.Name)] = text(p.Value)
		}
		return out
	}
	return nil
}

// The page names the limit that a queued start waits for: the user's or the server's.
func TestWaitStreamShowsTheGlobalLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.dash.Store = fixture.OpenDatabase(t, w.DSN, postgres.Options{Limits: postgres.Limits{Global: 1}}).DB
	id, own := w.add("project", standby), w.add("mine", running)
	w.want(own, "desired_state", "RUNNING")
	w.want(id, "next_desired_state", "RUNNING")
	ev := w.loggedIn().listen("?wait="+string(id)).until("/workspaces/"+string(own)+"/stop", `data-kind="limit"`, "The server has reached its running limit", "It starts automatically when the limit allows.", "Try again")
	lacks(t, "the limit", ev.data, "hx-get", "Stop a workspace first")
}

// A lost home can be replaced by a backup, too. A damaged one is not offered.
func TestLostHomeOffersBackups(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", standby)
	path := "/workspaces/" + string(id) + "/recover-archive"
	w.observe(id, failed(workspace.ErrDataLost, "gone"))
	w.keep(id, generation0, 658<<20, 1, time.Now().Add(-time.Hour))
	for backup, damage := range map[string]string{generation1: "", generation3: "damaged"} {
		w.Exec(`INSERT INTO home_backups (id, workspace_id, state, cause, key, digest, size, entries, files, bytes, damage, begun_at, ended_at)
			VALUES ($1, $2, 'done', 'schedule', $3, 'd', 100, 20, 12, $4, $5, now(), now())`, backup, string(id), "key/"+backup, 700<<20, damage)
	}
	page := b.get(path).body
	contains(t, "the backup", page, `value="`+generation1+`" checked`, "700 MiB · 12 files", `value="`+generation0+`">`)
	lacks(t, "the damaged one", page, generation3)
	if a := b.htmx(path, url.Values{"archive": {generation1}, "confirm": {"project"}}); a.status != http.StatusOK {
		t.Errorf("%d: %s", a.status, a.body)
	}
	if ws, err := w.DB.Workspace(t.Context(), w.caller("admin"), id); err != nil || ws.RecoverFrom == nil || ws.RecoverFrom.OpID != generation1 {
		t.Errorf("recovers from %+v, %v", ws.RecoverFrom, err)
	}
}
