package dashboard

import (
	"net/http"
	"net/url"
	"testing"
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
}
