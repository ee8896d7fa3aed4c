package httpapi

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"unicode/utf8"

	"github.com/coder/websocket"

	"codehub/api"
	"codehub/internal/gateway/front"
	"codehub/internal/postgres"
	"codehub/internal/users/auth"
	"codehub/internal/web/accesslog"
	"codehub/internal/web/sshgate"
	"codehub/internal/workspace"
)

// Gate serves SSH on a connection of a caller; *sshgate.Gate implements it.
type Gate interface {
	// ServeCaller returns when the connection has ended.
	ServeCaller(conn net.Conn, caller workspace.Caller, id workspace.ID, from netip.Addr)
}

const maxKeyName = 100 // characters

func (s *server) sshServer(w http.ResponseWriter, _ *http.Request, _ auth.Identity) error {
	return writeJSON(w, http.StatusOK, api.SSHServer{
		Host: s.cfg.SSH.Host, Port: s.cfg.SSH.Port, HostKey: s.cfg.SSH.HostKey, Fingerprint: s.cfg.SSH.Fingerprint,
	})
}

func (s *server) listKeys(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	list, next, err := s.cfg.Store.SSHKeys(r.Context(), id.Caller, pageOf(r))
	return reply(w, http.StatusOK, api.SSHKeyList{Keys: each(list, keyView), NextCursor: next}, err)
}

func (s *server) addKey(w http.ResponseWriter, r *http.Request, id auth.Identity, in api.AddSSHKey) error {
	k, err := sshgate.ParseKey(in.PublicKey)
	if err != nil {
		return err
	}
	name := in.Name
	if name == "" {
		name = k.DefaultName()
	}
	if name, err = checkName(name); err != nil {
		return err
	}
	if utf8.RuneCountInString(name) > maxKeyName {
		return fieldError("name", "is too long: at most 100 characters.")
	}
	made, err := s.cfg.Store.AddSSHKey(r.Context(), id.Caller, postgres.SSHKey{Name: name, PublicKey: k.Line, Hash: k.Hash, ExpiresAt: id.Bound(nil)})
	return reply(w, http.StatusCreated, keyView(made), err)
}

func keyView(k postgres.SSHKey) api.SSHKey {
	return api.SSHKey{
		ID: k.ID, Name: k.Name, PublicKey: k.PublicKey, Fingerprint: sshgate.Fingerprint(k.Hash),
		CreatedAt: k.CreatedAt.UTC(), ExpiresAt: k.ExpiresAt, LastUsedAt: k.LastUsedAt,
	}
}

// connectSSH carries an SSH connection into a workspace on a WebSocket. It accepts only
// API tokens: a browser sends its cookie with the WebSockets of any page.
func (s *server) connectSSH(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	ws, err := s.findEnterable(r, id)
	if err != nil {
		return err
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return workspace.Errorf(workspace.CodeInvalid, "This endpoint is a WebSocket.")
	}
	if id.Caller.Token == "" {
		return workspace.Errorf(workspace.CodeForbidden, "This endpoint needs an API token.")
	}
	accesslog.Quiet(r.Context())
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{api.SSHProtocol}, CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return errStarted // the response is written
	}
	defer c.CloseNow()
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	defer cancel()
	s.cfg.Gate.ServeCaller(websocket.NetConn(ctx, c, websocket.MessageBinary), id.Caller, ws.ID, front.Address(r))
	return nil
}
