package httpapi

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"codehub/api"
	"codehub/client"
	"codehub/internal/running/service"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

const publicKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKXb8Jw8ZbQy7nH0v8w2P3Jv2b6k0cKqU3c1mJtqk3Xx ann@laptop"

func TestKeys(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	body := `{"public_key":"` + publicKey + `"}`
	made := read[api.SSHKey](t, e.want(201, "", "POST", "/keys", body, as(e.ann)))
	if made.Name != "ann@laptop" || strings.Contains(made.PublicKey, "ann@") || !strings.HasPrefix(made.Fingerprint, "SHA256:") || made.LastUsedAt != nil {
		t.Errorf("%+v", made)
	}
	e.want(409, "key_taken", "POST", "/keys", body, as(e.ann))
	e.want(409, "key_taken", "POST", "/keys", body, as(e.eve))
	for _, bad := range []string{
		``, `ssh-ed25519`, `ssh-ed25519 AAAA`, `-----BEGIN OPENSSH PRIVATE KEY-----`, publicKey + `\n` + publicKey,
		`command=\"x\" ` + publicKey, strings.Repeat("x", 20<<10),
	} {
		e.want(400, "invalid_request", "POST", "/keys", `{"public_key":"`+bad+`"}`, as(e.ann))
	}
	if l := read[api.SSHKeyList](t, e.want(200, "", "GET", "/keys", "", as(e.eve))); len(l.Keys) != 0 || l.Keys == nil {
		t.Errorf("%+v", l)
	}
	e.want(403, "forbidden", "DELETE", "/keys/"+made.ID, "", as(e.eve))
	e.want(404, "not_found", "DELETE", "/keys/x", "", as(e.ann))
	e.want(204, "", "DELETE", "/keys/"+made.ID, "", as(e.ann))
	if l := read[api.SSHKeyList](t, e.want(200, "", "GET", "/keys", "", as(e.ann))); len(l.Keys) != 0 {
		t.Errorf("%+v", l)
	}
}

func TestKeysExpireWithTheirToken(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	until := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	key := `{"public_key":"` + publicKey + `"}`
	if k := read[api.SSHKey](t, e.want(201, "", "POST", "/keys", key, as(e.ann))); k.ExpiresAt != nil {
		t.Errorf("added in a session: %+v", k)
	} else {
		e.want(204, "", "DELETE", "/keys/"+k.ID, "", as(e.ann))
	}
	for body, want := range map[string]*time.Time{
		`{"name":"ci"}`: nil,
		`{"name":"ci","expires_at":"` + until.Format(time.RFC3339) + `"}`: &until,
	} {
		tok := read[api.Token](t, e.want(201, "", "POST", "/tokens", body, as(e.ann)))
		k := read[api.SSHKey](t, e.want(201, "", "POST", "/keys", key, header(api.TokenHeader, tok.Token)))
		list := read[api.SSHKeyList](t, e.want(200, "", "GET", "/keys", "", as(e.ann))).Keys
		if len(list) != 1 || cmp.Diff(want, k.ExpiresAt) != "" || cmp.Diff(want, list[0].ExpiresAt) != "" {
			t.Errorf("added with the token %s: %+v, listed %+v", body, k, list)
		}
		e.want(204, "", "DELETE", "/keys/"+k.ID, "", as(e.ann))
	}
}

// echoGate answers with the workspace and what it reads.
type echoGate struct{}

func (echoGate) ServeCaller(conn net.Conn, caller workspace.Caller, id workspace.ID, _ netip.Addr) {
	defer conn.Close()
	_, _ = io.WriteString(conn, caller.Username+" "+string(id)+" ")
	_, _ = io.CopyN(conn, conn, 5)
}

func TestSSHConnection(t *testing.T) {
	t.Parallel()
	e := newEnv(t, func(c *Config) {
		c.Gate = echoGate{}
		c.SSH = service.SSHServer{Host: "code.example.com", Port: 2222, HostKey: "ssh-ed25519 AAAA", Fingerprint: "SHA256:x"}
	})
	ws := e.workspace(e.ann, "demo")
	_, token, err := e.Auth.CreateToken(t.Context(), auth.Identity{Caller: e.ann.Caller}, "x", nil, auth.TokenLimits{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(e.URL.String(), token)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := c.SSHServer(t.Context()); err != nil || s.Host != "code.example.com" || s.Port != 2222 {
		t.Errorf("%+v %v", s, err)
	}
	conn, err := c.SSH(t.Context(), string(ws.ID))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	want := "ann " + string(ws.ID) + " hello"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		t.Errorf("got %q, %v", got, err)
	}

	// Another user's workspace, and one that does not exist.
	others := e.workspace(e.eve, "hers")
	for id, code := range map[workspace.ID]string{others.ID: "forbidden", "0198c0de-0000-7000-8000-000000000009": "not_found"} {
		if _, err := c.SSH(t.Context(), string(id)); client.CodeOf(err) != code {
			t.Errorf("%s: %v", id, err)
		}
	}
	e.want(400, "invalid_request", "GET", "/workspaces/"+string(ws.ID)+"/ssh", "", as(e.ann))
	// A page of another site opens WebSockets with the visitor's cookie.
	address := e.URL.ResolveReference(&url.URL{Path: Prefix + "/workspaces/" + string(ws.ID) + "/ssh"})
	_, res, err := websocket.Dial(context.Background(), address.String(), &websocket.DialOptions{
		HTTPHeader: http.Header{"Cookie": {e.ann.cookie.String()}, "Origin": {"https://evil.example"}}})
	if err == nil || res == nil || res.StatusCode != http.StatusForbidden {
		t.Errorf("with a session's cookie: %v %v", res, errors.Unwrap(err))
	}
}
