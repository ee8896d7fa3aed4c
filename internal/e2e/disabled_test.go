package e2e

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"codehub/api"
	codehub "codehub/client"
	"codehub/internal/e2e/proc"
)

// The sessions and WebSockets of a disabled user end within seconds. The
// workspace keeps running, and the user can use it again after being enabled.
func TestDisablingUserClosesWebSocket(t *testing.T) {
	t.Parallel()
	s := start(t, "CODEHUB_DELETE_GRACE=0s")
	ctx := t.Context()
	id := s.create(api.CreateWorkspace{Name: "one"})
	s.awaitPhase(id, "RUNNING")
	me, err := s.api.Me(ctx)
	if err != nil {
		t.Fatal(err)
	}
	other := s.boss()

	addr := strings.TrimPrefix(s.URL, "http://")
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET /w/%s/ws HTTP/1.1\r\nHost: %s\r\nOrigin: %s\r\n%s: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", id, addr, s.URL, api.TokenHeader, s.token)
	r := bufio.NewReader(c)
	if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, " 101 ") {
		t.Fatalf("WebSocket: %q, %v", line, err)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		for _, err := r.ReadByte(); err == nil; _, err = r.ReadByte() {
		}
	}()

	yes, no := true, false
	if _, err := other.PatchAccount(ctx, me.ID, api.PatchAccount{Disabled: &yes}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if _, err := s.api.Me(ctx); codehub.CodeOf(err) != "unauthenticated" {
		t.Errorf("a request with the disabled user's token: %v", err)
	}
	select {
	case <-closed:
		t.Logf("closed after %s", time.Since(began))
	case <-time.After(2 * accessLimit):
		t.Errorf("the WebSocket is still open after %v", 2*accessLimit)
	}
	status, err := other.AdminStatus(ctx)
	if err != nil || status.Phases["RUNNING"] != 1 {
		t.Errorf("the workspace of the disabled user does not run: %+v, %v", status, err)
	}
	if _, err := other.PatchAccount(ctx, me.ID, api.PatchAccount{Disabled: &no}); err != nil {
		t.Fatal(err)
	}
	s.login(adminName, proc.AdminPassword)
	s.awaitPhase(id, "RUNNING")
}

// boss creates another administrator and logs in.
func (s *server) boss() *codehub.Client {
	s.Helper()
	boss := api.CreateAccount{Username: "boss", Password: "a password", Admin: true}
	if _, err := s.api.CreateAccount(s.Context(), boss); err != nil {
		s.Fatal(err)
	}
	c, _, err := codehub.Login(s.Context(), s.URL, api.Login{Username: boss.Username, Password: boss.Password}, codehub.WithHTTPClient(&http.Client{Transport: s.web}))
	if err != nil {
		s.Fatal(err)
	}
	return c
}
