package workspace

import (
	"slices"
	"strings"
	"testing"
)

// Every scope against every need, with and without a limit to one workspace.
func TestScopes(t *testing.T) {
	t.Parallel()
	const mine, other = ID("0198c0de-0000-7000-8000-00000000000a"), ID("0198c0de-0000-7000-8000-00000000000b")
	allowed := map[Scope]string{"": "read workspaces admin", ScopeAdmin: "read workspaces admin", ScopeWorkspaces: "read workspaces", ScopeRead: "read"}
	for scope, needs := range allowed {
		for _, need := range []Scope{ScopeRead, ScopeWorkspaces, ScopeAdmin} {
			want := slices.Contains(strings.Fields(needs), string(need))
			for _, id := range []ID{"", mine} {
				if got := (Caller{UserID: "u", Scope: scope}).Permits(need, id) == nil; got != want {
					t.Errorf("scope %q, need %q, workspace %q: %v", scope, need, id, got)
				}
			}
			limited := Caller{UserID: "u", Scope: scope, Only: mine}
			if got := limited.Permits(need, mine) == nil; got != want {
				t.Errorf("limited scope %q, need %q: %v", scope, need, got)
			}
			if limited.Permits(need, other) == nil {
				t.Errorf("limited scope %q, need %q: another workspace is permitted", scope, need)
			}
			if got := limited.Permits(need, "") == nil; got != (need == ScopeRead) {
				t.Errorf("limited scope %q, need %q, no workspace: %v", scope, need, got)
			}
		}
	}
	c := Caller{UserID: "u", Only: mine}
	if !c.Uses("u", mine) || c.Uses("u", other) || c.Uses("v", mine) || !(Caller{UserID: "u"}).Uses("u", other) || !System.Uses("u", mine) {
		t.Error("Uses is wrong")
	}
	for _, s := range []string{"", "Admin", "write"} {
		if _, ok := ParseScope(s); ok {
			t.Errorf("%q is a scope", s)
		}
	}
}
