package httpapi

import (
	"strings"
	"testing"

	"codehub/api"
	"codehub/internal/workspace"
)

// No answer has a value, and the running workspaces that wait for a change are named.
func TestSecrets(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	ws := e.workspace(e.ann, "shop")
	made := read[api.Secret](t, e.want(201, "", "POST", "/secrets", `{"name":"npm","value":"hunter2","env":"NPM_TOKEN","file":"~/.npmrc"}`, as(e.ann)))
	list := e.want(200, "", "GET", "/secrets", "", as(e.ann))
	if l := read[api.SecretList](t, list); len(l.Secrets) != 1 || l.Secrets[0].ID != made.ID || len(l.Waiting) != 0 {
		t.Errorf("%+v", l)
	}
	if l := read[api.SecretList](t, e.want(200, "", "GET", "/secrets", "", as(e.eve))); l.Secrets == nil || len(l.Secrets) != 0 || l.Waiting == nil {
		t.Errorf("%+v", l)
	}
	e.Exec(`UPDATE workspaces SET conditions = jsonb_build_object('infra.container_ready', jsonb_build_object('status', 'True', 'reason', $2::text)) WHERE id = $1`, ws.ID, workspace.ReasonContainerReady)
	if l := read[api.SecretList](t, e.want(200, "", "GET", "/secrets", "", as(e.ann))); len(l.Waiting) != 1 || l.Waiting[0].Name != "shop" {
		t.Errorf("%+v", l.Waiting)
	}
	e.want(400, "invalid_request", "POST", "/secrets", `{"name":"x","value":"hunter2","env":"PATH"}`, as(e.ann))
	e.want(409, "name_taken", "POST", "/secrets", `{"name":"npm","value":"hunter2","env":"X"}`, as(e.ann))
	e.want(404, "not_found", "PATCH", "/secrets/"+made.ID, `{"value":"mine"}`, as(e.eve))
	changed := e.want(200, "", "PATCH", "/secrets/"+made.ID, `{"value":"hunter3","file":"","workspace_id":"`+string(ws.ID)+`"}`, as(e.ann))
	if s := read[api.Secret](t, changed); s.File != "" || s.WorkspaceName != "shop" {
		t.Errorf("%+v", s)
	}
	for _, a := range []answer{list, changed} {
		if strings.Contains(a.body, "hunter") {
			t.Errorf("an answer has the value: %s", a.body)
		}
	}
	e.want(204, "", "DELETE", "/secrets/"+made.ID, "", as(e.ann))
	if strings.Contains(e.log.String(), "hunter") {
		t.Error("the log has a value")
	}
}
