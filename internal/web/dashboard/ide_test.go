package dashboard

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"codehub/internal/running/service"
	"codehub/internal/users/auth"
	"codehub/internal/web/dashboard/catalogue"
	"codehub/internal/web/proxy"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// The state that an IDE shows of its workspace, in both languages.
func TestIDEState(t *testing.T) {
	t.Parallel()
	d := &Dashboard{Config: Config{
		Settings: service.Settings{
			URL:  &url.URL{Scheme: "https", Host: "hub.example.com"},
			Idle: service.Idle{StandbyTTL: int(testTTL.Standby.Seconds()), ArchiveTTL: int(testTTL.Archive.Seconds()), KeepAwakeMax: 24 * time.Hour},
		},
		Now: func() time.Time { return testNow },
	}}
	ago := func(d time.Duration) *time.Time { at := testNow.Add(-d); return &at }
	seconds := func(n int) *int { return &n }
	w := func(phase workspace.Phase, change func(*workspace.Workspace)) proxy.IDEVisit {
		w := someWorkspace(phase)
		w.Name = "demo"
		change(&w)
		return proxy.IDEVisit{ID: w.ID, Workspace: w}
	}
	used := w(workspace.PhaseRunning, func(*workspace.Workspace) {})
	used.LastUse = testNow.Add(-time.Minute)
	id := string(used.ID)
	for name, c := range map[string]struct {
		visit  proxy.IDEVisit
		en, ko string // status | warning | notice | button | its address
		poll   int
	}{
		"running":     {w(workspace.PhaseRunning, func(*workspace.Workspace) {}), "demo · stops in 5 min||||", "demo · 5분 후 중지||||", 20},
		"used lately": {used, "demo · stops in 9 min||||", "demo · 9분 후 중지||||", 20},
		"about to stop": {w(workspace.PhaseRunning, func(w *workspace.Workspace) { w.PhaseChangedAt = *ago(8 * time.Minute) }),
			"demo · stops in 2 min|demo is idle and will stop in 2 min.|||", "demo · 2분 후 중지|demo 워크스페이스를 사용하지 않아 곧 중지합니다. 남은 시간: 2분|||", 5},
		"soon about to stop": {w(workspace.PhaseRunning, func(w *workspace.Workspace) { w.PhaseChangedAt = *ago(8*time.Minute - 10*time.Second) }),
			"demo · stops in 2 min||||", "demo · 2분 후 중지||||", 5},
		"kept awake": {w(workspace.PhaseRunning, func(w *workspace.Workspace) { w.KeepAwakeTil = ago(-2 * time.Hour) }),
			"demo · kept awake for 2 h 0 min||||", "demo · 2시간 0분 동안 실행 유지||||", 20},
		"never stops": {w(workspace.PhaseRunning, func(w *workspace.Workspace) { w.StandbyTTL = seconds(0) }), "demo||||", "demo||||", 20},
		"stopping": {w(workspace.PhaseRunning, func(w *workspace.Workspace) {
			w.DesiredState, w.Operation = workspace.DesiredStandby, workspace.OpStopping
		}), "||demo: Stopping||", "||demo: 중지 중||", 20},
		"stopped": {w(workspace.PhaseStandby, func(w *workspace.Workspace) { w.StopReason = lifecycle.StopRequested }),
			"||demo was stopped.|Start again|/w/" + id + "/", "||demo 워크스페이스가 중지되었습니다.|다시 시작|/w/" + id + "/", 20},
		"stopped, idle": {w(workspace.PhaseStandby, func(w *workspace.Workspace) { w.StopReason, w.LastAccessAt = lifecycle.StopIdle, ago(125*time.Minute) }),
			"||demo was stopped after 2 h of inactivity.|Start again|/w/" + id + "/", "||demo 워크스페이스가 2시간 동안 사용되지 않아 중지되었습니다.|다시 시작|/w/" + id + "/", 20},
		"stopped, exited": {w(workspace.PhaseStandby, func(w *workspace.Workspace) { w.StopReason = lifecycle.StopExited }),
			"||demo was stopped because its container exited.|Start again|/w/" + id + "/", "||컨테이너가 종료되어 demo 워크스페이스가 중지되었습니다.|다시 시작|/w/" + id + "/", 20},
		"archived": {w(workspace.PhaseArchived, func(*workspace.Workspace) {}),
			"||demo: Archived|Show workspace|/w/" + id + "/", "||demo: 보관됨|워크스페이스 보기|/w/" + id + "/", 20},
		"deleted": {w(workspace.PhaseStandby, func(w *workspace.Workspace) { w.DeletedAt = ago(time.Second) }),
			"||demo was deleted.|Dashboard|/", "||demo 워크스페이스가 삭제되었습니다.|대시보드|/", 20},
		"logged out": {proxy.IDEVisit{Access: proxy.IDELoggedOut, ID: used.ID},
			"||Your session on this page has ended.|Continue|/w/" + id + "/", "||이 페이지의 세션이 종료되었습니다.|계속|/w/" + id + "/", 20},
		"another user's": {proxy.IDEVisit{Access: proxy.IDEEnded, ID: used.ID},
			"||You no longer have access to this workspace.|Dashboard|/", "||이 워크스페이스에 더 이상 접근할 수 없습니다.|대시보드|/", 20},
	} {
		for lang, want := range map[*catalogue.Language]string{catalogue.English: c.en, catalogue.Korean: c.ko} {
			s := d.ideStateOf(lang, c.visit)
			n := ideNotice{}
			if s.Notice != nil {
				n = *s.Notice
			}
			got := strings.Join([]string{s.Status, s.Ending, n.Text, n.Action, strings.TrimPrefix(n.URL, "https://hub.example.com")}, "|")
			if got != want || s.PollSeconds != c.poll || s.Open != (s.Notice == nil) {
				t.Errorf("%s: %q every %d s, open %v; want %q every %d s", name, got, s.PollSeconds, s.Open, want, c.poll)
			}
		}
	}
}

// The IDE offers a guest nothing that only the owner may do.
func TestIDEStateOfGuest(t *testing.T) {
	t.Parallel()
	d := &Dashboard{Config: Config{
		Settings: service.Settings{Idle: service.Idle{StandbyTTL: int(testTTL.Standby.Seconds()), KeepAwakeMax: 24 * time.Hour}},
		Now:      func() time.Time { return testNow },
	}}
	w := someWorkspace(workspace.PhaseRunning)
	until := testNow.Add(time.Hour)
	w.KeepAwakeTil = &until
	w.Project = &workspace.Project{Repositories: []workspace.Repository{{URL: "https://git.example.com/a"}}}
	owner, guest := d.ideStateOf(catalogue.English, proxy.IDEVisit{Workspace: w}), d.ideStateOf(catalogue.English, proxy.IDEVisit{Workspace: w, Guest: true})
	if owner.Terminal != "/home/coder/.local/state/codehub/terminal" || guest.Terminal != "" {
		t.Errorf("terminals: %q, %q", owner.Terminal, guest.Terminal)
	}
	if owner.Guest || len(owner.KeepAwake) < 2 || !strings.Contains(owner.Tooltip, "Click") {
		t.Errorf("an owner gets %+v", owner)
	}
	if owner.Texts["versions"] != "Time machine" || guest.Texts["versions"] != "" {
		t.Errorf("the Timeline: %q, %q", owner.Texts["versions"], guest.Texts["versions"])
	}
	if !guest.Guest || !guest.Open || guest.Status != owner.Status || len(guest.KeepAwake) != 0 || strings.Contains(guest.Tooltip, "Click") {
		t.Errorf("a guest gets %+v", guest)
	}
}

// An icon is a picture whatever the name is.
func TestIconOf(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, name := range []string{"demo", "<b>", "&", "한글", ""} {
		icon := iconOf(workspace.Workspace{ID: "a", Name: name})
		if !strings.HasPrefix(icon, "data:image/svg+xml;base64,") || seen[icon] {
			t.Errorf("%q has the icon %s", name, icon)
		}
		seen[icon] = true
	}
}

// Requests of an IDE change only a workspace of their caller.
func TestIDERequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.add("alpha", running)
	w.want(id, "desired_state", "RUNNING")
	ann, other := w.caller(auth.AdminUsername), workspace.Caller{UserID: "01900000-0000-7000-8000-000000000000"}
	for _, what := range []proxy.IDERequest{proxy.AskStay, proxy.AskKeepAwake, proxy.AskStop} {
		if err := w.dash.Ask(t.Context(), other, id, what, time.Minute); workspace.CodeOf(err) != workspace.CodeForbidden {
			t.Errorf("%s by another user: %v", what, err)
		}
	}
	for _, lasting := range []time.Duration{-time.Second, 25 * time.Hour} {
		if err := w.dash.Ask(t.Context(), ann, id, proxy.AskKeepAwake, lasting); workspace.CodeOf(err) != workspace.CodeInvalid {
			t.Errorf("keep awake for %s: %v", lasting, err)
		}
	}
	if row := w.row(id); row.KeepAwakeTil != nil || row.DesiredState != workspace.DesiredRunning {
		t.Fatalf("refused requests changed the workspace: %+v", row)
	}
	for _, what := range []proxy.IDERequest{proxy.AskStay, proxy.AskKeepAwake, proxy.AskStop} {
		if err := w.dash.Ask(t.Context(), ann, id, what, time.Hour); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if row := w.row(id); row.LastAccess != workspace.AccessStay || row.KeepAwakeTil == nil || row.DesiredState != workspace.DesiredStandby {
		t.Errorf("after stay, keep awake and stop: last use %q, kept awake until %v, wants %s", row.LastAccess, row.KeepAwakeTil, row.DesiredState)
	}
	if err := w.dash.Ask(t.Context(), ann, id, proxy.AskKeepAwake, 0); err != nil || w.row(id).KeepAwakeTil != nil {
		t.Errorf("keep-awake turned off: %v, until %v", err, w.row(id).KeepAwakeTil)
	}
}

// A stop asks first if files are not saved, as a dialog and as a page.
func TestStopAsksForUnsavedFiles(t *testing.T) {
	t.Parallel()
	files := 2
	w := newWorld(t, func(c *Config) { c.Unsaved = func(workspace.ID) int { return files } })
	b := w.loggedIn()
	id := w.add("alpha", running)
	w.want(id, "desired_state", "RUNNING")
	path := "/workspaces/" + string(id) + "/stop"
	question := "2 files in open editors are not saved."
	if a := b.post(path, nil); a.status != http.StatusConflict || !strings.Contains(a.body, question) || !strings.Contains(a.body, "<!doctype html>") {
		t.Errorf("without scripts: %d %s", a.status, a.body)
	}
	if a := b.htmx(path, nil); a.status != http.StatusConflict || !strings.Contains(a.body, question) || !strings.Contains(a.body, `<div id="dialog" hx-swap-oob="innerHTML">`) {
		t.Errorf("as a dialog: %d %s", a.status, a.body)
	}
	if row := w.row(id); row.DesiredState != workspace.DesiredRunning {
		t.Fatalf("the question stopped it: %s", row.DesiredState)
	}
	b.htmx(path, url.Values{"confirmed": {"yes"}})
	if row := w.row(id); row.DesiredState != workspace.DesiredStandby {
		t.Errorf("after the answer it wants %s", row.DesiredState)
	}
	files = 0
	other := w.add("beta", running)
	w.want(other, "desired_state", "RUNNING")
	b.htmx("/workspaces/"+string(other)+"/stop", nil)
	if row := w.row(other); row.DesiredState != workspace.DesiredStandby {
		t.Errorf("without unsaved files it wants %s", row.DesiredState)
	}
}
