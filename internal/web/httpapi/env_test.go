package httpapi

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"codehub/api"
)

// TestEnv: only responses about a single workspace have the values, and only for its owner.
func TestEnv(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	me := as(e.ann)
	w := read[api.Workspace](t, e.want(201, "", "POST", "/workspaces", `{"name":"a","desired_state":"STANDBY","env":{"TOKEN":"s3cret","A":"1"},"time_zone":"Asia/Seoul"}`, me))
	if d := cmp.Diff(map[string]string{"TOKEN": "s3cret", "A": "1"}, w.Env); d != "" || w.TimeZone == nil || *w.TimeZone != "Asia/Seoul" || w.EnvWaits {
		t.Errorf("%+v %s", w, d)
	}
	path := "/workspaces/" + w.ID
	for body, want := range map[string]map[string]string{
		`{"env":{"A":null,"B":"","C":"x y"}}`: {"TOKEN": "s3cret", "B": "", "C": "x y"},
		`{"env":{"C":"x\n\ny\n"}}`:            {"TOKEN": "s3cret", "B": "", "C": "x\n\ny\n"},
		`{"env":{}}`:                          {"TOKEN": "s3cret", "B": "", "C": "x y"},
		`{"name":"b"}`:                        {"TOKEN": "s3cret", "B": "", "C": "x y"},
	} {
		e.want(200, "", "PATCH", path, `{"env":{"A":null,"B":"","C":"x y"}}`, me)
		if d := cmp.Diff(want, read[api.Workspace](t, e.want(200, "", "PATCH", path, body, me)).Env); d != "" {
			t.Errorf("%s: %s", body, d)
		}
	}
	list := e.want(200, "", "GET", "/workspaces", "", me)
	if strings.Contains(string(list.body), "s3cret") || strings.Contains(string(list.body), `"env":`) {
		t.Errorf("the list has the values: %s", list.body)
	}
	if a := e.want(403, "forbidden", "GET", path, "", as(e.eve)); strings.Contains(string(a.body), "s3cret") {
		t.Errorf("%s", a.body)
	}
	for _, body := range []string{
		`{"env":{"PATH":"s3cret"}}`, `{"env":{"a-b":"s3cret"}}`, `{"env":{"A":"s3cret\u001b"}}`, `{"env":{"CODEHUB_X":"s3cret"}}`, `{"env":{"A":1}}`, `{"env":"s3cret"}`,
		`{"env":{"A":"` + strings.Repeat("x", 9000) + `"}}`, `{"time_zone":"Mars/Base"}`, `{"time_zone":"Local"}`,
	} {
		a := e.want(400, "invalid_request", "PATCH", path, body, me)
		if strings.Contains(string(a.body), "s3cret") {
			t.Errorf("%s: the answer repeats the value: %s", body, a.body)
		}
		e.want(400, "invalid_request", "POST", "/workspaces", strings.Replace(body, "{", `{"name":"c",`, 1), me)
	}
	if got := read[api.Workspace](t, e.want(200, "", "PATCH", path, `{"env":null}`, me)); got.Env == nil || len(got.Env) > 0 {
		t.Errorf("%v", got.Env)
	}
}
