package proxy

import (
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"codehub/internal/bus/activity"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// invite gives bob access to workspace A, as the database and its event do; empty: none.
func (h *hostWorld) invite(access workspace.Access) {
	h.store.mu.Lock()
	h.store.guests = map[workspace.ID]workspace.Guests{}
	if access != "" {
		h.store.guests[wsA] = workspace.Guests{bob: access}
	}
	h.store.mu.Unlock()
	h.proxy.Invalidate(wsA)
}

// A guest who may use a workspace enters it with a session of its host alone, opens its ports,
// and counts as activity; one who may view it does not get in. The session cookie stays with
// codehub, and opens no other workspace, also not another one of the same owner.
func TestGuestEnters(t *testing.T) {
	t.Parallel()
	used := activity.New()
	h := newHostWorld(t, func(c *Config) { c.Activity = used })
	ide := h.serve(wsA)
	h.store.put(running(wsB, ann))
	h.serve(wsB)
	bobs := hostCookie + "=bob-1" + at(workspace.Host{ID: wsA})
	get := func(address string, header ...string) int {
		return h.send("GET", address, append([]string{"Cookie", bobs}, header...)...).StatusCode
	}
	enter := func() int {
		return h.send("GET", h.main+under(wsA)+"/", append([]string{"Cookie", sessionCookie + "=bob-1"}, navigation...)...).StatusCode
	}
	for _, access := range []workspace.Access{"", workspace.AccessView} {
		h.invite(access)
		if page, sub, main := get(h.at(wsA)+"/"), get(h.at(wsA)+"/x.js"), enter(); page != 403 || sub != 403 || main != 403 {
			t.Errorf("with %q: %d, %d, %d", access, page, sub, main)
		}
	}
	h.invite(workspace.AccessUse)
	if page, main := get(h.at(wsA)+"/", navigation...), enter(); page != http.StatusOK || main != http.StatusSeeOther {
		t.Errorf("with use: %d, %d", page, main)
	}
	if _, ok := used.Last(wsA); !ok {
		t.Error("a guest's visit is no activity")
	}
	if got := strings.Join(ide.received().Header.Values("Cookie"), "; "); strings.Contains(got, "bob-1") {
		t.Errorf("the workspace was sent %q", got)
	}
	if s := get(h.at(wsB) + "/"); s != http.StatusUnauthorized {
		t.Errorf("the session of workspace A on workspace B: %d", s)
	}
	other := h.send("GET", h.at(wsB)+"/", "Cookie", hostCookie+"=bob-1"+at(workspace.Host{ID: wsB})).StatusCode
	if other != http.StatusForbidden {
		t.Errorf("another workspace of the same owner: %d", other)
	}
	// A page of the shared workspace, in the guest's browser, acts on no other origin as the guest.
	for _, address := range []string{h.main + under(wsA) + "/", h.at(wsB) + "/"} {
		if res := h.send("GET", address, "Cookie", sessionCookie+"=bob-1", "Origin", h.at(wsA), "Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "cors"); res.StatusCode < 400 {
			t.Errorf("a page of the workspace reads %s: %d", address, res.StatusCode)
		}
	}
}

// The end of a share cuts a guest's WebSockets, and not the owner's.
func TestGuestIsCut(t *testing.T) {
	t.Parallel()
	h := newHostWorld(t)
	h.serve(wsA)
	h.invite(workspace.AccessUse)
	dial := func(user string) *websocket.Conn {
		t.Helper()
		c, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(h.at(wsA), "http")+"/echo", &websocket.DialOptions{
			HTTPClient: h.client, HTTPHeader: http.Header{"Cookie": {hostCookie + "=" + user + at(workspace.Host{ID: wsA})}, "Origin": {h.at(wsA)}},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.CloseNow() })
		return c
	}
	guest, owner := dial("bob-1"), dial("ann-1")
	for _, access := range []workspace.Access{workspace.AccessUse, workspace.AccessView} {
		h.invite(access)
	}
	closed(t, guest)
	if err := owner.Write(t.Context(), websocket.MessageText, []byte("x")); err != nil {
		t.Errorf("the owner's WebSocket: %v", err)
	}
	harness.Eventually(t, "only the owner is connected", func() bool { return h.proxy.OpenConnections() == 1 })
}

// A guest starts a stopped workspace by opening its page, and is led to a page of the dashboard;
// what else opening means for an owner is not for a guest.
func TestGuestWakes(t *testing.T) {
	t.Parallel()
	h := newHostWorld(t)
	h.invite(workspace.AccessUse)
	set := func(phase workspace.Phase, desired workspace.DesiredState) {
		ws := running(wsA, ann)
		ws.Phase, ws.DesiredState = phase, desired
		h.store.put(ws)
		h.proxy.Invalidate(wsA)
	}
	open := func(header ...string) (int, string) {
		res := h.send("GET", h.main+under(wsA)+"/", append([]string{"Cookie", sessionCookie + "=bob-1"}, header...)...)
		return res.StatusCode, strings.TrimPrefix(res.Header.Get("Location"), h.main)
	}
	set(workspace.PhaseArchived, workspace.DesiredArchived)
	if s, to := open(navigation...); s != http.StatusSeeOther || to != "/shared/"+string(wsA)+"?stopped=1" {
		t.Errorf("archived: %d %q", s, to)
	}
	set(workspace.PhaseStandby, workspace.DesiredStandby)
	if res := h.send("GET", h.at(wsA)+"/x.js", "Cookie", hostCookie+"=bob-1"+at(workspace.Host{ID: wsA})); res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a script of a stopped workspace: %d", res.StatusCode)
	}
	h.store.mu.Lock()
	h.store.limit = workspace.Errorf(workspace.CodeLimitExceeded, "Full.")
	h.store.mu.Unlock()
	if s, to := open(navigation...); s != http.StatusSeeOther || to != "/shared/"+string(wsA)+"?stopped=1" {
		t.Errorf("at the owner's limit: %d %q", s, to)
	}
	h.store.mu.Lock()
	h.store.limit = nil
	h.store.mu.Unlock()
	if s, to := open(navigation...); s != http.StatusSeeOther || to != "/shared/"+string(wsA)+"?enter=1" || h.store.row(wsA).DesiredState != workspace.DesiredRunning {
		t.Errorf("stopped: %d %q", s, to)
	}
}
