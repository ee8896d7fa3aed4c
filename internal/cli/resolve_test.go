package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"codehub/api"
	"codehub/client"
)

// answering is a client of a server that answers every request with v.
func answering(t *testing.T, v any) *client.Client {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(v) }))
	t.Cleanup(s.Close)
	c, err := client.New(s.URL, "token")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// The error about several workspaces of one name has what tells them apart.
func TestSeveralWorkspacesOfOneName(t *testing.T) {
	t.Parallel()
	first, second := time.Date(2026, 11, 1, 12, 0, 0, 0, time.Local), time.Date(2026, 11, 2, 12, 0, 0, 0, time.Local)
	c := answering(t, api.AdminWorkspaceList{Total: 2, Workspaces: []api.AdminWorkspace{
		{Owner: "ann", Workspace: api.Workspace{ID: "id-1", Name: "shop", DeletedAt: &first}},
		{Owner: "ann", Workspace: api.Workspace{ID: "id-2", Name: "shop", DeletedAt: &second}},
	}})
	_, err := resolveAny(t.Context(), c, "ann/shop", true)
	if err == nil {
		t.Fatal("one of them was chosen")
	}
	for _, want := range []string{"id-1 (ann/shop, deleted 2026-11-01 12:00:00", "id-2 (ann/shop, deleted 2026-11-02 12:00:00"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
}

// A user whose name is another one's id cannot be taken for it.
func TestFindUserPrefersID(t *testing.T) {
	t.Parallel()
	const id = "019a0000-0000-7000-8000-000000000001"
	c := answering(t, api.AccountList{Users: []api.Account{{ID: "another", Username: id}, {ID: id, Username: "ann"}}})
	for _, name := range []string{id, "ANN"} {
		if got, err := findUser(t.Context(), c, name); err != nil || got != id {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
