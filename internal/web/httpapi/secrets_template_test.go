package httpapi

import (
	"testing"

	"codehub/api"
)

// A secret is for one workspace or for the workspaces of one template; the one ends the other.
func TestSecretOfTemplate(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	shop := e.workspace(e.ann, "shop")
	s := read[api.Secret](t, e.want(201, "", "POST", "/secrets", `{"name":"npm","value":"hunter2","env":"NPM_TOKEN","template":"api"}`, as(e.ann)))
	if s.Template == nil || *s.Template != "api" || s.WorkspaceID != nil {
		t.Errorf("%+v", s)
	}
	e.want(400, "invalid_request", "POST", "/secrets", `{"name":"x","value":"x","env":"X","template":"api","workspace_id":"`+string(shop.ID)+`"}`, as(e.ann))
	e.want(201, "", "POST", "/secrets", `{"name":"all","value":"x","env":"NPM_TOKEN"}`, as(e.ann))
	e.want(409, "name_taken", "POST", "/secrets", `{"name":"again","value":"x","env":"NPM_TOKEN","template":"api"}`, as(e.ann))
	at := "/secrets/" + s.ID
	if s := read[api.Secret](t, e.want(200, "", "PATCH", at, `{"workspace_id":"`+string(shop.ID)+`"}`, as(e.ann))); s.Template != nil || *s.WorkspaceID != string(shop.ID) {
		t.Errorf("%+v", s)
	}
	if s := read[api.Secret](t, e.want(200, "", "PATCH", at, `{"template":"web"}`, as(e.ann))); s.WorkspaceID != nil || *s.Template != "web" {
		t.Errorf("%+v", s)
	}
	e.want(409, "name_taken", "PATCH", at, `{"template":null}`, as(e.ann)) // the other one is for all
	e.want(200, "", "PATCH", at, `{"template":null,"env":"OTHER","value":"x"}`, as(e.ann))
}
