package httpapi

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"codehub/api"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/workspace"
)

const apiTemplate = `title: API
image: example.com/api:1
size: large
env: {BRANCH: "${param.branch}", FLAGS: a}
idle: {stop: 1h}
backup: {interval: 30m, keep: "24h,7d"}
repositories: [{url: "https://git.example.com/team/api.git", branch: "${param.branch}"}]
parameters: [{name: branch, default: main, pattern: '[a-z]+'}]
`

// saving returns the body of a PUT of a template.
func saving(text string, dry bool) string {
	body := `{"text":` + string(plainJSON(text))
	if dry {
		body += `,"dry_run":true`
	}
	return body + "}"
}

// TestTemplates: an administrator saves a template, users create workspaces from it, a change of it is
// an update of theirs, and the history has every version.
func TestTemplates(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	boss := e.join("boss")
	e.Exec(`UPDATE users SET admin = true WHERE username = 'boss'`)
	e.Auth.InvalidateAll()

	bad := e.want(400, "invalid_request", "PUT", "/templates/api", saving("title: API\nsize: huge\nimagee: x\n", false), as(boss))
	if !strings.Contains(bad.body, `"field":"imagee"`) || !strings.Contains(bad.body, `"line":3`) {
		t.Errorf("a mistake: %s", bad.body)
	}
	if bad := e.want(400, "invalid_request", "PUT", "/templates/api", saving("title: API\nsize: huge\n", false), as(boss)); !strings.Contains(bad.body, `line 2: size \"huge\" is not offered`) {
		t.Errorf("an unknown size: %s", bad.body)
	}
	e.want(403, "forbidden", "PUT", "/templates/api", saving(apiTemplate, true), as(e.ann))
	dry := read[api.SavedTemplate](t, e.want(200, "", "PUT", "/templates/api", saving(apiTemplate, true), as(boss)))
	if !dry.New || len(dry.Changes) == 0 {
		t.Errorf("%+v", dry)
	}
	e.want(404, "not_found", "GET", "/templates/api", "", as(e.ann))
	saved := read[api.SavedTemplate](t, e.want(200, "", "PUT", "/templates/api", saving(apiTemplate, false), as(boss)))
	if saved.Template.Source != "saved" || saved.Template.SavedBy != "boss" {
		t.Errorf("%+v", saved.Template)
	}
	list := read[api.TemplateList](t, e.want(200, "", "GET", "/templates", "", as(e.ann)))
	if list.Templates[0].Name != "api" || len(list.Templates) != 8 || list.Templates[1].Name != "empty" || list.Templates[0].Text != "" {
		t.Errorf("%+v", list)
	}

	// A workspace gets the settings where the request has none.
	e.want(400, "invalid_request", "POST", "/workspaces", `{"name":"a","template":"api","parameters":{"branch":"A"}}`, as(e.ann))
	e.want(404, "not_found", "POST", "/workspaces", `{"name":"a","template":"nothing"}`, as(e.ann))
	e.want(400, "invalid_request", "POST", "/workspaces", `{"name":"a","parameters":{"branch":"a"}}`, as(e.ann))
	made := read[api.Workspace](t, e.want(201, "", "POST", "/workspaces", `{"name":"a","template":"api","parameters":{"branch":"dev"},"env":{"OWN":"1","FLAGS":"mine"},"desired_state":"STANDBY"}`, as(e.ann)))
	if d := cmp.Diff(map[string]string{"BRANCH": "dev", "OWN": "1", "FLAGS": "mine"}, made.Env); d != "" || made.ImageRef != "example.com/api:1" || made.Size != "large" || *made.StandbyTTLSeconds != 3600 || *made.BackupIntervalSeconds != 1800 || *made.BackupKeep != "24h,7d" {
		t.Errorf("%+v\n%s", made, d)
	}
	if made.Template.Version != saved.Template.Version || made.Template.Parameters["branch"] != "dev" || made.Template.UpdateAvailable {
		t.Errorf("%+v", made.Template)
	}
	other := read[api.Workspace](t, e.want(201, "", "POST", "/workspaces", `{"name":"b","template":"api","image_ref":"own","size":"default","standby_ttl_seconds":60,"backup_interval_seconds":0,"backup_keep":"4w"}`, as(e.ann)))
	if other.ImageRef != "own" || other.Size != "default" || *other.StandbyTTLSeconds != 60 || *other.BackupIntervalSeconds != 0 || *other.BackupKeep != "4w" || other.Env["BRANCH"] != "main" {
		t.Errorf("%+v", other)
	}

	// Repositories of the request replace those of the template.
	if d := cmp.Diff([]api.Repository{{URL: "https://git.example.com/team/api.git", Branch: "dev"}}, made.Repositories); d != "" {
		t.Error(d)
	}
	fork := read[api.Workspace](t, e.want(201, "", "POST", "/workspaces", `{"name":"fork","template":"api","repositories":[{"url":"https://git.example.com/ann/api.git"}],"desired_state":"STANDBY"}`, as(e.ann)))
	if d := cmp.Diff([]api.Repository{{URL: "https://git.example.com/ann/api.git"}}, fork.Repositories); d != "" {
		t.Error(d)
	}
	twin := read[api.Workspace](t, e.want(201, "", "POST", "/workspaces", `{"name":"twin","like":"`+made.ID+`","desired_state":"STANDBY"}`, as(e.ann)))
	if d := cmp.Diff(made.Repositories, twin.Repositories); d != "" {
		t.Error(d)
	}

	// What only shows the template differently is no update.
	path := "/workspaces/" + made.ID
	e.want(200, "", "PUT", "/templates/api", saving("icon: go\n"+apiTemplate, false), as(boss))
	if w := read[api.Workspace](t, e.want(200, "", "GET", path, "", as(e.ann))); w.Template.UpdateAvailable {
		t.Errorf("an icon: %+v", w.Template)
	}
	changed := strings.NewReplacer("api:1", "api:2", "FLAGS: a", "FLAGS: b, NEW: c", "large", "small", "30m", "2h").Replace(apiTemplate)
	preview := read[api.SavedTemplate](t, e.want(200, "", "PUT", "/templates/api", saving(changed, true), as(boss)))
	if preview.Workspaces != 4 || !strings.Contains(string(plainJSON(preview.Changes)), `{"field":"image","from":"example.com/api:1","to":"example.com/api:2"}`) {
		t.Errorf("%+v", preview)
	}
	e.want(200, "", "PUT", "/templates/api", saving(changed, false), as(boss))
	w := read[api.Workspace](t, e.want(200, "", "GET", path, "", as(e.ann)))
	if !w.Template.UpdateAvailable || w.ImageRef != "example.com/api:1" {
		t.Errorf("an update: %+v", w.Template)
	}
	e.want(403, "forbidden", "POST", path+"/update-template", "", as(e.eve))
	w = read[api.Workspace](t, e.want(200, "", "POST", path+"/update-template", "", as(e.ann)))
	// The owner's value stays.
	if d := cmp.Diff(map[string]string{"BRANCH": "dev", "OWN": "1", "FLAGS": "mine", "NEW": "c"}, w.Env); d != "" || w.ImageRef != "example.com/api:2" || w.Size != "small" || w.Template.UpdateAvailable || *w.Template.PreviousVersion != saved.Template.Version {
		t.Errorf("%+v %+v\n%s", w, w.Template, d)
	}
	w = read[api.Workspace](t, e.want(200, "", "POST", path+"/revert-template", "", as(e.ann)))
	if d := cmp.Diff(made.Env, w.Env); d != "" || w.ImageRef != "example.com/api:1" || w.Size != "large" || !w.Template.UpdateAvailable {
		t.Errorf("%+v %+v\n%s", w, w.Template, d)
	}
	w = read[api.Workspace](t, e.want(200, "", "POST", path+"/update-template", `{"parameters":{"branch":"prod"}}`, as(e.ann)))
	if w.Env["BRANCH"] != "prod" || w.Template.Parameters["branch"] != "prod" {
		t.Errorf("another parameter: %+v", w.Env)
	}
	for _, action := range []string{"template.save", "workspace.template"} {
		if n := fixture.Query[int](e, `SELECT count(*) FROM audit_log WHERE action = $1`, action); n != 3 {
			t.Errorf("%s is recorded %d times", action, n)
		}
	}

	// Duplicates have the same settings, and no update of their own to take back.
	like := read[api.Workspace](t, e.want(201, "", "POST", "/workspaces", `{"name":"c","like":"`+made.ID+`","env":{"OWN":"2"},"desired_state":"STANDBY"}`, as(e.ann)))
	if like.Env["OWN"] != "2" || like.Env["BRANCH"] != "prod" || like.ImageRef != w.ImageRef || like.Size != w.Size || like.Template.Version != w.Template.Version || like.Template.PreviousVersion != nil {
		t.Errorf("%+v %+v", like, like.Template)
	}
	e.want(403, "forbidden", "POST", "/workspaces", `{"name":"c","like":"`+made.ID+`"}`, as(e.eve))
	text := read[api.TemplateText](t, e.want(200, "", "GET", path+"/template", "", as(e.ann))).Text
	if strings.Contains(text, "mine") || strings.Contains(text, "BRANCH: prod") || !strings.Contains(text, "- url: https://git.example.com/team/api.git") || !strings.Contains(text, "NEW: c") || !strings.Contains(text, "#   BRANCH:") || !strings.Contains(text, "#   OWN:") {
		t.Error(text)
	}

	got := read[api.Template](t, e.want(200, "", "GET", "/templates/api", "", as(boss)))
	if len(got.History) != 3 || got.History[2].Text != apiTemplate || got.Text != changed || *got.Workspaces != 5 {
		t.Errorf("%+v", got)
	}
	e.want(204, "", "DELETE", "/templates/api", "", as(boss))
	e.want(404, "not_found", "GET", "/templates/api", "", as(boss))
	e.want(404, "not_found", "DELETE", "/templates/api", "", as(boss))
	e.want(400, "invalid_request", "DELETE", "/templates/go", "", as(boss))
	if w := read[api.Workspace](t, e.want(200, "", "GET", path, "", as(e.ann))); w.Template.UpdateAvailable || w.Env["BRANCH"] != "prod" {
		t.Errorf("after the deletion: %+v", w.Template)
	}
	plain := e.workspace(e.ann, "plain")
	e.want(400, "invalid_request", "POST", "/workspaces/"+string(plain.ID)+"/update-template", "", as(e.ann))
	e.want(400, "invalid_request", "POST", "/workspaces/"+string(plain.ID)+"/revert-template", "", as(e.ann))
}

// TestTemplatesOfGroups: a template for groups is used by their members and by administrators; a hidden
// one by no user.
func TestTemplatesOfGroups(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	boss := e.join("boss")
	e.Exec(`UPDATE users SET admin = true WHERE username = 'boss'`)
	e.Auth.InvalidateAll()
	group := read[api.Group](t, e.want(201, "", "POST", "/groups", `{"name":"Platform"}`, as(boss)))
	e.want(200, "", "POST", "/groups/"+group.ID+"/members", `{"user":"ann"}`, as(boss))
	e.want(200, "", "PUT", "/templates/api", saving("groups: [platform, other]\n", false), as(boss))
	e.want(200, "", "PUT", "/templates/java", saving("hidden: true\n", false), as(boss))
	for p, status := range map[*person]int{&e.ann: http.StatusOK, &e.eve: http.StatusNotFound, &boss: http.StatusOK} {
		if a := e.do("GET", Prefix+"/templates/api", "", as(*p)); a.status != status {
			t.Errorf("%s: %d %s", p.User.Username, a.status, a.body)
		}
	}
	e.want(201, "", "POST", "/workspaces", `{"name":"a","template":"api"}`, as(e.ann))
	e.want(404, string(workspace.CodeNotFound), "POST", "/workspaces", `{"name":"a","template":"api"}`, as(e.eve))
	e.want(404, string(workspace.CodeNotFound), "GET", "/templates/java", "", as(e.ann))
	e.want(200, "", "GET", "/templates/java", "", as(boss))
	e.want(404, string(workspace.CodeNotFound), "POST", "/workspaces", `{"name":"a","template":"java"}`, as(boss))
	e.want(204, "", "DELETE", "/templates/java", "", as(boss))
	e.want(201, "", "POST", "/workspaces", `{"name":"j","template":"java"}`, as(e.eve))
}
