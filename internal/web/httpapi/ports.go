package httpapi

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/coder/websocket"

	"codehub/api"
	"codehub/internal/bus/activity"
	"codehub/internal/gateway/inbound"
	"codehub/internal/gateway/origin"
	"codehub/internal/gateway/tunnel"
	"codehub/internal/running/ports"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

func (s *server) listPorts(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	l, err := s.cfg.Ports.List(r.Context(), id.Caller, pathID(r))
	return reply(w, http.StatusOK, api.PortList{Running: l.Running, Known: l.Known, Ports: each(l.Ports, portOf), MaxVisibility: string(s.cfg.Ports.Most())}, err)
}

func portOf(p ports.Port) api.Port {
	out := api.Port{
		Port: p.Port.Port, Listening: p.Listening, Label: p.Label, Local: p.Local, Process: p.Process, PID: p.PID,
		URL: p.URL, VisibleTo: string(p.VisibleTo), ExpiresAt: p.ExpiresAt,
	}
	if p.Since > 0 {
		since := time.Unix(p.Since, 0).UTC()
		out.Since = &since
	}
	return out
}

// pathPort is the port of the path.
func pathPort(r *http.Request) (int, error) {
	port, ok := origin.ParsePort(r.PathValue("port"))
	if !ok {
		return 0, fieldError("port", "must be between 1 and 65535.")
	}
	return port, nil
}

func (s *server) sharePort(w http.ResponseWriter, r *http.Request, id auth.Identity, in api.SharePort) error {
	wsID := pathID(r)
	port, err := pathPort(r)
	if err != nil {
		return err
	}
	var lasting time.Duration
	if in.ExpiresInSeconds != nil {
		const most = 1 << 30 // no overflow; package ports has the real limit
		if *in.ExpiresInSeconds < 1 || *in.ExpiresInSeconds > most {
			return fieldError("expires_in_seconds", "must be at least 1, and at most what administrators allow.")
		}
		lasting = time.Duration(*in.ExpiresInSeconds) * time.Second
	}
	p, err := s.cfg.Ports.Share(r.Context(), id.Caller, wsID, port, workspace.Visibility(in.With), lasting)
	if err != nil {
		return err
	}
	// The port is shared now, also where its workspace does not respond.
	if l, err := s.cfg.Ports.List(r.Context(), id.Caller, wsID); err == nil {
		if i := slices.IndexFunc(l.Ports, func(listed ports.Port) bool { return listed.Port.Port == port }); i >= 0 {
			p = l.Ports[i]
		}
	}
	return writeJSON(w, http.StatusOK, portOf(p))
}

func (s *server) unsharePort(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	port, err := pathPort(r)
	if err != nil {
		return err
	}
	return replyNothing(w, s.cfg.Ports.Unshare(r.Context(), id.Caller, pathID(r), port))
}

// connectPort relays a WebSocket of package tunnel to a port of a running workspace. It
// is for programs: browsers send an Origin with every WebSocket, and are refused, so that
// no page can use its visitor's session for it. What the client sends counts as activity.
func (s *server) connectPort(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	if len(r.Header.Values("Origin")) > 0 {
		return workspace.Errorf(codeCrossOrigin, "This endpoint is for programs, not for pages in a browser.")
	}
	port, err := pathPort(r)
	if err != nil {
		return err
	}
	if err := workspace.CheckPort(port); err != nil {
		return err
	}
	ws, err := s.findEnterable(r, id)
	if err != nil {
		return err
	}
	if r.ProtoMajor != 1 || len(r.Header["Upgrade"]) == 0 {
		w.Header().Set("Upgrade", "websocket")
		return workspace.Errorf(codeUpgradeRequired, "This endpoint is a WebSocket over HTTP/1.1.")
	}
	// It ends with the attachment, and not with the request, which a hijacked
	// connection does not cancel.
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	defer cancel()
	stop := context.AfterFunc(r.Context(), cancel)
	conn, err := s.cfg.Ports.Connect(ctx, id.Caller, ws.ID, port)
	if err != nil {
		return err
	}
	defer conn.Close()
	restore := inbound.Lift(w, r)
	stop()
	socket, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		Subprotocols: []string{tunnel.Protocol}, InsecureSkipVerify: true, CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		restore()
		return nil // Accept has written the response
	}
	client := tunnel.New(conn.Context(), socket)
	defer client.Close()
	// The agent's connection does not end with the context.
	defer context.AfterFunc(conn.Context(), func() { _ = conn.Conn.Close() })()
	tunnel.Relay(client, conn.Conn, func(int) { conn.Used(activity.Client) })
	return nil
}
