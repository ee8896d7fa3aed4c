package dashboard

import (
	"net/http"
	"net/url"
	"testing"

	"codehub/internal/workspace"
)

// A user whose homes and archives are as large as they may be reads the figures.
func TestLimitOfBytesIsExplained(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", standby)
	w.Exec(`UPDATE users SET max_bytes = 2000000000`)
	w.Exec(`UPDATE workspaces SET home_bytes = 3500000000`)
	const text = "Your workspaces use 3.5 GB of at most 2.0 GB."
	contains(t, "the dialog", b.get("/workspaces/new", "HX-Request", "true").body, text)
	contains(t, "a start", b.htmx("/workspaces/"+string(id)+"/start", url.Values{}).body, text)
	a := b.htmx("/workspaces", url.Values{"name": {"more"}, "start": {"on"}})
	contains(t, "a new workspace", a.body, text)
	if a.status != http.StatusUnprocessableEntity {
		t.Errorf("a new workspace: %d", a.status)
	}

	// The pages of a stopped workspace say so too, to which the proxy sends a user who opens it
	// and where a queued start waits.
	page := "/workspaces/" + string(id)
	contains(t, "a stopped workspace", b.get(page).body, text)
	w.observe(id, func(r *workspace.Workspace) {
		r.Operation, r.OpID, r.OpStartedAt = workspace.OpStopping, "0198c0de-0000-7000-8000-000000000001", &r.CreatedAt
	})
	if _, err := w.DB.Wake(t.Context(), w.caller("admin"), id); err != nil {
		t.Fatal(err)
	}
	lacks(t, "a workspace that stops", b.get(page).body, text)
	w.observe(id, standby)
	if applied, err := w.DB.ApplyQueued(t.Context(), id); applied || err != nil {
		t.Fatalf("the queued start: %v, %v", applied, err)
	}
	contains(t, "a queued start", b.get(page).body, "starts when the limits allow", text)
	contains(t, "the page that waits for it", b.get(page+"/wait").body, text)
	w.Exec(`UPDATE users SET max_bytes = 0`)
	lacks(t, "without a limit", b.get(page).body, "of at most")
}
