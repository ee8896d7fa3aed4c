package httpapi

import (
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"codehub/api"
	"codehub/client"
	"codehub/internal/postgres"
	"codehub/internal/runtime/agent"
	"codehub/internal/testing/agenttest"
	"codehub/internal/workspace"
)

// A guest who waits for a workspace sees no notes, archives or settings of it.
func TestGuestSeesNoSettings(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, name := range []string{"ID", "Name", "Description", "ImageRef", "State", "Phase", "Operation", "Progress", "URL", "PhaseChangedAt", "CreatedAt", "UpdatedAt"} {
		seen[name] = true
	}
	full := api.Workspace{Conditions: map[string]api.Condition{"c": {}}}
	v := reflect.ValueOf(&full).Elem()
	for _, f := range reflect.VisibleFields(v.Type()) {
		switch at := v.FieldByIndex(f.Index); at.Interface().(type) {
		case string:
			at.SetString("x")
		case bool:
			at.SetBool(true)
		case int, int64:
			at.SetInt(1)
		case time.Time:
			at.Set(reflect.ValueOf(time.Now()))
		default:
			if at.Kind() == reflect.Pointer {
				at.Set(reflect.New(at.Type().Elem()))
			}
		}
	}
	v = reflect.ValueOf(forGuest(full))
	for _, f := range reflect.VisibleFields(v.Type()) {
		at := v.FieldByIndex(f.Index)
		if at.Kind() == reflect.Map && at.Len() == 0 {
			continue
		}
		if seen[f.Name] == at.IsZero() {
			t.Errorf("%s is %v", f.Name, at.Interface())
		}
	}
}

// A guest gets a notice of a shared workspace, sees it, and leaves it. An error
// of a command says to ask the owner, who alone can restart the workspace.
func TestGuestOfWorkspace(t *testing.T) {
	t.Parallel()
	e := newExecEnv(t)
	ws, _ := e.running(e.ann, "site")
	if _, err := e.DB.Share(t.Context(), e.ann.Caller, ws.ID, postgres.NewShare{User: "eve", Access: workspace.AccessUse}); err != nil {
		t.Fatal(err)
	}
	c := e.client(e.eve)
	told, err := c.Notices(t.Context())
	if err != nil || len(told) != 1 || told[0].Kind != "shared" || told[0].By != "ann" || told[0].WorkspaceID != string(ws.ID) {
		t.Errorf("notices %+v, %v", told, err)
	}
	shown, err := c.SharedWorkspace(t.Context(), string(ws.ID))
	if err != nil || shown.Owner != "ann" || shown.State != "running" || shown.Access != "use" {
		t.Errorf("%+v, %v", shown, err)
	}
	says := func(what, code, text string) {
		t.Helper()
		if _, _, _, err := e.run(c, ws.ID, api.Exec{Args: []string{"true"}}, ""); client.CodeOf(err) != code || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", what, err)
		}
	}
	e.agents.Replace(ws.ID, agenttest.Answers{agent.PathHello: agenttest.JSON(agent.Hello{})})
	says("another version", "no_agent", "Ask its owner to restart it.")
	e.Exec(`UPDATE workspaces SET phase = 'ARCHIVED', desired_state = 'ARCHIVED' WHERE id = $1`, ws.ID)
	says("archived", "not_running", "only its owner can start it")
	left, err := c.Leave(t.Context(), string(ws.ID))
	if err != nil || left.Groups == nil || len(left.Groups) != 0 {
		t.Errorf("leave: %+v, %v", left, err)
	}
	path := "/shared/" + string(ws.ID)
	e.want(http.StatusForbidden, "forbidden", "DELETE", path, "", as(e.eve))
	e.want(http.StatusForbidden, "forbidden", "GET", path, "", as(e.eve))
	e.want(http.StatusNotFound, "not_found", "DELETE", "/shared/x", "", as(e.eve))
}
