package httpapi

import (
	"testing"

	"codehub/api"
	"codehub/internal/running/dotfiles"
	"codehub/internal/runtime/agent"
)

func TestDotfiles(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	ws := e.workspace(e.ann, "shop")
	service := &dotfiles.Service{Store: e.DB}
	delivered := func() []agent.Step {
		t.Helper()
		var s agent.Setup
		if err := service.Deliver(t.Context(), ws, &s); err != nil {
			t.Fatal(err)
		}
		return s.Steps
	}
	if d := read[api.Dotfiles](t, e.want(200, "", "GET", "/user/dotfiles", "", as(e.ann))); d.URL != "" || len(delivered()) != 0 {
		t.Errorf("%+v, %+v", d, delivered())
	}
	if _, err := service.Apply(t.Context(), ws.ID); err == nil {
		t.Error("applied none")
	}
	for _, bad := range []string{`{"url":"","branch":""}`, `{"url":"file:///etc","branch":""}`, `{"url":"https://u:p@git.example.com/x","branch":""}`, `{"url":"https://git.example.com/x","branch":"--x"}`, `{"url":"--upload-pack=x"}`} {
		e.want(400, "invalid_request", "PUT", "/user/dotfiles", bad, as(e.ann))
	}
	want := api.Dotfiles{URL: "https://git.example.com/ann/dotfiles", Branch: "next"}
	for range 2 {
		if d := read[api.Dotfiles](t, e.want(200, "", "PUT", "/user/dotfiles", `{"url":"https://git.example.com/ann/dotfiles","branch":"next"}`, as(e.ann))); d != want {
			t.Errorf("%+v", d)
		}
	}
	if d := read[api.Dotfiles](t, e.want(200, "", "GET", "/user/dotfiles", "", as(e.ann))); d != want {
		t.Errorf("%+v", d)
	}
	if d := read[api.Dotfiles](t, e.want(200, "", "GET", "/user/dotfiles", "", as(e.eve))); d.URL != "" {
		t.Errorf("%+v", d)
	}
	if s := delivered(); len(s) != 1 || s[0].Dotfiles.URL != want.URL || s[0].Dotfiles.Branch != "next" || s[0].Once == "" || s[0].Again {
		t.Errorf("%+v", s)
	}
	e.want(409, "not_running", "POST", "/workspaces/"+string(ws.ID)+"/dotfiles", "", as(e.ann))
	e.want(204, "", "DELETE", "/user/dotfiles", "", as(e.ann))
	e.want(204, "", "DELETE", "/user/dotfiles", "", as(e.ann))
	if len(delivered()) != 0 {
		t.Errorf("%+v", delivered())
	}
}
