package server

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

// The page of an IDE reports unsaved files to one server, and the dashboard of another one asks
// before it stops the workspace.
func TestUnsavedFilesReachEveryServer(t *testing.T) {
	t.Parallel()
	database := fixture.NewDatabase(t, postgres.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	servers := twoServers(t, database, func(int) string { return "CODEHUB_WORKSPACE_URL=path" })
	for _, s := range servers {
		try(t, s.Start(ctx)) // the first one creates the user
	}
	ann := workspace.Caller{UserID: fixture.Query[string](database, `SELECT id::text FROM users WHERE username = $1`, auth.AdminUsername)}
	id := database.AddWorkspace(ann, "demo").ID
	runs := func() {
		t.Helper()
		database.Change(`UPDATE workspaces SET phase = 'RUNNING', operation = 'NONE', op_id = NULL, desired_state = 'RUNNING' WHERE id = $1`, id)
	}
	runs()

	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	var session *http.Cookie
	post := func(s *proc.Server, path, kind, body string) (*http.Response, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+path, strings.NewReader(body))
		try(t, err)
		req.Header.Set("Content-Type", kind)
		req.Header.Set("Origin", s.URL)
		if session != nil {
			req.AddCookie(session)
		}
		resp, err := client.Do(req)
		try(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		try(t, err)
		return resp, string(text)
	}
	login, said := post(servers[0], "/api/v1/login", "application/json", fmt.Sprintf(`{"username": %q, "password": %q}`, auth.AdminUsername, proc.AdminPassword))
	if len(login.Cookies()) != 1 {
		t.Fatalf("log in: %d %s", login.StatusCode, said)
	}
	session = login.Cookies()[0]

	// stop returns the question of a server after a report to another one; empty: it stopped
	// the workspace.
	stop := func(by, reported *proc.Server, files int) string {
		t.Helper()
		if resp, said := post(reported, "/w/"+string(id)+"/_codehub/state", "application/json", fmt.Sprintf(`{"page": "p", "unsaved": %d}`, files)); resp.StatusCode != http.StatusOK {
			t.Fatalf("report: %d %s", resp.StatusCode, said)
		}
		resp, said := post(by, "/workspaces/"+string(id)+"/stop", "application/x-www-form-urlencoded", "")
		switch resp.StatusCode {
		case http.StatusConflict:
			return said
		case http.StatusSeeOther:
			runs()
		default:
			t.Fatalf("stop: %d %s", resp.StatusCode, said)
		}
		return ""
	}
	one, two := servers[0], servers[1]
	harness.Eventually(t, "the second server asks", func() bool { return strings.Contains(stop(two, one, 2), "2 files in open editors are not saved") })
	harness.Eventually(t, "the first server asks", func() bool { return strings.Contains(stop(one, two, 3), "3 files in open editors are not saved") })
	harness.Eventually(t, "no question about saved files", func() bool { return stop(two, one, 0) == "" })
}
