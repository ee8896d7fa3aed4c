package dashboard

import (
	"net/http"
	"strings"
	"testing"

	"codehub/internal/workspace"
)

// Every page that the proxy shows, requested through the proxy.
func TestProxyPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	for _, c := range []struct {
		name   string
		state  func(*workspace.Workspace)
		want   string // desired state
		status int
		parts  []string
	}{
		{"starting", operating(standby, workspace.OpStarting), "RUNNING", 503, []string{`data-kind="loading"`, "Starting your workspace", "/cancel", `http-equiv="refresh"`, ">Workspaces<"}},
		{"stopping", operating(running, workspace.OpStopping), "STANDBY", 503, []string{`data-kind="loading"`, "Stopping your workspace", "will start again when the current operation finishes"}},
		{"preparing", operating(func(ws *workspace.Workspace) { ws.Home.State = workspace.HomeFilling }, workspace.OpProvisioning), "RUNNING", 503, []string{`data-kind="loading"`, "Preparing your workspace"}},
		{"archiving", operating(standby, workspace.OpArchiving), "ARCHIVED", 503, []string{`data-kind="loading"`, "It will start when archiving is cancelled.", "Keep archived", "progress-moves"}},
		{"pending", func(*workspace.Workspace) {}, "ARCHIVED", 502, []string{`data-kind="start"`, "has not been started yet", `/start"`}},
		{"archived", func(ws *workspace.Workspace) {
			ws.Phase, ws.ArchiveKey = workspace.PhaseArchived, "k"
		}, "ARCHIVED", 502, []string{`data-kind="restore"`, "is archived", "Restore and open", `/start"`}},
		{"lost", failed(workspace.ErrDataLost, "no such volume"), "STANDBY", 502, []string{`data-kind="failed"`, "The home folder is missing", "/recover", "/start-empty", "/delete", "no such volume"}},
		{"pull", failed(workspace.ErrImagePullFailed, "pull access denied"), "STANDBY", 502, []string{`data-kind="failed"`, "could not be downloaded", "pull access denied"}},
	} {
		id := w.add(c.name, c.state)
		w.want(id, "desired_state", c.want)
		a := b.get("/w/"+string(id)+"/?folder=/x", "Accept", "text/html")
		if a.status != c.status {
			t.Errorf("%s: %d", c.name, a.status)
		}
		contains(t, c.name, a.body, append(c.parts, `sse-connect="/dashboard/events?wait=`+string(id)+`&amp;path=%2Fw%2F`+string(id)+`%2F%3Ffolder%3D%2Fx"`, `id="dialog"`, `<html lang="en">`)...)
		if ko := b.get("/w/"+string(id)+"/", "Accept", "text/html", "Accept-Language", "ko"); !strings.Contains(ko.body, `<html lang="ko">`) {
			t.Errorf("%s is not in Korean", c.name)
		}
		w.want(id, "desired_state", "STANDBY") // free the slot for the next case
		w.want(id, "next_desired_state", nil)
		w.observe(id, standby)
	}

	id := w.add("asleep", standby)
	contains(t, "a wake", b.get("/w/"+string(id)+"/", "Accept", "text/html").body, `data-kind="loading"`, "Starting your workspace")
	w.want(id, "desired_state", "STANDBY")

	for _, name := range []string{"one", "two"} {
		w.want(w.add(name, running), "desired_state", "RUNNING")
	}
	a := b.get("/w/"+string(id)+"/", "Accept", "text/html")
	if a.status != http.StatusBadGateway {
		t.Errorf("at the limit: %d", a.status)
	}
	contains(t, "at the limit", a.body, `data-kind="limit"`, "Stop one to start “asleep”", ">one<", ">two<", `/stop"`, "It starts automatically",
		`sse-connect="/dashboard/events?wait=`+string(id)+`&amp;limit=1"`, `http-equiv="refresh"`)
	lacks(t, "at the limit", a.body, `hx-trigger="every 1s"`)

	// A start that is queued behind a restore waits for the limit as well.
	queued := w.add("packed", func(ws *workspace.Workspace) { ws.Phase, ws.ArchiveKey = workspace.PhaseArchived, "k" })
	w.want(queued, "desired_state", "ARCHIVED")
	w.want(queued, "next_desired_state", "RUNNING")
	contains(t, "queued at the limit", b.get("/w/"+string(queued)+"/", "Accept", "text/html").body, `data-kind="limit"`, "Stop one to start “packed”")

	b.htmx("/workspaces/"+string(id)+"/delete", nil)
	a = b.get("/w/"+string(id)+"/", "Accept", "text/html")
	if a.status != http.StatusGone {
		t.Errorf("deleted: %d", a.status)
	}
	contains(t, "deleted", a.body, `data-kind="deleted"`, "was deleted", "/undelete")

	a = b.get("/w/0198c0de-0000-7000-8000-000000000001/", "Accept", "text/html")
	if a.status != http.StatusNotFound {
		t.Errorf("unknown id: %d", a.status)
	}
	contains(t, "unknown id", a.body, "Workspace not found")

	secret := w.add("secret-project", standby)
	a = w.person("other").get("/w/"+string(secret)+"/", "Accept", "text/html")
	if a.status != http.StatusForbidden {
		t.Errorf("another user's: %d", a.status)
	}
	contains(t, "another user's", a.body, "Access denied")
	lacks(t, "another user's", a.body, "secret-project")
}

func TestProxyPageDuringDockerOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.add("project", running)
	w.want(id, "desired_state", "RUNNING")
	// RUNNING in the database, while the runtime has no container.
	a := w.loggedIn().get("/w/"+string(id)+"/?folder=/x", "Accept", "text/html")
	if a.status < 500 {
		t.Errorf("status %d", a.status)
	}
	contains(t, "the page", a.body, "<!doctype html>", "/assets/")
}

// Actions on the proxy's pages redirect to the workspace's address.
func TestActionsFromTheProxyPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", standby)
	path, from := "/workspaces/"+string(id), map[string][]string{"from": {"wait"}}
	if a := b.htmx(path+"/start", from); a.header.Get("HX-Redirect") != "/w/"+string(id)+"/" {
		t.Errorf("start: %d %q", a.status, a.header.Get("HX-Redirect"))
	}
	w.observe(id, operating(standby, workspace.OpStarting))
	contains(t, "cancel", b.htmx(path+"/cancel", from).body, `id="wait"`, "Cancelling")
	w.observe(id, standby)
	if a := b.post(path+"/start", from); a.header.Get("Location") != "/w/"+string(id)+"/" {
		t.Errorf("start without scripts: %d %q", a.status, a.header.Get("Location"))
	}
	w.want(id, "desired_state", "STANDBY")
	if a := b.htmx(path+"/delete", from); !strings.HasPrefix(a.header.Get("HX-Redirect"), "/?") {
		t.Errorf("delete: %d %q", a.status, a.header.Get("HX-Redirect"))
	}
}

func TestWaitKind(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		phase   workspace.Phase
		op      workspace.Operation
		desired workspace.DesiredState
		next    workspace.DesiredState
		want    string
	}{
		{workspace.PhaseRunning, workspace.OpNone, workspace.DesiredRunning, "", waitReady},
		{workspace.PhaseRunning, workspace.OpStopping, workspace.DesiredStandby, "", waitLoading},
		{workspace.PhaseStandby, workspace.OpNone, workspace.DesiredStandby, "", waitStopped},
		{workspace.PhaseStandby, workspace.OpNone, workspace.DesiredRunning, "", waitLoading},
		{workspace.PhaseStandby, workspace.OpNone, workspace.DesiredStandby, workspace.DesiredRunning, waitLoading},
		{workspace.PhaseStandby, workspace.OpStarting, workspace.DesiredRunning, "", waitLoading},
		{workspace.PhaseArchived, workspace.OpNone, workspace.DesiredArchived, "", waitRestore},
		{workspace.PhaseArchived, workspace.OpNone, workspace.DesiredRunning, "", waitLoading},
		{workspace.PhaseArchived, workspace.OpNone, workspace.DesiredArchived, workspace.DesiredRunning, waitLoading},
		{workspace.PhaseArchived, workspace.OpNone, workspace.DesiredArchived, workspace.DesiredStandby, waitLoading},
		{workspace.PhasePending, workspace.OpNone, workspace.DesiredArchived, workspace.DesiredRunning, waitLoading},
		{workspace.PhasePending, workspace.OpNone, workspace.DesiredArchived, "", waitStart},
		{workspace.PhasePending, workspace.OpNone, workspace.DesiredStandby, "", waitLoading},
		{workspace.PhaseError, workspace.OpNone, workspace.DesiredRunning, "", waitFailed},
		{workspace.PhaseDeleting, workspace.OpDeleting, workspace.DesiredRunning, "", waitDeleted},
	} {
		w := someWorkspace(c.phase)
		w.Operation, w.DesiredState, w.NextDesired = c.op, c.desired, c.next
		if got := waitKind(w); got != c.want {
			t.Errorf("%s/%s desired %s queued %q: %s, want %s", c.phase, c.op, c.desired, c.next, got, c.want)
		}
	}
}
