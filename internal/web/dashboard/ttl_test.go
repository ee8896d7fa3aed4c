package dashboard

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"codehub/internal/workspace"
)

func TestKeepAwake(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.KeepAwakeMax = 12 * time.Hour })
	b := w.loggedIn()
	id := w.add("project", running)
	w.want(id, "desired_state", "RUNNING")
	path := "/workspaces/" + string(id)
	from := url.Values{"from": {"detail"}}
	with := func(kv ...string) url.Values {
		v := url.Values{"from": {"detail"}}
		for i := 0; i < len(kv); i += 2 {
			v.Set(kv[i], kv[i+1])
		}
		return v
	}
	contains(t, "its page", b.get(path).body, path+`/keep-awake`, "stops automatically in")
	dialog := b.get(path+"/keep-awake", "HX-Request", "true").body
	contains(t, "the dialog", dialog, "Keep project awake", ">1 h<", ">2 h<", ">4 h<", ">8 h<", ">12 h<", "At most 12 h from now.", `value="until"`)
	lacks(t, "the dialog", dialog, ">1 day<", "Turn off")

	near := func(what string, want time.Duration) {
		t.Helper()
		ws := w.row(id)
		if ws.KeepAwakeTil == nil || ws.KeepAwakeTil.Sub(time.Now().Add(want)).Abs() > time.Minute {
			t.Fatalf("%s: kept awake until %v", what, ws.KeepAwakeTil)
		}
	}
	a := b.htmx(path+"/keep-awake", with("awake", "7200"))
	near("2 h", 2*time.Hour)
	contains(t, "2 h", a.body, `id="panel"`, "kept awake for another", "1 h 59 min", "is kept awake.", `id="dialog" hx-swap-oob="innerHTML"`)
	contains(t, "the dialog", b.get(path+"/keep-awake?from=detail").body, "Turn off", `data-moment="`+w.row(id).KeepAwakeTil.Format(time.RFC3339)+`"`)

	// The time as a script and as a plain form sends it, in different zones.
	at := time.Now().Add(5 * time.Hour).Truncate(time.Minute)
	for _, s := range []string{at.UTC().Format("2006-01-02T15:04:05.000Z"), at.In(time.FixedZone("", 9*3600)).Format(time.RFC3339), at.UTC().Format("2006-01-02T15:04")} {
		b.htmx(path+"/keep-awake", with("awake", "off"))
		if ws := w.row(id); ws.KeepAwakeTil != nil {
			t.Fatalf("off: %v", ws.KeepAwakeTil)
		}
		b.htmx(path+"/keep-awake", with("awake", "until", "until", s))
		if ws := w.row(id); ws.KeepAwakeTil == nil || !ws.KeepAwakeTil.Equal(at) {
			t.Errorf("until %s: %v", s, ws.KeepAwakeTil)
		}
	}
	for name, form := range map[string]url.Values{
		"too far":      with("awake", "until", "until", time.Now().Add(13*time.Hour).UTC().Format(time.RFC3339)),
		"past":         with("awake", "until", "until", time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)),
		"no time":      with("awake", "until"),
		"nonsense":     with("awake", "until", "until", "tomorrow"),
		"longer":       with("awake", strconv.Itoa(13*3600)),
		"negative":     with("awake", "-1"),
		"not a number": with("awake", "x"),
		"nothing":      from,
	} {
		a := b.htmx(path+"/keep-awake", form)
		if a.status != http.StatusUnprocessableEntity {
			t.Errorf("%s: %d", name, a.status)
		}
		contains(t, name, a.body, `aria-invalid="true"`, "field-error", `id="dialog-form"`)
		if ws := w.row(id); ws.KeepAwakeTil == nil || !ws.KeepAwakeTil.Equal(at) {
			t.Errorf("%s: the time changed to %v", name, ws.KeepAwakeTil)
		}
	}
	// Without scripts.
	if a := b.post(path+"/keep-awake", with("awake", "3600")); a.status != http.StatusSeeOther || a.header.Get("Location") != notedAt(path, "awake", id) {
		t.Errorf("without scripts: %d %s", a.status, a.header.Get("Location"))
	}
	contains(t, "after the redirect", b.get(notedAt(path, "awake", id)).body, "“project” is kept awake.")

	// Keep-awake is not offered for a workspace that never stops automatically.
	w.want(id, "standby_ttl_seconds", 0)
	lacks(t, "never", b.get(path).body, "/keep-awake")
}

func TestTTLs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", standby)
	path := "/workspaces/" + string(id) + "/edit"
	edit := func(kv ...string) answer {
		v := url.Values{"name": {"project"}}
		for i := 0; i < len(kv); i += 2 {
			v.Set(kv[i], kv[i+1])
		}
		return b.htmx(path, v)
	}
	is := func(what string, standby, archive int) {
		t.Helper()
		number := func(p *int) int {
			if p == nil {
				return -1
			}
			return *p
		}
		if ws := w.row(id); number(ws.StandbyTTL) != standby || number(ws.ArchiveTTL) != archive {
			t.Errorf("%s: %d and %d, want %d and %d", what, number(ws.StandbyTTL), number(ws.ArchiveTTL), standby, archive)
		}
	}
	contains(t, "the form", b.get(path).body, "Server default (10 min)", "Server default (30 min)", `<option value="server" selected>`)
	edit("standby_ttl", "after", "standby_ttl_n", "3", "standby_ttl_unit", "3600", "archive_ttl", "never")
	is("3 h and never", 3*3600, 0)
	contains(t, "the form", b.get(path).body, `value="3"`, `<option value="3600" selected>hours`, `<option value="never" selected>`)
	edit()
	is("a form without them", 3*3600, 0)
	edit("standby_ttl", "server", "archive_ttl", "after", "archive_ttl_n", "2", "archive_ttl_unit", "86400")
	is("the server's and 2 days", -1, 2*86400)
	for name, form := range map[string][]string{
		"none":     {"standby_ttl", "after", "standby_ttl_n", "0", "standby_ttl_unit", "60"},
		"no unit":  {"standby_ttl", "after", "standby_ttl_n", "1", "standby_ttl_unit", "61"},
		"too long": {"standby_ttl", "after", "standby_ttl_n", "3651", "standby_ttl_unit", "86400"},
		"overflow": {"standby_ttl", "after", "standby_ttl_n", "9223372036854775807", "standby_ttl_unit", "86400"},
		"text":     {"standby_ttl", "after", "standby_ttl_n", "x", "standby_ttl_unit", "60"},
		"unknown":  {"archive_ttl", "sometimes"},
	} {
		if a := edit(form...); a.status != http.StatusUnprocessableEntity {
			t.Errorf("%s: %d", name, a.status)
		} else {
			contains(t, name, a.body, `aria-invalid="true"`, "field-error")
		}
		is(name, -1, 2*86400)
	}
	// Seconds, which only the API sets, are kept and shown.
	w.want(id, "standby_ttl_seconds", 90)
	contains(t, "seconds", b.get(path).body, `value="90"`, `<option value="1" selected>seconds`)
	lacks(t, "no seconds", b.get("/workspaces/"+string(w.add("other", standby))+"/edit").body, `<option value="1"`)
}

func TestRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", running)
	w.want(id, "desired_state", "RUNNING")
	contains(t, "the question", b.get("/workspaces/"+string(id)+"/restart").body, "Restart project?", "Unsaved changes")
	a := b.htmx("/workspaces/"+string(id)+"/restart", url.Values{"from": {"list"}})
	contains(t, "restarting", a.body, "is restarting", "Stopping", "start queued")
	if row := w.row(id); row.DesiredState != workspace.DesiredStandby || row.NextDesired != workspace.DesiredRunning {
		t.Errorf("%+v", row)
	}
	// A stopped workspace has no idle timer to restart.
	other := w.add("other", standby)
	lacks(t, "a stopped one", b.get("/").body, string(other)+"/restart")
	if a := b.htmx("/workspaces/"+string(other)+"/restart", url.Values{"from": {"list"}}); a.status != http.StatusConflict {
		t.Errorf("a stopped one: %d", a.status)
	}
}

func TestStay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project <x>", running)
	w.want(id, "desired_state", "RUNNING")
	stay := "/workspaces/" + string(id) + "/stay"
	pages := []string{"/", "/workspaces/" + string(id), "/settings/tokens", "/workspaces/new", "/admin"}
	for _, p := range pages {
		lacks(t, p+" in time", b.get(p).body, "data-ending")
	}
	w.used(id, 9*time.Minute)
	other := w.add("asleep", standby)
	w.want(other, "next_desired_state", "RUNNING")
	w.observe(other, operating(running, workspace.OpStopping))
	for _, p := range append(pages, "/w/"+string(other)+"/") {
		contains(t, p, b.get(p, "Accept", "text/html").body, `data-ending="`+string(id), "project &lt;x&gt;</strong> is idle and will stop in", "less than a minute", `hx-post="`+stay+`"`, `data-announcement="project &lt;x&gt; is idle and will stop soon.`)
	}
	contains(t, "in Korean", b.get("/", "Accept-Language", "ko").body, "계속 실행", "워크스페이스를 사용하지 않아 곧 중지합니다")
	before := w.row(id)
	a := b.htmx(stay, url.Values{"from": {"any"}})
	if a.status != http.StatusOK {
		t.Fatalf("stay: %d %s", a.status, a.body)
	}
	contains(t, "stay", a.body, `<div id="ending" hx-swap-oob="true"></div>`, "“project &lt;x&gt;” will keep running.")
	after := w.row(id)
	if !after.LastAccessAt.After(before.LastAccessAt.Add(8*time.Minute)) || after.LastAccess != "stay" {
		t.Errorf("last used %v (%s), before %v", after.LastAccessAt, after.LastAccess, before.LastAccessAt)
	}
	lacks(t, "after that", b.get("/").body, "data-ending")
	contains(t, "after that", b.get("/").body, "kept running")
	w.used(id, 9*time.Minute)
	if a := b.post(stay, url.Values{"from": {"any"}}); a.header.Get("Location") != notedAt("/", "stay", id) {
		t.Errorf("without scripts: %d %s", a.status, a.header.Get("Location"))
	}
	// After the stop has begun.
	w.observe(id, operating(running, workspace.OpStopping))
	a = b.htmx(stay, url.Values{"from": {"any"}})
	if a.status != http.StatusConflict {
		t.Errorf("while it is being stopped: %d", a.status)
	}
	w.want(id, "desired_state", "STANDBY")
	w.observe(id, standby)
	if a = b.htmx(stay, url.Values{"from": {"any"}}); a.status != http.StatusConflict {
		t.Errorf("stopped: %d", a.status)
	}
	contains(t, "stopped", a.body, "is not running")
	lacks(t, "stopped", a.body, `id="workspaces"`)
}

// The checkbox of processes at work is on the page of idle timeouts alone: another form leaves
// it unchanged.
func TestProcessesAtWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", running)
	path := "/workspaces/" + string(id)
	is := func(what string, on bool) {
		t.Helper()
		if got := w.row(id).AwakeWhileWorking; got != on {
			t.Errorf("%s: counts %v, want %v", what, got, on)
		}
		_, box, _ := strings.Cut(b.get(path+"/timeouts").body, `id="f-working"`)
		box, _, _ = strings.Cut(box, ">")
		if strings.Contains(box, "checked") != on {
			t.Errorf("%s: the checkbox is %q", what, box)
		}
	}
	send := func(form string, kv ...string) answer {
		v := url.Values{"name": {"project"}}
		for i := 0; i < len(kv); i += 2 {
			v.Set(kv[i], kv[i+1])
		}
		return b.htmx(path+"/"+form, v)
	}
	is("at first", false)
	send("timeouts", "working_shown", "1", "working", "on")
	is("turned on", true)
	send("edit")
	is("a form without it", true)
	if a := send("timeouts", "working_shown", "1", "standby_ttl", "sometimes"); a.status != http.StatusUnprocessableEntity || strings.Contains(a.body, `name="working" checked`) {
		t.Errorf("turned off in a form with an error: %d %s", a.status, a.body)
	}
	is("after the error", true)
	send("timeouts", "working_shown", "1")
	is("turned off", false)
}

// The dialog of idle timeouts changes the backups of the home as well.
func TestBackupSettings(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", standby)
	path := "/workspaces/" + string(id) + "/timeouts"
	send := func(kv ...string) answer {
		v := url.Values{}
		for i := 0; i < len(kv); i += 2 {
			v.Set(kv[i], kv[i+1])
		}
		return b.htmx(path, v)
	}
	is := func(what string, interval int, keep string) {
		t.Helper()
		ws, got := w.row(id), -1
		if ws.BackupInterval != nil {
			got = *ws.BackupInterval
		}
		if got != interval || ws.BackupKeep != keep {
			t.Errorf("%s: %d and %q, want %d and %q", what, got, ws.BackupKeep, interval, keep)
		}
	}
	send("backup_ttl", "after", "backup_ttl_n", "30", "backup_ttl_unit", "60", "backup_keep", " 24h,7d ")
	is("set", 1800, "24h,7d")
	contains(t, "the form", b.get(path).body, `value="24h,7d"`, `value="30"`)
	for name, form := range map[string][]string{
		"too often": {"backup_ttl", "after", "backup_ttl_n", "9", "backup_ttl_unit", "60"},
		"no rule":   {"backup_keep", "all"},
	} {
		if a := send(form...); a.status != http.StatusUnprocessableEntity {
			t.Errorf("%s: %d", name, a.status)
		} else {
			contains(t, name, a.body, `aria-invalid="true"`, "field-error")
		}
		is(name, 1800, "24h,7d")
	}
	send()
	is("a form without them", 1800, "24h,7d")
	send("backup_ttl", "never", "backup_keep", "")
	is("none", 0, "")
	send("backup_ttl", "server")
	is("the server's", -1, "")
}
