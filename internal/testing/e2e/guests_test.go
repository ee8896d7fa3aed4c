package e2e

import (
	"net"
	"net/http"
	"testing"

	"codehub/api"
	"codehub/internal/testing/e2e/proc"
)

// A change of access on one server ends what visitors have open by another server of the
// installation: a share that ends, and an owner who is disabled or suspended, whose guests and
// public ports lose their visitors. It takes over 20 s beside other tests, for two servers and a
// workspace.
func TestAccessEndsOnAllServers(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	settings := append(folderBucket(t).settings, "CODEHUB_DATABASE_URL="+dsn, "CODEHUB_DEFAULT_IMAGE="+env.testImage, "CODEHUB_DELETE_GRACE=0s", "CODEHUB_PORT_VISIBILITY_MAX=public")
	s := start(t, settings...)
	for _, user := range []string{"ann", "uma"} {
		if _, err := s.api.CreateAccount(t.Context(), api.CreateAccount{Username: user, Password: proc.AdminPassword}); err != nil {
			t.Fatal(err)
		}
	}
	id := s.createAs("ann")
	s.serveIn(id, ":3000")
	ann := s.enterAs("ann", proc.AdminPassword)
	other := s.second(settings...)
	hour := 3600
	if _, err := ann.api.SharePort(t.Context(), id, 3000, api.SharePort{With: "public", ExpiresInSeconds: &hour}); err != nil {
		t.Fatal(err)
	}
	share := func() api.Share {
		t.Helper()
		made, err := ann.api.Share(t.Context(), id, api.NewShare{User: "uma", Access: "use"})
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	// public opens a WebSocket to the public port by the other server, without a session.
	public := func() net.Conn {
		t.Helper()
		at := other.portOf(id, "3000")
		status, conn := other.upgradeAt(at, "Origin", at)
		if status != http.StatusSwitchingProtocols {
			t.Fatalf("a WebSocket to the public port: %d", status)
		}
		return conn
	}

	shared := share()
	_, guest := other.enter("uma", id)
	cookie, owner := other.enter("ann", id)
	if err := ann.api.Unshare(t.Context(), id, shared.ID); err != nil {
		t.Fatal(err)
	}
	other.ends("the guest's WebSocket after the share", guest)
	// The guest may have taken the owner's session on the workspace's host.
	other.ends("the owner's WebSocket after the share", owner)
	if status := other.status("GET", other.originOf(id)+"/echo", "Cookie", cookie); status != http.StatusUnauthorized {
		t.Errorf("the owner's session on the workspace's host after the share: %d", status)
	}
	_, owner = other.enter("ann", id)
	owner.Close()

	share()
	account := s.accountOf("ann")
	for _, end := range []struct {
		name        string
		begin, undo func()
	}{
		{"disabled", func() { s.disable(account, true) }, func() { s.disable(account, false) }},
		{"suspended", func() { execute(t, dsn, `UPDATE users SET suspended_for = 'refused' WHERE username = 'ann'`) },
			func() { execute(t, dsn, `UPDATE users SET suspended_for = NULL WHERE username = 'ann'`) }},
	} {
		_, guest := other.enter("uma", id)
		visitor := public()
		end.begin()
		other.ends("the guest's WebSocket with an owner who is "+end.name, guest)
		other.ends("the public port's WebSocket with an owner who is "+end.name, visitor)
		if status := other.status("GET", other.portOf(id, "3000")+"/"); status != http.StatusUnauthorized {
			t.Errorf("the public port with an owner who is %s: %d", end.name, status)
		}
		end.undo()
	}
	// Both count again.
	_, guest = other.enter("uma", id)
	guest.Close()
	public().Close()
}

func (s *server) accountOf(user string) (id string) {
	s.Helper()
	accounts, err := s.api.Accounts(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	for _, a := range accounts {
		if a.Username == user {
			return a.ID
		}
	}
	s.Fatalf("there is no user %s", user)
	return ""
}

func (s *server) disable(account string, disabled bool) {
	s.Helper()
	if _, err := s.api.PatchAccount(s.Context(), account, api.PatchAccount{Disabled: &disabled}); err != nil {
		s.Fatal(err)
	}
}
