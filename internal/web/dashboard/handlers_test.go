package dashboard

import (
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

func contains(t *testing.T, what, body string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(body, p) {
			t.Errorf("%s: %q is not in\n%s", what, p, body)
		}
	}
}

func lacks(t *testing.T, what, body string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if strings.Contains(body, p) {
			t.Errorf("%s: %q is in\n%s", what, p, body)
		}
	}
}

func TestCreate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	contains(t, "the form", b.get("/workspaces/new").body, "<!doctype html>", `<label for="f-name">`, "Only the home folder")
	dialog := b.get("/workspaces/new", "HX-Request", "true").body
	contains(t, "the dialog", dialog, "<dialog", `aria-labelledby="dialog-title"`)
	lacks(t, "the dialog", dialog, "<html", "data-unsaved")

	for name, c := range map[string]struct {
		form url.Values
		want string
	}{
		"no name":        {url.Values{"name": {"  "}}, "This field is required."},
		"a long name":    {url.Values{"name": {strings.Repeat("x", 256)}}, "at most 255 characters"},
		"a control code": {url.Values{"name": {"a\x07b"}}, "characters that are not allowed"},
		"a bidi control": {url.Values{"name": {"a\u202eb"}}, "characters that are not allowed"},
		"a bad image":    {url.Values{"name": {"x"}, "image": {"--privileged x"}}, "not a valid image name"},
	} {
		a := b.htmx("/workspaces", c.form)
		if a.status != http.StatusUnprocessableEntity {
			t.Errorf("%s: %d", name, a.status)
		}
		contains(t, name, a.body, c.want, `aria-invalid="true"`, `id="dialog-form"`, "hx-swap-oob", "data-unsaved")
	}

	a := b.htmx("/workspaces", url.Values{"name": {`first <b>`}, "description": {"about it"}, "start": {"on"}})
	if a.status != http.StatusOK {
		t.Fatalf("create: %d %s", a.status, a.body)
	}
	contains(t, "created", a.body, `id="workspaces"`, "first &lt;b&gt;", "about it", `data-state="preparing"`, `id="dialog" hx-swap-oob="innerHTML"`, "was created")
	list, _, err := w.DB.ListWorkspaces(t.Context(), w.caller("admin"), postgres.Filter{})
	if err != nil || len(list) != 1 || list[0].DesiredState != workspace.DesiredRunning || list[0].ImageRef != "codehub/workspace:latest" {
		t.Fatalf("created %+v, %v", list, err)
	}

	a = b.htmx("/workspaces", url.Values{"name": {"first <b>"}})
	contains(t, "the same name", a.body, "already have a workspace with this name")
	a = b.post("/workspaces", url.Values{"name": {"second"}})
	if a.status != http.StatusSeeOther || !strings.HasPrefix(a.header.Get("Location"), "/?") {
		t.Errorf("create without scripts: %d %q", a.status, a.header.Get("Location"))
	}
	contains(t, "after the redirect", b.get(a.header.Get("Location")).body, "“second” was created.", "second")

	b.htmx("/workspaces", url.Values{"name": {"third"}, "start": {"on"}})
	a = b.htmx("/workspaces", url.Values{"name": {"fourth"}, "start": {"on"}})
	contains(t, "at the limit", a.body, "reached your running limit (2)", `value="fourth"`)
}

func TestChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", standby)
	path := "/workspaces/" + string(id)
	row := func() workspace.Workspace {
		t.Helper()
		ws, err := w.DB.Workspace(t.Context(), w.caller("admin"), id)
		if err != nil {
			t.Fatal(err)
		}
		return ws
	}
	list := url.Values{"from": {"list"}}

	a := b.htmx(path+"/start", list)
	if a.status != http.StatusOK || row().DesiredState != workspace.DesiredRunning {
		t.Fatalf("start: %d, desired %s", a.status, row().DesiredState)
	}
	contains(t, "start", a.body, `id="workspaces"`, `data-state="starting"`, "is starting")

	w.observe(id, operating(standby, workspace.OpStarting))
	if a = b.htmx(path+"/cancel", list); a.status != http.StatusOK || row().CancelRequestedAt == nil {
		t.Fatalf("cancel: %d %s", a.status, a.body)
	}
	contains(t, "cancel", a.body, "Cancelling")
	w.observe(id, standby)

	w.want(id, "desired_state", "RUNNING")
	w.observe(id, running)
	a = b.htmx(path+"/stop", url.Values{"from": {"detail"}})
	if a.status != http.StatusOK || row().DesiredState != workspace.DesiredStandby {
		t.Fatalf("stop: %d", a.status)
	}
	contains(t, "stop", a.body, `id="panel"`, `data-state="stopping"`)
	w.observe(id, operating(running, workspace.OpStopping))
	a = b.htmx(path+"/start", list)
	if a.status != http.StatusOK || row().NextDesired != workspace.DesiredRunning {
		t.Fatalf("start while stopping: %d %s, next %q", a.status, a.body, row().NextDesired)
	}
	contains(t, "queued", a.body, "start queued", "Keep stopped")
	if a = b.htmx(path+"/force-stop", list); a.status != http.StatusOK || row().ForceStopRequestedAt == nil {
		t.Fatalf("force stop: %d", a.status)
	}
	a = b.htmx(path+"/cancel", list)
	if a.status != http.StatusConflict {
		t.Errorf("cancel a forced stop: %d", a.status)
	}
	contains(t, "cancel a forced stop", a.body, "can no longer be cancelled", "toast-error")

	w.observe(id, failed(workspace.ErrRetryExceeded, "a volume is in the way"))
	if a = b.htmx(path+"/set-aside", list); a.status != http.StatusConflict || row().RecoverAction != "" {
		t.Fatalf("set aside with nothing in the way: %d, action %q", a.status, row().RecoverAction)
	}
	w.observe(id, func(ws *workspace.Workspace) {
		failed(workspace.ErrRetryExceeded, "a volume is in the way")(ws)
		ws.Conditions = ws.Conditions.With(workspace.VolumeReady, false, workspace.ReasonForeignVolume, "", testNow)
	})
	a = b.get("/")
	contains(t, "a volume blocks the home", a.body, "Another volume has this home’s name", path+"/set-aside")
	a = b.get(path + "/set-aside")
	contains(t, "the dialog", a.body, "No files are lost", `action="`+path+`/set-aside"`)
	if a = b.htmx(path+"/set-aside", list); a.status != http.StatusOK || row().RecoverAction != workspace.RecoverSetAside {
		t.Fatalf("set aside: %d, action %q", a.status, row().RecoverAction)
	}
	contains(t, "set aside", a.body, "Setting the volume aside", "Setting aside the volume that blocks")

	w.observe(id, func(ws *workspace.Workspace) {
		failed(workspace.ErrDataLost, "no such volume")(ws)
		ws.RecoverRequestedAt, ws.RecoverAction = nil, ""
	})
	a = b.htmx(path+"/start", list)
	if a.status != http.StatusConflict {
		t.Errorf("start in ERROR: %d", a.status)
	}
	contains(t, "start in ERROR", a.body, "is in an error state")
	a = b.htmx(path+"/start-empty", url.Values{"confirm": {"something else"}})
	if a.status != http.StatusUnprocessableEntity || row().RecoverAction != "" {
		t.Fatalf("start empty without the name: %d, action %q", a.status, row().RecoverAction)
	}
	contains(t, "start empty without the name", a.body, "does not match the workspace name")
	if a = b.htmx(path+"/start-empty", url.Values{"confirm": {" project "}}); a.status != http.StatusOK || row().RecoverAction != workspace.RecoverEmpty {
		t.Fatalf("start empty: %d %s, action %q", a.status, a.body, row().RecoverAction)
	}
	if a = b.htmx(path+"/recover", list); a.status != http.StatusOK || row().RecoverAction != workspace.RecoverAfresh {
		t.Fatalf("recover: %d, action %q", a.status, row().RecoverAction)
	}
}

func TestEditAndMemo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", standby)
	w.add("other", standby)
	path := "/workspaces/" + string(id)
	contains(t, "the form", b.get(path+"/edit").body, `value="project"`, `<label for="f-memo">`)
	a := b.htmx(path+"/edit", url.Values{"name": {"other"}})
	contains(t, "a name that is taken", a.body, "already have a workspace with this name", `value="other"`)
	a = b.htmx(path+"/edit", url.Values{"name": {"renamed"}, "description": {"line one\r\nline two"}, "memo": {"m"}})
	if a.status != http.StatusOK {
		t.Fatalf("edit: %d %s", a.status, a.body)
	}
	a = b.htmx(path+"/memo", url.Values{"memo": {"first\r\nsecond\x00"}, "from": {"detail"}})
	if a.status != http.StatusOK {
		t.Fatalf("memo: %d", a.status)
	}
	ws, err := w.DB.Workspace(t.Context(), w.caller("admin"), id)
	if err != nil || ws.Name != "renamed" || ws.Description != "line one\nline two" || ws.Memo != "first\nsecond" {
		t.Errorf("edited: %q %q %q, %v", ws.Name, ws.Description, ws.Memo, err)
	}
	if a = b.htmx(path+"/memo", url.Values{"memo": {strings.Repeat("x", 65<<10)}}); a.status != http.StatusRequestEntityTooLarge {
		t.Errorf("a memo that is too long: %d", a.status)
	}
}

// A form that was not read in full, or a body that is no form, changes nothing: an absent field is
// not an empty one.
func TestFormsThatAreNotReadChangeNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", standby)
	memo, env := "notes", lifecycle.EnvChange{Set: map[string]*string{"NAME": new("value")}}
	if _, err := w.DB.PatchWorkspace(t.Context(), w.caller("admin"), id, postgres.Patch{Edit: workspace.Edit{Memo: &memo}, Env: &env}); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("가", 40_000) // 9 bytes each in a form
	for _, c := range []struct {
		name, contentType string
		form              url.Values
		status            int
	}{
		{"too large", "application/x-www-form-urlencoded", url.Values{"memo": {long}, "env": {long}}, http.StatusRequestEntityTooLarge},
		{"no form", "multipart/form-data; boundary=x", url.Values{"memo": {"x"}, "env": {"X=x"}}, http.StatusUnsupportedMediaType},
		{"without a type", "", url.Values{"memo": {"x"}, "env": {"X=x"}}, http.StatusUnsupportedMediaType},
	} {
		for _, what := range []string{"memo", "env", "edit"} {
			for _, asked := range []string{"true", ""} {
				a := b.post("/workspaces/"+string(id)+"/"+what, c.form, "HX-Request", asked, "Content-Type", c.contentType)
				if a.status != c.status || !strings.Contains(a.body, "Nothing was changed") {
					t.Errorf("%s %s: %d %s", c.name, what, a.status, a.body)
				}
			}
		}
	}
	ws, err := w.DB.Workspace(t.Context(), w.caller("admin"), id)
	if err != nil || ws.Memo != "notes" || ws.Env["NAME"] != "value" || ws.Name != "project" {
		t.Errorf("%q %v %q, %v", ws.Memo, ws.Env, ws.Name, err)
	}
}

func TestDeleteAndUndo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", standby)
	path := "/workspaces/" + string(id)
	contains(t, "the confirmation", b.get(path+"/delete", "HX-Request", "true").body, "Delete project?", "you can undelete the workspace until then", `role="alertdialog"`)

	a := b.htmx(path+"/delete", url.Values{"from": {"list"}})
	if a.status != http.StatusOK {
		t.Fatalf("delete: %d %s", a.status, a.body)
	}
	contains(t, "deleted", a.body, "was deleted", `hx-post="`+path+`/undelete"`, "Undo", "Recently deleted", "1 h 59 min")
	contains(t, "its page", b.get(path).body, ">Undelete<", "Can be undeleted for another")
	a = b.htmx(path+"/undelete", url.Values{"from": {"list"}})
	if a.status != http.StatusOK {
		t.Fatalf("undelete: %d %s", a.status, a.body)
	}
	contains(t, "undeleted", a.body, "was undeleted", `data-phase="STANDBY"`)
	lacks(t, "undeleted", a.body, "Recently deleted")

	// Its own page redirects to the list.
	if a = b.htmx(path+"/delete", url.Values{"from": {"detail"}}); !strings.HasPrefix(a.header.Get("HX-Redirect"), "/?") {
		t.Errorf("delete from its page: %d %q", a.status, a.header.Get("HX-Redirect"))
	}
	contains(t, "after the redirect", b.get(a.header.Get("HX-Redirect")).body, "was deleted", "Undo")
	b.htmx(path+"/undelete", nil)

	// The deletion of a workspace waits for the end of its operation, or causes it.
	w.observe(id, operating(standby, workspace.OpStopping))
	contains(t, "the confirmation", b.get(path+"/delete").body, "when the current operation finishes", "you can undelete the workspace")
	w.observe(id, operating(standby, workspace.OpStarting))
	contains(t, "the confirmation", b.get(path+"/delete").body, "The current operation will be cancelled.", "you can undelete the workspace")
	w.observe(id, func(ws *workspace.Workspace) {
		operating(standby, workspace.OpProvisioning)(ws)
		ws.Phase, ws.Home.State = workspace.PhasePending, workspace.HomeFilling
	})
	contains(t, "the confirmation", b.get(path+"/delete").body, "The current operation will be cancelled.", "its deletion cannot be undone")
	w.observe(id, operating(standby, workspace.OpStarting))
	a = b.htmx(path+"/delete", url.Values{"from": {"list"}})
	contains(t, "queued", a.body, "when the current operation has ended", "deletion queued")
	lacks(t, "queued", a.body, "Undo")

	// After the grace period.
	w.observe(id, standby)
	b.htmx(path+"/delete", nil)
	w.observe(id, func(ws *workspace.Workspace) {
		operating(standby, workspace.OpDeleting)(ws)
		ws.Phase, ws.Home.State = workspace.PhaseDeleting, workspace.HomeDeleting
	})
	a = b.htmx(path+"/undelete", url.Values{"from": {"list"}})
	if a.status != http.StatusGone {
		t.Errorf("undelete too late: %d", a.status)
	}
	contains(t, "undelete too late", a.body, "cannot be undeleted")
	lacks(t, "the list while the home is removed", b.get("/").body, path+"/delete")

	// The removal fails, so its owner and the administrators see the workspace again.
	for _, reason := range []workspace.ErrorReason{workspace.ErrActionFailed, workspace.ErrTimeout} {
		w.observe(id, func(ws *workspace.Workspace) {
			ws.Operation, ws.ErrorReason, ws.ErrorMessage = workspace.OpNone, reason, "the volume is in use by keeper"
		})
		list, admin := b.get("/").body, b.get("/admin").body
		contains(t, "the list", list, "Recently deleted", ">project<", "the volume is in use by keeper")
		lacks(t, "the list", list, path+"/undelete", "Your files are safe")
		contains(t, "the administrators' page", admin, "Failed deletions", ">project<", "the volume is in use by keeper", string(id))
		if reason.Final() {
			contains(t, "the list", list, "Deletion failed", ">Delete again<", `hx-post="`+path+`/delete"`)
			contains(t, "the administrators' page", admin, "no longer retried")
		} else {
			contains(t, "the list", list, "Deleting", "The last attempt failed")
			contains(t, "the administrators' page", admin, "will be retried")
		}
	}
	if a = b.htmx(path+"/delete", url.Values{"from": {"list"}}); a.status != http.StatusOK || w.row(id).RecoverRequestedAt == nil {
		t.Errorf("delete again: %d, requested %v", a.status, w.row(id).RecoverRequestedAt)
	}
}

func TestLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	var ids []workspace.ID
	for _, name := range []string{"one", "two"} {
		id := w.add(name, running)
		w.want(id, "desired_state", "RUNNING")
		ids = append(ids, id)
	}
	third := w.add("three", standby)
	start := "/workspaces/" + string(third) + "/start"
	a := b.htmx(start, url.Values{"from": {"list"}})
	if a.status != http.StatusTooManyRequests {
		t.Fatalf("start at the limit: %d", a.status)
	}
	contains(t, "the dialog", a.body, "<dialog", "You can run 2 workspaces at a time. Stop one to start “three”.", ">one<", ">two<",
		"It starts automatically when the limit allows.", `hx-post="/workspaces/`+string(ids[0])+`/stop"`, `hx-trigger="every 1s"`)
	lacks(t, "the dialog", a.body, `hx-trigger="load`)

	// A browser without scripts gets the same content as a page.
	a = b.post(start, nil)
	contains(t, "the page", a.body, "<!doctype html>", "You can run 2 workspaces", ">one<")
	// On that page, and in its dialog, both forms send page=1.
	asPage := func(what, body string) {
		t.Helper()
		for _, path := range []string{start, "/workspaces/" + string(ids[0]) + "/stop"} {
			form := regexp.MustCompile(`(?s)<form [^>]*hx-post="` + path + `".*?</form>`).FindString(body)
			contains(t, what, form, `<input type="hidden" name="page" value="1">`)
		}
	}
	asPage("the page", a.body)
	// On the page of the limit, the list on it is replaced. Elsewhere a dialog has it, below
	// the page's own heading.
	again := b.htmx(start, url.Values{"from": {"list"}, "page": {"1"}, "limit": {"page"}}).body
	contains(t, "another try on the page", again, `<div id="limit-list" class="limit" hx-swap-oob="true"`, `<h1 id="limit-title">`)
	lacks(t, "another try on the page", again, "<dialog")
	for _, form := range []url.Values{{"from": {"list"}}, {"from": {"wait"}}, {"from": {"list"}, "page": {"1"}}, {"from": {"list"}, "page": {"1"}, "limit": {"dialog"}}} {
		dialog := b.htmx(start, form).body
		contains(t, "the dialog", dialog, "<dialog", `<h2 id="limit-title">`, `<input type="hidden" name="limit" value="dialog">`, "&amp;limit=dialog", "data-close-dialog")
		lacks(t, "the dialog", dialog, "<h1")
		poll := regexp.MustCompile(`hx-get="([^"]+)"`).FindStringSubmatch(dialog)
		lacks(t, "the dialog later", b.get(html.UnescapeString(poll[1]), "HX-Request", "true").body, "<h1")
	}
	asPage("a dialog on the page", b.htmx(start, url.Values{"from": {"list"}, "page": {"1"}}).body)

	a = b.htmx("/workspaces/"+string(ids[0])+"/stop", url.Values{"from": {"list"}, "for": {string(third)}})
	contains(t, "one is stopping", a.body, `id="limit-list"`, "Stopping", "hx-swap-oob")
	w.observe(ids[0], standby)
	a = b.get("/workspaces/"+string(third)+"/limit", "HX-Request", "true")
	contains(t, "when one stopped", a.body, "You can start another workspace now", `hx-post="`+start+`"`, `hx-trigger="load, submit"`)
	lacks(t, "when one stopped", a.body, "hx-get")
	if a = b.htmx(start, url.Values{"from": {"list"}, "page": {"1"}}); !strings.HasPrefix(a.header.Get("HX-Redirect"), "/?") {
		t.Errorf("start below the limit from the page: %d %v", a.status, a.header)
	}
	if a = b.htmx(start, url.Values{"from": {"list"}}); a.status != http.StatusOK {
		t.Errorf("start below the limit: %d %s", a.status, a.body)
	}

	// Recovering a failed workspace that was running counts against the limit too.
	w.observe(ids[0], failed(workspace.ErrTimeout, ""))
	w.want(ids[0], "desired_state", "RUNNING")
	a = b.htmx("/workspaces/"+string(ids[0])+"/recover", url.Values{"from": {"list"}})
	contains(t, "recover at the limit", a.body, "<dialog", `hx-post="/workspaces/`+string(ids[0])+`/recover"`)
}

// The dialog of a new workspace shows that the limit is reached, and starts the new one in
// place of another.
func TestCreateAtTheLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	lacks(t, "below the limit", b.get("/workspaces/new").body, "create-limit")
	var ids []workspace.ID
	for _, name := range []string{"one", "two"} {
		ids = append(ids, w.add(name, running))
		w.want(ids[len(ids)-1], "desired_state", "RUNNING")
	}
	form := b.get("/workspaces/new", "HX-Request", "true").body
	contains(t, "at the limit", form, "as many workspaces as you can (2)", "Create it stopped", "Stop one and start", "Stop two and start")
	lacks(t, "at the limit", form, `type="checkbox" name="start"`)

	a := b.htmx("/workspaces", url.Values{"name": {"three"}, "start": {string(ids[0])}})
	contains(t, "created", a.body, "three", "Stopping")
	list, _, err := w.DB.ListWorkspaces(t.Context(), w.caller("admin"), postgres.Filter{Query: "three"})
	if err != nil || len(list) != 1 || list[0].DesiredState != workspace.DesiredStandby || list[0].NextDesired != workspace.DesiredRunning {
		t.Fatalf("%+v, %v", list, err)
	}
	if row := w.row(ids[0]); row.DesiredState != workspace.DesiredStandby {
		t.Errorf("the other one: %+v", row)
	}
	// It starts once a slot is free.
	if applied, err := w.DB.ApplyQueued(t.Context(), list[0].ID); applied || err != nil {
		t.Errorf("before the other one has stopped: %v, %v", applied, err)
	}
	w.observe(ids[0], standby)
	if applied, err := w.DB.ApplyQueued(t.Context(), list[0].ID); !applied || err != nil {
		t.Errorf("after that: %v, %v", applied, err)
	}

	// A name that is taken stops no workspace, and the choice is kept.
	a = b.htmx("/workspaces", url.Values{"name": {"two"}, "start": {string(ids[1])}})
	if row := w.row(ids[1]); a.status != http.StatusUnprocessableEntity || row.DesiredState != workspace.DesiredRunning {
		t.Errorf("%d, %+v", a.status, row)
	}
	contains(t, "the form again", a.body, `value="`+string(ids[1])+`" checked`)
	// The workspace to stop may be gone: the new one is still created and queued.
	a = b.htmx("/workspaces", url.Values{"name": {"four"}, "start": {"0198c0de-0000-7000-8000-000000000001"}})
	if a.status != http.StatusOK {
		t.Errorf("in place of a workspace that is gone: %d %s", a.status, a.body)
	}
	contains(t, "in place of a missing workspace", a.body, "“four” was created.")
	lacks(t, "in place of a missing workspace", a.body, "toast-error", "It starts when the running limit allows")
	// Another user's workspace is not stopped for it.
	eve := w.person("eve")
	for lang, want := range map[string]string{"en": "“en” was created. It starts when the running limit allows.", "ko": "“ko” 워크스페이스를 만들었습니다. 실행 한도에 여유가 생기면 시작합니다."} {
		a = eve.post("/workspaces", url.Values{"name": {lang}, "start": {string(ids[1])}}, "HX-Request", "true", "Accept-Language", lang)
		if a.status != http.StatusOK {
			t.Errorf("%s: in place of another user's workspace: %d %s", lang, a.status, a.body)
		}
		contains(t, lang, a.body, want)
		lacks(t, lang, a.body, "toast-error")
	}
	if row := w.row(ids[1]); row.DesiredState != workspace.DesiredRunning {
		t.Errorf("another user's workspace was stopped: %+v", row)
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	contains(t, "none", b.get("/settings/tokens").body, "You have no API tokens.")
	a := b.htmx("/settings/tokens", url.Values{"name": {""}, "expires": {"30"}})
	contains(t, "no name", a.body, "This field is required.")
	a = b.htmx("/settings/tokens", url.Values{"name": {"laptop"}, "expires": {"-1"}})
	if a.status != http.StatusUnprocessableEntity {
		t.Errorf("an invalid lifetime: %d", a.status)
	}
	a = b.htmx("/settings/tokens", url.Values{"name": {"laptop"}, "expires": {"30"}})
	contains(t, "created token", a.body, auth.TokenPrefix, "shown only once", "Codehub-Session-Token", `id="tokens"`)
	page := b.get("/settings/tokens").body
	contains(t, "the list", page, "laptop", "never used", "30 days")
	lacks(t, "the list", page, auth.TokenPrefix)
	tokens, _, err := w.Auth.Tokens(t.Context(), w.caller("admin"), postgres.Page{})
	if err != nil || len(tokens) != 1 || tokens[0].ExpiresAt == nil {
		t.Fatalf("tokens %v, %v", tokens, err)
	}
	revoke := "/settings/tokens/" + tokens[0].ID + "/revoke"
	contains(t, "the confirmation", b.get(revoke).body, "Revoke laptop?")
	if tokens, _, _ = w.Auth.Tokens(t.Context(), w.caller("admin"), postgres.Page{}); len(tokens) != 1 {
		t.Fatal("a GET revoked the token")
	}
	contains(t, "revoked", b.htmx(revoke, nil).body, "was revoked", "You have no API tokens.")
	if a = b.post(revoke, nil); a.status != http.StatusSeeOther {
		t.Errorf("revoke again without scripts: %d", a.status)
	}
	contains(t, "never expires", b.post("/settings/tokens", url.Values{"name": {"ci"}, "expires": {"never"}}).body, "<!doctype html>", auth.TokenPrefix)
	contains(t, "never expires", b.get("/settings/tokens").body, "never expires")
}

func TestLogs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", standby)
	path := "/workspaces/" + string(id) + "/logs"
	contains(t, "no container", b.get(path).body, "There is no output")
	w.observe(id, running)
	w.logs.text = "\x1b[31mred\x1b[0m <script>\x07\n" + strings.Repeat("x", logBytes)
	a := b.get(path)
	lacks(t, "the log", a.body, "\x1b", "\x07", "<script>", "red")
	w.logs.text = "\x1b[31mred\x1b[0m <script>\x07\x1b]0;title\x07\n"
	a = b.get(path)
	contains(t, "the log", a.body, "red &lt;script&gt;\n", `role="log"`)
	lacks(t, "the log", a.body, "title")
	w.logs.text, w.logs.err = "", runtime.ErrNotFound
	contains(t, "container removed", b.get(path).body, "There is no output")
	w.logs.err = runtime.ErrUnreachable
	contains(t, "no response", b.get(path).body, "not available right now")
}

// The number of logs that are read at once for the pages of one user is bounded.
func TestLogsAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", standby)
	path := "/workspaces/" + string(id) + "/logs"
	w.observe(id, running)
	w.logs.text, w.logs.hold = "printed", make(chan struct{})
	release := sync.OnceFunc(func() { close(w.logs.hold) })
	t.Cleanup(release)
	bodies := make(chan string, maxFollowed+1)
	for range maxFollowed + 1 {
		go func() { bodies <- b.get(path).body }()
	}
	select {
	case body := <-bodies:
		contains(t, "one more", body, "not available right now")
	case <-time.After(harness.Patience):
		t.Fatal("all logs are read at once")
	}
	release()
	for range maxFollowed {
		contains(t, "the log", <-bodies, "printed")
	}
	contains(t, "afterwards", b.get(path).body, "printed")
}

// A user is told what happened and what to do. The words of Docker are for administrators.
func TestRawErrorsAreForAdministrators(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	users := map[string]*browser{"ann": w.person("ann"), "admin": w.loggedIn()}
	const raw = "Get https://r.example.com/v2/: dial tcp: lookup r.example.com on 127.0.0.53:53: no such host"
	said := fmt.Sprintf(runtime.MsgNoRegistry, "r.example.com")
	for name, b := range users {
		id := w.AddWorkspace(w.caller(name), "project").ID
		w.observe(id, failed(workspace.ErrImagePullFailed, "image r.example.com/a:1: "+said+" "+raw))
		for _, path := range []string{"/", "/workspaces/" + string(id), "/workspaces/" + string(id) + "/wait"} {
			page := html.UnescapeString(b.get(path).body)
			contains(t, name+" at "+path, page, "The image could not be downloaded", said)
			if strings.Contains(page, "dial tcp") != (name == "admin") || strings.Contains(page, `<details class="words"`) != (name == "admin") {
				t.Errorf("%s at %s: the words of Docker are shown to the wrong user:\n%s", name, path, page)
			}
		}
		contains(t, "in Korean", b.get("/", "Accept-Language", "ko").body, "레지스트리 r.example.com에 연결할 수 없습니다.")
	}
}
