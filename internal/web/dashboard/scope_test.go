package dashboard

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"codehub/api"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

// A limited token opens no page of the dashboard, and enters only the workspaces that it is
// for.
func TestLimitedTokens(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ide := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(rw, "the IDE") }))
	t.Cleanup(ide.Close)
	w.logs.addr = strings.TrimPrefix(ide.URL, "http://")
	mine, other := w.add("mine", running), w.add("other", running)
	for _, id := range []workspace.ID{mine, other} {
		w.want(id, "desired_state", "RUNNING")
	}
	b := w.browser()
	for name, c := range map[string]struct {
		limits      auth.TokenLimits
		page        int // status of a page of the dashboard
		mine, other int // statuses at the proxy
	}{
		"everything":         {auth.TokenLimits{}, 200, 200, 200},
		"read":               {auth.TokenLimits{Scope: workspace.ScopeRead}, 403, 403, 403},
		"workspaces":         {auth.TokenLimits{Scope: workspace.ScopeWorkspaces}, 403, 200, 200},
		"read of mine":       {auth.TokenLimits{Scope: workspace.ScopeRead, Workspace: mine}, 403, 403, 403},
		"workspaces of mine": {auth.TokenLimits{Scope: workspace.ScopeWorkspaces, Workspace: mine}, 403, 200, 403},
	} {
		_, secret, err := w.Auth.CreateToken(t.Context(), auth.Identity{Caller: w.caller("admin")}, name, nil, c.limits)
		if err != nil {
			t.Fatal(err)
		}
		got := func(path string) int { return b.get(path, api.TokenHeader, secret).status }
		if page, m, o := got("/settings/account"), got("/w/"+string(mine)+"/"), got("/w/"+string(other)+"/"); page != c.page || m != c.mine || o != c.other {
			t.Errorf("%s: a page %d, its workspace %d, another one %d", name, page, m, o)
		}
	}
}
