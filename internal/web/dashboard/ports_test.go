package dashboard

import (
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"codehub/internal/running/ports"
	"codehub/internal/workspace"
)

// newPortsWorld is a world in which ports can be shared as far as most.
func newPortsWorld(t *testing.T, most workspace.Visibility) *world {
	t.Helper()
	w := newOriginWorld(t)
	w.dash.Ports = ports.New(ports.Config{Store: w.DB, Runtime: w.logs, Layout: w.layout, Settings: ports.Settings{PortVisibilityMax: string(most), PortShareMax: 7 * 24 * time.Hour}})
	return w
}

func TestSharePort(t *testing.T) {
	t.Parallel()
	w := newPortsWorld(t, workspace.VisiblePublic)
	id := w.add("shared", standby)
	b := w.loggedIn()
	page := "/workspaces/" + string(id)
	share := func(port, with, seconds string) answer {
		t.Helper()
		return b.post(page+"/share-port", url.Values{"from": {"detail"}, "port": {port}, "with": {with}, "for": {seconds}})
	}
	for _, c := range []struct{ port, with, seconds, want string }{
		{"3000", "public", "0", `id="e-for"`},
		{"3000", "public", "604801", `id="e-for"`},
		{"3000", "public", "x", `id="e-for"`},
		{"8080", "users", "0", `id="e-port"`},
		{"0", "users", "0", `id="e-port"`},
	} {
		if res := share(c.port, c.with, c.seconds); !strings.Contains(res.body, c.want) {
			t.Errorf("%s with %s for %s s: %d, without %s", c.port, c.with, c.seconds, res.status, c.want)
		}
	}
	for _, c := range []struct{ with, seconds, want string }{
		{"users", "0", "All users"},
		{"public", "3600", "Shared until"},
	} {
		if res := share("3000", c.with, c.seconds); res.status != 303 {
			t.Errorf("with %s: %d", c.with, res.status)
		}
		if body := b.get(page).body; !strings.Contains(body, c.want) || !strings.Contains(body, `id="unshare-3000"`) {
			t.Errorf("with %s: the page has no %q", c.with, c.want)
		}
	}
	if res := w.person("eve").post(page+"/unshare-port", url.Values{"port": {"3000"}}); res.status == 303 || !strings.Contains(b.get(page).body, "unshare-3000") {
		t.Errorf("another user ends the share: %d", res.status)
	}
	for range 2 { // another tab may be faster
		if res := b.post(page+"/unshare-port", url.Values{"from": {"detail"}, "port": {"3000"}}); res.status != 303 {
			t.Errorf("unshare: %d", res.status)
		}
	}
	if strings.Contains(b.get(page).body, "unshare-3000") {
		t.Error("the page has the share after its end")
	}
}

// A workspace's page is refreshed when a share ends, of which there is no event.
func TestPageIsRefreshedWhenShareEnds(t *testing.T) {
	t.Parallel()
	w := newPortsWorld(t, workspace.VisiblePublic)
	id, caller := w.add("shared", standby), w.caller("admin")
	if _, err := w.dash.Ports.Share(t.Context(), caller, id, 3000, workspace.VisibleUsers, 0); err != nil {
		t.Fatal(err)
	}
	l := w.dash.newLive(httptest.NewRequest("GET", "/dashboard/events?workspace="+string(id), nil), caller, func() {})
	refresh := func() time.Time {
		t.Helper()
		_, s, err := l.next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s.due
	}
	if due := refresh(); !due.IsZero() {
		t.Errorf("a share without an end: due at %s", due)
	}
	for port, lasting := range map[int]time.Duration{3001: 2 * time.Hour, 3002: time.Hour} {
		if _, err := w.dash.Ports.Share(t.Context(), caller, id, port, workspace.VisiblePublic, lasting); err != nil {
			t.Fatal(err)
		}
	}
	shares, err := w.dash.Ports.Shares(t.Context(), caller, id)
	if err != nil {
		t.Fatal(err)
	}
	if due := refresh(); len(shares) != 3 || !due.Equal(*shares[2].ExpiresAt) {
		t.Errorf("due at %s with %+v", due, shares)
	}
	// A clock that is ahead of the database's does not make the page ask at once, again and again.
	now := time.Now().Add(3 * time.Hour)
	w.dash.Now = func() time.Time { return now }
	if due := refresh(); due.Before(now.Add(time.Second)) {
		t.Errorf("due %s after the refresh", due.Sub(now))
	}
}

// The page of a workspace has the labels of its project's ports, and a button for one that its owner
// opens.
func TestPortsOfProject(t *testing.T) {
	t.Parallel()
	w := newPortsWorld(t, workspace.VisibleOwner)
	id := w.add("labels", standby)
	w.Exec(`UPDATE workspaces SET project = '{"ports": [{"port": 3000, "label": "Web <site>", "open": true}, {"port": 5432, "label": "Database"}]}' WHERE id = $1`, id)
	page := w.loggedIn().get("/workspaces/" + string(id)).body
	contains(t, "the page", page, `data-port="3000"`, "Web &lt;site&gt;", "Database", `id="connect-port-3000" href="`+w.dash.Ports.URL(id, 3000)+`"`)
	lacks(t, "the page", page, `id="connect-port-5432"`)
}
