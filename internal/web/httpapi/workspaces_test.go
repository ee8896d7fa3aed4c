package httpapi

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"codehub/api"
)

func TestWorkspaces(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	me := as(e.ann)
	a := e.want(201, "", "POST", "/workspaces", `{"name":" cafe\u0301 ","description":"d","memo":"m","standby_ttl_seconds":0}`, me)
	w := read[api.Workspace](t, a)
	if w.Name != "café" || w.Description != "d" || w.Memo != "m" || *w.StandbyTTLSeconds != 0 || w.ArchiveTTLSeconds != nil ||
		w.DesiredState != "RUNNING" || w.Phase != "PENDING" || w.Operation != "NONE" || w.ImageRef != "codehub/workspace:latest" ||
		w.URL != e.HTTP.URL+"/w/"+w.ID+"/" || a.header.Get("Location") != Prefix+"/workspaces/"+w.ID {
		t.Errorf("%+v %s", w, a.header)
	}
	path := "/workspaces/" + w.ID
	e.want(409, "name_taken", "POST", "/workspaces", `{"name":"caf\u00e9"}`, me)
	if got := read[api.Workspace](t, e.want(200, "", "GET", path, "", me)); got.ID != w.ID {
		t.Errorf("%+v", got)
	}
	got := read[api.Workspace](t, e.want(200, "", "PATCH", path, `{"name":"b","standby_ttl_seconds":null,"desired_state":"STANDBY","keep_awake_until":"`+
		time.Now().Add(time.Hour).Format(time.RFC3339)+`"}`, me))
	if got.Name != "b" || got.StandbyTTLSeconds != nil || got.DesiredState != "STANDBY" || got.KeepAwakeUntil == nil || got.Description != "d" {
		t.Errorf("%+v", got)
	}
	e.want(200, "", "PATCH", path, `{"desired_state":"STANDBY"}`, me)

	// While an operation runs.
	e.Change(`UPDATE workspaces SET phase = 'STANDBY', operation = 'STARTING', op_id = gen_random_uuid(), desired_state = 'RUNNING'`)
	e.want(409, "operation_in_progress", "PATCH", path, `{"desired_state":"STANDBY"}`, me)
	e.want(409, "operation_in_progress", "DELETE", path, "", me)
	got = read[api.Workspace](t, e.want(202, "", "POST", path+"/stop", "", me))
	if got.NextDesiredState == nil || *got.NextDesiredState != "STANDBY" {
		t.Errorf("a stop meanwhile: %+v", got)
	}
	got = read[api.Workspace](t, e.want(202, "", "DELETE", path+"?queue=true", "", me))
	if got.DeletedAt != nil || *got.NextDesiredState != "DELETED" {
		t.Errorf("a deletion meanwhile: %+v", got)
	}
	got = read[api.Workspace](t, e.want(202, "", "POST", path+"/cancel", "", me))
	if got.DesiredState != "STANDBY" || *got.NextDesiredState != "DELETED" {
		t.Errorf("cancelled, with a deletion that stays queued: %+v", got)
	}
	e.want(202, "", "POST", path+"/stop", "", me)
	e.want(202, "", "POST", path+"/stop?force=true", "", me)

	// In ERROR.
	e.Change(`UPDATE workspaces SET phase = 'ERROR', operation = 'NONE', op_id = NULL, error_reason = 'Timeout', force_stop_requested_at = NULL`)
	e.want(409, "recovery_required", "PATCH", path, `{"desired_state":"RUNNING"}`, me)
	e.want(409, "not_cancellable", "POST", path+"/cancel", "", me)
	e.want(202, "", "POST", path+"/stop", "", me)
	e.Change(`UPDATE workspaces SET force_stop_requested_at = NULL WHERE force_stop_requested_at IS NOT NULL`)
	e.want(409, "not_lost", "POST", path+"/recover", `{"action":"empty","confirm":"b"}`, me)
	e.want(409, "not_lost", "POST", path+"/recover", `{"action":"empty"}`, me)
	e.want(409, "not_supported", "POST", path+"/recover", `{"action":"set_aside"}`, me)
	e.Change(`UPDATE workspaces SET conditions = '{"storage.volume_ready":{"status":"False","reason":"ForeignVolume"}}'`)
	e.want(202, "", "POST", path+"/recover", `{"action":"set_aside"}`, me)
	e.Change(`UPDATE workspaces SET recover_requested_at = NULL, recover_action = NULL, conditions = '{}' WHERE recover_action = 'set_aside'`)
	e.want(202, "", "POST", path+"/recover", "", me)
	e.Change(`UPDATE workspaces SET recover_requested_at = NULL, recover_action = NULL, error_reason = 'DataLost' WHERE recover_action = 'afresh'`)
	if a := e.want(409, "confirmation_required", "POST", path+"/recover", `{"action":"empty"}`, me); read[api.Error](t, a).Details["confirm"] != "b" {
		t.Error(a.body)
	}
	e.want(409, "confirmation_required", "POST", path+"/recover", `{"action":"empty","confirm":"B"}`, me)
	e.want(202, "", "POST", path+"/recover", `{"action":"empty","confirm":"b"}`, me)
	e.Change(`UPDATE workspaces SET phase = 'STANDBY', recover_requested_at = NULL, recover_action = NULL, error_reason = NULL,
		conditions = '{"storage.volume_ready":{"status":"True","reason":"Ready"}}', home_ctx = '{"state":"live"}' WHERE recover_action = 'empty'`)
	e.want(409, "not_in_error", "POST", path+"/recover", "", me)
	e.want(409, "not_in_error", "POST", path+"/recover", `{"action":"empty","confirm":"b"}`, me)

	// Deleted and back.
	e.want(409, "not_deleted", "POST", path+"/undelete", "", me)
	got = read[api.Workspace](t, e.want(202, "", "DELETE", path, "", me))
	if got.DeletedAt == nil || got.PurgedAt == nil || got.PurgedAt.Sub(*got.DeletedAt) != time.Hour {
		t.Errorf("deleted: %+v", got)
	}
	e.want(202, "", "DELETE", path, "", me)
	e.want(200, "", "GET", path, "", me)
	e.want(404, "not_found", "PATCH", path, `{"memo":"x"}`, me)
	if l := read[api.WorkspaceList](t, e.want(200, "", "GET", "/workspaces?deleted=true", "", me)); len(l.Workspaces) != 1 {
		t.Errorf("deleted ones: %+v", l)
	}
	e.want(201, "", "POST", "/workspaces", `{"name":"b","desired_state":"STANDBY"}`, me)
	e.want(409, "name_taken", "POST", path+"/undelete", "", me)
	e.Change(`UPDATE workspaces SET name = 'c' WHERE deleted_at IS NULL`)
	got = read[api.Workspace](t, e.want(200, "", "POST", path+"/undelete", "", me))
	if got.DeletedAt != nil || got.DesiredState != "STANDBY" {
		t.Errorf("undeleted: %+v", got)
	}
	e.want(202, "", "DELETE", path, "", me)
	e.Change(`UPDATE workspaces SET home_ctx = '{"state":"deleting"}' WHERE deleted_at IS NOT NULL`)
	e.want(410, "gone", "POST", path+"/undelete", "", me)
	e.Change(`UPDATE workspaces SET phase = 'DELETED' WHERE deleted_at IS NOT NULL`)
	e.want(404, "not_found", "GET", path, "", me)
	e.want(404, "not_found", "DELETE", path, "", me)
}

func TestPages(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	var want []string
	for i := range 5 {
		want = append([]string{e.workspace(e.ann, fmt.Sprint("w", i)).Name}, want...)
	}
	var got []string
	cursor := ""
	for range 10 {
		l := read[api.WorkspaceList](t, e.want(200, "", "GET", "/workspaces?limit=2&cursor="+cursor, "", as(e.ann)))
		for _, w := range l.Workspaces {
			got = append(got, w.Name)
		}
		if cursor = l.NextCursor; cursor == "" {
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if l := read[api.WorkspaceList](t, e.want(200, "", "GET", "/workspaces?q=W3&phase=PENDING", "", as(e.ann))); len(l.Workspaces) != 1 || l.Workspaces[0].Name != "w3" {
		t.Errorf("found %+v", l)
	}
}

func TestLimit(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.Change(`UPDATE users SET max_running = 1`)
	first := read[api.Workspace](t, e.want(201, "", "POST", "/workspaces", `{"name":"a"}`, as(e.ann)))
	a := e.want(429, "workspace_limit_exceeded", "POST", "/workspaces", `{"name":"b"}`, as(e.ann))
	if after := a.header.Values("Retry-After"); len(after) > 0 {
		t.Errorf("Retry-After: %s, although only a stop makes the request succeed", after)
	}
	d := read[api.Error](t, a).Details
	if fmt.Sprintf("%v %v %v %v", d["limit_type"], d["current"], d["max"], d["running_workspaces"]) != fmt.Sprintf("per_user 1 1 [map[id:%s name:a]]", first.ID) {
		t.Errorf("%v", d)
	}
	if l := read[api.WorkspaceList](t, e.want(200, "", "GET", "/workspaces", "", as(e.ann))); len(l.Workspaces) != 1 {
		t.Errorf("%d workspaces", len(l.Workspaces))
	}
	b := read[api.Workspace](t, e.want(201, "", "POST", "/workspaces", `{"name":"b","desired_state":"STANDBY"}`, as(e.ann)))

	// A start that may be queued waits for the limit.
	c := read[api.Workspace](t, e.want(201, "", "POST", "/workspaces", `{"name":"c","queue_at_limit":true}`, as(e.ann)))
	e.Change(`UPDATE workspaces SET phase = 'STANDBY' WHERE name = 'b'`)
	e.want(429, "workspace_limit_exceeded", "PATCH", "/workspaces/"+b.ID, `{"desired_state":"RUNNING","queue":true}`, as(e.ann))
	b = read[api.Workspace](t, e.want(200, "", "PATCH", "/workspaces/"+b.ID, `{"desired_state":"RUNNING","queue_at_limit":true}`, as(e.ann)))
	for _, w := range []api.Workspace{b, c} {
		if w.DesiredState != "STANDBY" || w.NextDesiredState == nil || *w.NextDesiredState != "RUNNING" {
			t.Errorf("%s: desired %s, then %v", w.Name, w.DesiredState, w.NextDesiredState)
		}
	}
	e.Change(`UPDATE users SET max_running = 5`)
	if d := read[api.Workspace](t, e.want(201, "", "POST", "/workspaces", `{"name":"d","queue_at_limit":true}`, as(e.ann))); d.DesiredState != "RUNNING" || d.NextDesiredState != nil {
		t.Errorf("below the limit: desired %s, then %v", d.DesiredState, d.NextDesiredState)
	}
}

func TestPatchImage(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	path := "/workspaces/" + string(e.workspace(e.ann, "a").ID)
	e.Change(`UPDATE workspaces SET phase = 'RUNNING', image_ref = 'old:1', running_image_ref = 'old:1'`)
	for _, bad := range []string{"", "team/X", "-v", "https://example.com/x", "x:", "a b"} {
		body, err := json.Marshal(map[string]string{"image_ref": bad})
		if err != nil {
			t.Fatal(err)
		}
		e.want(400, "invalid_request", "PATCH", path, string(body), as(e.ann))
	}
	e.want(403, "forbidden", "PATCH", path, `{"image_ref":"new:1"}`, as(e.eve))
	w := read[api.Workspace](t, e.want(200, "", "PATCH", path, `{"image_ref":"new:1"}`, as(e.ann)))
	if w.ImageRef != "new:1" || *w.RunningImageRef != "old:1" || *w.PreviousImageRef != "old:1" {
		t.Errorf("%+v", w)
	}
}
