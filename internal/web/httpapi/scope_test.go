package httpapi

import (
	"errors"
	"testing"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

// A token for one workspace changes it, and sees no other one.
func TestTokenOfOneWorkspace(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	mine, other, eves := e.workspace(e.ann, "mine"), e.workspace(e.ann, "other"), e.workspace(e.eve, "eves")
	made := read[api.Token](t, e.want(201, "", "POST", "/tokens", `{"name":"x","scope":"workspaces","workspace_id":"`+string(mine.ID)+`"}`, as(e.ann)))
	if made.Scope != "workspaces" || made.WorkspaceID == nil || *made.WorkspaceID != string(mine.ID) {
		t.Errorf("%+v", made)
	}
	token := header(api.TokenHeader, made.Token)
	e.want(200, "", "PATCH", "/workspaces/"+string(mine.ID), `{"memo":"changed"}`, token)
	e.want(403, "forbidden", "PATCH", "/workspaces/"+string(other.ID), `{"memo":"changed"}`, token)
	e.want(403, "forbidden", "POST", "/workspaces", `{"name":"made"}`, token)
	e.want(403, "forbidden", "POST", "/tokens", `{"name":"made"}`, token)
	list := read[api.WorkspaceList](t, e.want(200, "", "GET", "/workspaces", "", token))
	if len(list.Workspaces) != 1 || list.Workspaces[0].ID != string(mine.ID) {
		t.Errorf("the list has %d workspaces", len(list.Workspaces))
	}
	for _, id := range []workspace.ID{mine.ID, other.ID} {
		e.Exec(`INSERT INTO user_notices (id, user_id, kind, workspace_id, by_username) VALUES (gen_random_uuid(), $1, 'stop', $2, 'admin')`, e.ann.Caller.UserID, id)
	}
	if l := read[api.NoticeList](t, e.want(200, "", "GET", "/notices", "", token)); len(l.Notices) != 1 || l.Notices[0].WorkspaceID != string(mine.ID) {
		t.Errorf("%+v", l)
	}
	if tokens := read[api.TokenList](t, e.want(200, "", "GET", "/tokens", "", as(e.ann))); len(tokens.Tokens) != 1 || tokens.Tokens[0].Scope != "workspaces" {
		t.Errorf("%+v", tokens)
	}
	for body, code := range map[string]string{
		`{"name":"x","scope":"write"}`: "invalid_request", `{"name":"x","workspace_id":"` + string(mine.ID) + `"}`: "invalid_request",
		`{"name":"x","scope":"read","workspace_id":"` + string(eves.ID) + `"}`: "not_found", `{"name":"x","scope":"read","workspace_id":"x"}`: "not_found",
	} {
		if a := e.do("POST", Prefix+"/tokens", body, as(e.ann)); a.code() != code {
			t.Errorf("%s: %d %s", body, a.status, a.body)
		}
	}
	// The store checks again.
	caller := e.ann.Caller
	caller.Only = mine.ID
	if _, err := e.DB.Workspace(t.Context(), caller, other.ID); workspace.CodeOf(err) != workspace.CodeForbidden {
		t.Errorf("the store read another workspace: %v", err)
	}
	e.Exec(`UPDATE users SET max_running = 1 WHERE id = $1`, caller.UserID)
	e.Exec(`UPDATE workspaces SET desired_state = 'RUNNING' WHERE id = $1`, other.ID)
	var refused *workspace.Error
	if err := e.DB.MayRun(t.Context(), caller, mine.ID); !errors.As(err, &refused) || refused.Details["running_workspaces"] != nil || refused.Details["max"] != 1 {
		t.Errorf("%v", err)
	}
	if list, err := e.DB.RecentlyDeleted(t.Context(), caller); err != nil || len(list) > 0 {
		t.Errorf("%v, %v", list, err)
	}
	if _, _, err := e.DB.ListWorkspaces(t.Context(), caller, postgres.Filter{}); err != nil {
		t.Error(err)
	}
}

// The values of environment variables may be secrets, which a token that only reads does not see.
func TestReadScopeSeesNoVariables(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	ws := e.workspace(e.ann, "mine")
	path := "/workspaces/" + string(ws.ID)
	e.want(200, "", "PATCH", path, `{"env":{"TOKEN":"s3cret"}}`, as(e.ann))
	for scope, sees := range map[workspace.Scope]bool{workspace.ScopeRead: false, workspace.ScopeWorkspaces: true, workspace.ScopeAdmin: true} {
		_, secret, err := e.Auth.CreateToken(t.Context(), auth.Identity{Caller: e.ann.Caller}, string(scope), nil, auth.TokenLimits{Scope: scope})
		if err != nil {
			t.Fatal(err)
		}
		w := read[api.Workspace](t, e.want(200, "", "GET", path, "", header("Authorization", "Bearer "+secret)))
		if (w.Env["TOKEN"] == "s3cret") != sees {
			t.Errorf("%s: variables %v", scope, w.Env)
		}
	}
}
