package postgres_test

import (
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

func TestPortShares(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ann, bob := e.user("ann"), e.user("bob")
	ws := must(e.CreateWorkspace(e.Context(), ann, newWorkspace("one", workspace.DesiredRunning)))(t)
	share := func(port int, with workspace.Visibility, lasting time.Duration) workspace.PortShare {
		t.Helper()
		return must(e.SharePort(e.Context(), ann, ws.ID, port, with, lasting))(t)
	}
	count := func() int {
		t.Helper()
		return len(must(e.OpenPorts(e.Context(), ws.ID))(t))
	}
	share(3000, workspace.VisibleUsers, 0)
	if s := share(3000, workspace.VisiblePublic, time.Hour); s.With != workspace.VisiblePublic || s.ExpiresAt == nil {
		t.Errorf("%+v", s)
	}
	share(4000, workspace.VisibleUsers, 0)
	list := must(e.PortShares(e.Context(), ann, ws.ID))(t)
	if len(list) != 2 || list[0].Port != 3000 || list[1].Port != 4000 || list[1].ExpiresAt != nil {
		t.Errorf("%+v", list)
	}
	for _, s := range must(e.OpenPorts(e.Context(), ws.ID))(t) {
		if s.Port == 3000 && (s.ExpiresAt == nil || time.Until(*s.ExpiresAt) < 59*time.Minute || time.Until(*s.ExpiresAt) > time.Hour) {
			t.Errorf("it ends at %v", s.ExpiresAt)
		}
	}
	if _, err := e.PortShares(e.Context(), bob, ws.ID); workspace.CodeOf(err) != workspace.CodeForbidden {
		t.Errorf("another user lists: %v", err)
	}
	if _, err := e.SharePort(e.Context(), bob, ws.ID, 5000, workspace.VisibleUsers, 0); workspace.CodeOf(err) != workspace.CodeForbidden {
		t.Errorf("another user shares: %v", err)
	}
	if err := e.UnsharePort(e.Context(), bob, ws.ID, 3000); workspace.CodeOf(err) != workspace.CodeForbidden {
		t.Errorf("another user ends a share: %v", err)
	}
	if err := e.UnsharePort(e.Context(), ann, ws.ID, 4000); err != nil {
		t.Error(err)
	}
	if err := e.UnsharePort(e.Context(), ann, ws.ID, 4000); workspace.CodeOf(err) != workspace.CodeNotFound {
		t.Errorf("a second time: %v", err)
	}
	if n := query[int](e, `SELECT count(*) FROM audit_log WHERE action LIKE 'port.%'`); n != 4 {
		t.Errorf("%d entries in the audit log", n)
	}
	e.exec(`UPDATE port_shares SET expires_at = now() - interval '1 s'`)
	if n := count(); n != 0 {
		t.Errorf("%d shares have not expired", n)
	}
	// A new owner does not inherit the shares.
	share(3000, workspace.VisibleUsers, 0)
	e.exec(`UPDATE workspaces SET owner_user_id = $1`, bob.UserID)
	if n := count(); n != 0 {
		t.Errorf("%d shares of the former owner are left", n)
	}
}

// entrance returns a function that reports whether a user gets a session of the host of a port of
// a workspace by a ticket; 0: of the IDE's host.
func (e *env) entrance(c workspace.Caller, id workspace.ID) (enters func(port int) bool) {
	e.Helper()
	hash := func() []byte {
		b := make([]byte, 32)
		_, _ = rand.Read(b) // never fails
		return b
	}
	session := hash()
	e.exec(`INSERT INTO sessions (hash, user_id, expires_at) VALUES ($1, $2, now() + interval '1 day')`, session, c.UserID)
	return func(port int) bool {
		e.Helper()
		host, ticket, nonce := workspace.Host{ID: id, Port: port}, hash(), hash()
		if err := e.CreateTicket(e.Context(), ticket, session, host, nonce); err != nil {
			e.Fatal(err)
		}
		_, err := e.RedeemTicket(e.Context(), ticket, host, nonce, hash())
		if err != nil && workspace.CodeOf(err) != workspace.CodeUnauthenticated {
			e.Error(err)
		}
		return err == nil
	}
}

// A ticket of another user is redeemed on the host of a shared port alone.
func TestTicketOfSharedPort(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ann, bob := e.user("ann"), e.user("bob")
	ws := must(e.CreateWorkspace(e.Context(), ann, newWorkspace("one", workspace.DesiredRunning)))(t)
	enters := e.entrance(bob, ws.ID)
	if enters(3000) || enters(0) {
		t.Error("another user enters a port that is not shared")
	}
	must(e.SharePort(e.Context(), ann, ws.ID, 3000, workspace.VisibleUsers, 0))(t)
	if !enters(3000) {
		t.Error("another user does not enter a shared port")
	}
	if enters(3001) || enters(0) {
		t.Error("another user enters what is not shared")
	}
	// While the owner is disabled or suspended, nothing is shared, and the proxy hears of it.
	heard := e.hear()
	for _, inactive := range []string{`disabled = true`, `suspended_for = 'refused'`} {
		heard.since()
		e.exec(`UPDATE users SET `+inactive+` WHERE id = $1`, ann.UserID)
		if enters(3000) || len(must(e.OpenPorts(e.Context(), ws.ID))(t)) != 0 || !strings.Contains(heard.channels(), postgres.ChannelSSE) {
			t.Errorf("%s: the port is shared", inactive)
		}
		e.exec(`UPDATE users SET disabled = false, suspended_for = NULL WHERE id = $1`, ann.UserID)
		if !enters(3000) || len(must(e.OpenPorts(e.Context(), ws.ID))(t)) != 1 || !strings.Contains(heard.channels(), postgres.ChannelSSE) {
			t.Errorf("%s: the port is not shared afterwards", inactive)
		}
	}
	e.exec(`UPDATE port_shares SET expires_at = now() - interval '1 s'`)
	if enters(3000) {
		t.Error("another user enters after the end of the share")
	}
}

// A share by an API token with limits ends with the token, and no share by a token outlasts its
// expiry.
func TestPortShareEndsWithToken(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	ann := e.user("ann")
	ws := e.workspace(ann, nil)
	expiry := time.Now().Add(time.Hour).Truncate(time.Second)
	n := 0
	by := func(scope workspace.Scope, only workspace.ID, expires *time.Time) (workspace.Caller, string) {
		t.Helper()
		n++
		made := must(e.CreateToken(ctx, ann, postgres.Token{Name: "ci", Hash: fmt.Appendf(nil, "%032d", n), Scope: scope, Workspace: only, ExpiresAt: expires}))(t)
		c := ann
		c.Token, c.Scope, c.Only = made.ID, scope, only
		return c, made.ID
	}
	for name, test := range map[string]struct {
		scope   workspace.Scope
		only    workspace.ID
		expires *time.Time
		again   bool // the owner shares the port again, without a token
		stays   bool
	}{
		"limited scope":           {workspace.ScopeWorkspaces, "", nil, false, false},
		"limited to a workspace":  {workspace.ScopeWorkspaces, ws.ID, nil, false, false},
		"limited scope, expiring": {workspace.ScopeWorkspaces, "", &expiry, false, false},
		"no limits":               {workspace.ScopeAdmin, "", nil, false, true},
		"no limits, expiring":     {workspace.ScopeAdmin, "", &expiry, false, true},
		"replaced":                {workspace.ScopeWorkspaces, "", &expiry, true, true},
	} {
		caller, token := by(test.scope, test.only, test.expires)
		s := must(e.SharePort(ctx, caller, ws.ID, 3000, workspace.VisibleUsers, 0))(t)
		if ends := test.expires != nil && test.scope != workspace.ScopeAdmin; (s.ExpiresAt != nil) != ends || ends && !s.ExpiresAt.Equal(expiry) {
			t.Errorf("%s: it ends at %v, the token at %v", name, s.ExpiresAt, test.expires)
		}
		if s := must(e.SharePort(ctx, caller, ws.ID, 3000, workspace.VisiblePublic, time.Minute))(t); time.Until(*s.ExpiresAt) > time.Minute {
			t.Errorf("%s: for a minute until %v", name, s.ExpiresAt)
		}
		if test.again {
			if s := must(e.SharePort(ctx, ann, ws.ID, 3000, workspace.VisibleUsers, 0))(t); s.ExpiresAt != nil {
				t.Errorf("%s: it ends at %v", name, s.ExpiresAt)
			}
		}
		if got := len(must(e.OpenPorts(ctx, ws.ID))(t)); got != 1 {
			t.Errorf("%s: %d shares", name, got)
		}
		if err := e.DeleteToken(ctx, ann, token); err != nil {
			t.Fatal(err)
		}
		if stays := len(must(e.OpenPorts(ctx, ws.ID))(t)) == 1; stays != test.stays {
			t.Errorf("%s: after the token's end it is shared: %v", name, stays)
		}
		_, err := e.SharePort(ctx, caller, ws.ID, 4000, workspace.VisibleUsers, 0)
		wantCode(t, err, workspace.CodeUnauthenticated)
	}
	caller, _ := by(workspace.ScopeWorkspaces, "", nil)
	must(e.SharePort(ctx, caller, ws.ID, 3000, workspace.VisibleUsers, 0))(t)
	e.exec(`UPDATE users SET disabled = true WHERE id = $1`, ann.UserID)
	if got := len(must(e.OpenPorts(ctx, ws.ID))(t)); got != 0 {
		t.Errorf("%d shares of a disabled user", got)
	}
}
